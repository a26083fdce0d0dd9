"""Posterior sampling for imaging inverse problems with diffusion priors.

The rooms, in the paper's order: :mod:`~lavps.schedule`, :mod:`~lavps.transitions`, :mod:`~lavps.random`,
:mod:`~lavps.priors`, :mod:`~lavps.operators`, :mod:`~lavps.problem`, :mod:`~lavps.variational`,
:mod:`~lavps.minimizers`, :mod:`~lavps.initializers`, :mod:`~lavps.samplers`, :mod:`~lavps.networks`,
:mod:`~lavps.amortization`, :mod:`~lavps.evaluation`.
"""

from importlib.metadata import version as _version

from . import operators
from .amortization import (
    ConditionalDenoiser,
    InferenceModel,
    load_conditional,
    load_inference_model,
    load_prior,
)
from .initializers import LikelihoodStep
from .minimizers import Adam, WhitenedGradient
from .priors import EDMPrior, GaussianMixturePrior, GaussianPrior, NetworkPrior, Prior, Ranged, Rescheduled
from .problem import GaussianNoise, InverseProblem, PoissonNoise, Unconditional, exact_posterior
from .samplers import DDIM, DPS, LAVPS, MGDM, MGPS, MMPS, Posterior, Supervised, Trace
from .schedule import VE, Cosine, DiscreteVP, Flow, VPLinear
from .variational import Context, DiagonalGaussian

__version__ = _version("lavps")

__all__ = [
    "DDIM",
    "DPS",
    "LAVPS",
    "MGDM",
    "MGPS",
    "MMPS",
    "VE",
    "Adam",
    "ConditionalDenoiser",
    "Context",
    "Cosine",
    "DiagonalGaussian",
    "DiscreteVP",
    "EDMPrior",
    "Flow",
    "GaussianMixturePrior",
    "GaussianNoise",
    "GaussianPrior",
    "InferenceModel",
    "InverseProblem",
    "LikelihoodStep",
    "NetworkPrior",
    "PoissonNoise",
    "Posterior",
    "Prior",
    "Ranged",
    "Rescheduled",
    "Supervised",
    "Trace",
    "Unconditional",
    "VPLinear",
    "WhitenedGradient",
    "exact_posterior",
    "load_conditional",
    "load_inference_model",
    "load_prior",
    "operators",
]
