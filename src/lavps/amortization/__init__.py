"""Amortization: the inference model, the contexts it learns from, and the training of all networks."""

from .checkpoint import save_model
from .conditional import ConditionalDenoiser, ConditionalTask
from .contexts import ContextSource
from .denoising import DenoiserTask
from .inference import InferenceTask
from .loading import load_conditional, load_inference_model, save_conditional, save_inference_model
from .model import InferenceModel
from .opening import load_prior, save_prior

__all__ = [
    "ConditionalDenoiser",
    "ConditionalTask",
    "ContextSource",
    "DenoiserTask",
    "InferenceModel",
    "InferenceTask",
    "load_conditional",
    "load_inference_model",
    "load_prior",
    "save_conditional",
    "save_inference_model",
    "save_model",
    "save_prior",
]
