"""Samplers: MGDM and LAVPS (one Gibbs loop), MGPS, WienerPIR, DDIM, the baselines; and what they return."""

from ..guidance.midpoints import FractionMidpoint, MixedMidpoint, PreviousMidpoint, UniformMidpoint
from ..streaming import RunningStatistics
from .base import Cancelled, NonFiniteError, Sampler, Step
from .daps import DAPS
from .ddim import DDIM, DenoisingSampler
from .ddnm import DDNM
from .diffpir import DiffPIR, WienerPIR
from .dps import DPS
from .few_step import FewStep, FewStepModel
from .fused import FusedPIR
from .gibbs import LAVPS, MGDM
from .mean import PosteriorMean
from .mgps import MGPS
from .mmps import MMPS, PiGDM
from .posterior import OutOfDistributionWarning, Posterior, Trace
from .settings import UNBOUND, Settings, Unbound
from .supervised import PosteriorDenoiser, Supervised
from .tuned import TunedPIR

__all__ = [
    "DAPS",
    "DDIM",
    "DDNM",
    "DPS",
    "LAVPS",
    "MGDM",
    "MGPS",
    "MMPS",
    "UNBOUND",
    "Cancelled",
    "DenoisingSampler",
    "DiffPIR",
    "FewStep",
    "FewStepModel",
    "FractionMidpoint",
    "FusedPIR",
    "MixedMidpoint",
    "NonFiniteError",
    "OutOfDistributionWarning",
    "PiGDM",
    "Posterior",
    "PosteriorDenoiser",
    "PosteriorMean",
    "PreviousMidpoint",
    "RunningStatistics",
    "Sampler",
    "Settings",
    "Step",
    "Supervised",
    "Trace",
    "TunedPIR",
    "Unbound",
    "UniformMidpoint",
    "WienerPIR",
]
