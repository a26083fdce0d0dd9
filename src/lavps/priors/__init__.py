"""Priors: the denoiser protocol, adapters for networks, and exact Gaussian and mixture priors."""

from .adapters import EDMPrior, NetworkPrior
from .counting import CountingPrior
from .interop import AzulaDenoiser, AzulaPrior, DeepinvDenoiser, from_deepinv
from .latent import LatentPrior
from .mixture import GaussianMixturePrior, GaussianPrior
from .protocol import Prior, RescaledPrior, Rescheduled

__all__ = [
    "AzulaDenoiser",
    "AzulaPrior",
    "CountingPrior",
    "DeepinvDenoiser",
    "EDMPrior",
    "GaussianMixturePrior",
    "GaussianPrior",
    "LatentPrior",
    "NetworkPrior",
    "Prior",
    "RescaledPrior",
    "Rescheduled",
    "from_deepinv",
]
