"""Posterior sampling for imaging inverse problems with diffusion priors.

The modules, in the paper's order:
:mod:`~lavps.extras`, :mod:`~lavps.devices`, :mod:`~lavps.image_formats`, :mod:`~lavps.schedule`,
:mod:`~lavps.transitions`, :mod:`~lavps.random`, :mod:`~lavps.nn`, :mod:`~lavps.io`, :mod:`~lavps.priors`,
:mod:`~lavps.noise`, :mod:`~lavps.operators`, :mod:`~lavps.checkpoints`, :mod:`~lavps.problem`,
:mod:`~lavps.data_step`, :mod:`~lavps.variational`, :mod:`~lavps.minimizers`, :mod:`~lavps.guidance`,
:mod:`~lavps.samplers`, :mod:`~lavps.training`, :mod:`~lavps.amortization`, :mod:`~lavps.pages`,
:mod:`~lavps.evaluation`, :mod:`~lavps.benchmark`, :mod:`~lavps.tiling`, :mod:`~lavps.restoration`.
"""

from importlib.metadata import version as _version

from . import guidance, operators
from .amortization import (
    ConditionalDenoiser,
    InferenceModel,
    load_conditional,
    load_few_step,
    load_inference_model,
)
from .checkpoints import load_prior, save_prior
from .guidance import Guidance
from .minimizers import Adam, WhitenedGradient
from .noise import Noiseless, NoiseModel, PoissonGaussianNoise
from .operators import Operator
from .priors import (
    EDMPrior,
    GaussianMixturePrior,
    GaussianPrior,
    LatentPrior,
    NetworkPrior,
    Prior,
    RescaledPrior,
    Rescheduled,
)
from .problem import GaussianNoise, InverseProblem, PoissonNoise, Unconditional, exact_posterior
from .restoration import restore
from .samplers import (
    DAPS,
    DDIM,
    DDNM,
    DPS,
    LAVPS,
    MGDM,
    MGPS,
    MMPS,
    DiffPIR,
    FewStep,
    FewStepModel,
    FusedPIR,
    PiGDM,
    Posterior,
    PosteriorMean,
    Sampler,
    Settings,
    Supervised,
    Trace,
    TunedPIR,
    WienerPIR,
)
from .schedule import VE, Cosine, DiscreteVP, Flow, Schedule, VPLinear
from .variational import Context, DiagonalGaussian

__version__ = _version("lavps")

__all__ = [
    "DAPS",
    "DDIM",
    "DDNM",
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
    "DiffPIR",
    "DiscreteVP",
    "EDMPrior",
    "FewStep",
    "FewStepModel",
    "Flow",
    "FusedPIR",
    "GaussianMixturePrior",
    "GaussianNoise",
    "GaussianPrior",
    "Guidance",
    "InferenceModel",
    "InverseProblem",
    "LatentPrior",
    "NetworkPrior",
    "NoiseModel",
    "Noiseless",
    "Operator",
    "PiGDM",
    "PoissonGaussianNoise",
    "PoissonNoise",
    "Posterior",
    "PosteriorMean",
    "Prior",
    "RescaledPrior",
    "Rescheduled",
    "Sampler",
    "Schedule",
    "Settings",
    "Supervised",
    "Trace",
    "TunedPIR",
    "Unconditional",
    "VPLinear",
    "WhitenedGradient",
    "WienerPIR",
    "exact_posterior",
    "guidance",
    "load_conditional",
    "load_few_step",
    "load_inference_model",
    "load_prior",
    "operators",
    "restore",
    "save_prior",
]
