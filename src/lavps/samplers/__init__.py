"""Samplers: MGDM and LAVPS (one Gibbs loop), MGPS, DPS, MMPS, DDIM, Supervised; and what they return."""

from .base import Cancelled, NonFiniteError, Sampler, Step
from .ddim import DDIM
from .dps import DPS
from .gibbs import LAVPS, MGDM
from .mgps import MGPS
from .midpoints import FractionMidpoint, MixedMidpoint, PreviousMidpoint, UniformMidpoint
from .mmps import MMPS
from .posterior import OutOfDistributionWarning, Posterior, Trace
from .streaming import RunningStatistics
from .supervised import PosteriorDenoiser, Supervised

__all__ = [
    "DDIM",
    "DPS",
    "LAVPS",
    "MGDM",
    "MGPS",
    "MMPS",
    "Cancelled",
    "FractionMidpoint",
    "MixedMidpoint",
    "NonFiniteError",
    "OutOfDistributionWarning",
    "Posterior",
    "PosteriorDenoiser",
    "PreviousMidpoint",
    "RunningStatistics",
    "Sampler",
    "Step",
    "Supervised",
    "Trace",
    "UniformMidpoint",
]
