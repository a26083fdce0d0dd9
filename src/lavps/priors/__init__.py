"""Priors: the denoiser protocol, adapters for networks, and exact Gaussian and mixture priors."""

from .base import Prior, Ranged, Rescheduled
from .metered import MeteredPrior
from .mixture import GaussianMixturePrior, GaussianPrior
from .networks import EDMPrior, NetworkPrior

__all__ = [
    "EDMPrior",
    "GaussianMixturePrior",
    "GaussianPrior",
    "MeteredPrior",
    "NetworkPrior",
    "Prior",
    "Ranged",
    "Rescheduled",
]
