"""Measurement operators, and random families of them."""

from .base import CallableOperator, NotDifferentiableError, Operator, as_operator
from .blur import Blur, gaussian_kernel
from .check import check
from .decoded import DecodedOperator
from .families import (
    CentreBox,
    FixedOperator,
    MotionBlur,
    OperatorFamily,
    RandomGaussianBlur,
    RandomPixels,
    RandomRectangle,
)
from .interop import PhysicsOperator, from_numpy
from .linear import AveragePool, Identity, Mask, centre_box
from .motion import motion_kernel
from .mri import MRI
from .named import family_from, named_family
from .nonlinear import JPEG, HDRClip, PhaseRetrieval
from .ranged import Ranged
from .report import OperatorReport

__all__ = [
    "JPEG",
    "MRI",
    "AveragePool",
    "Blur",
    "CallableOperator",
    "CentreBox",
    "DecodedOperator",
    "FixedOperator",
    "HDRClip",
    "Identity",
    "Mask",
    "MotionBlur",
    "NotDifferentiableError",
    "Operator",
    "OperatorFamily",
    "OperatorReport",
    "PhaseRetrieval",
    "PhysicsOperator",
    "RandomGaussianBlur",
    "RandomPixels",
    "RandomRectangle",
    "Ranged",
    "as_operator",
    "centre_box",
    "check",
    "family_from",
    "from_numpy",
    "gaussian_kernel",
    "motion_kernel",
    "named_family",
]
