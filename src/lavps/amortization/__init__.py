"""Amortization: the inference model, the contexts it learns from, and the training of all networks."""

from .contexts import ContextSource
from .denoising import DenoiserTask
from .inference import InferenceTask
from .model import InferenceModel

__all__ = ["ContextSource", "DenoiserTask", "InferenceModel", "InferenceTask"]
