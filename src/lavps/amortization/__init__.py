"""Amortization: the inference model, the contexts it learns from, and the training of all networks."""

from .contexts import ContextSource
from .inference import InferenceTask
from .model import InferenceModel

__all__ = ["ContextSource", "InferenceModel", "InferenceTask"]
