"""Priors: the denoiser protocol, adapters for networks, and exact Gaussian and mixture priors."""

from .base import Prior, Ranged, Rescheduled
from .interop import AzulaDenoiser, AzulaPrior, DeepinvDenoiser, from_deepinv
from .latent import LatentPrior
from .metered import MeteredPrior
from .mixture import GaussianMixturePrior, GaussianPrior
from .networks import EDMPrior, NetworkPrior

__all__ = [
    "AzulaDenoiser",
    "AzulaPrior",
    "DeepinvDenoiser",
    "EDMPrior",
    "GaussianMixturePrior",
    "GaussianPrior",
    "LatentPrior",
    "MeteredPrior",
    "NetworkPrior",
    "Prior",
    "Ranged",
    "Rescheduled",
    "from_deepinv",
]
