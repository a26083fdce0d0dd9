"""Amortization: inference models, the contexts they are trained on, and their conditioning."""

from .conditional import ConditionalDenoiser, ConditionalTask
from .conditioning import Conditioning, LikelihoodGradient, Palette, conditioning_channels
from .contexts import ContextSource
from .few_step import load_few_step
from .inference import InferenceTask
from .loading import (
    load_conditional,
    load_inference_model,
    save_conditional,
    save_inference_model,
)
from .model import InferenceModel

__all__ = [
    "ConditionalDenoiser",
    "ConditionalTask",
    "Conditioning",
    "ContextSource",
    "InferenceModel",
    "InferenceTask",
    "LikelihoodGradient",
    "Palette",
    "conditioning_channels",
    "load_conditional",
    "load_few_step",
    "load_inference_model",
    "save_conditional",
    "save_inference_model",
]
