"""Measurement operators and random families of operators."""

from .base import CallableOperator, NotDifferentiableError, Operator
from .blur import Blur, gaussian_kernel
from .check import check
from .convert import as_operator
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
from .nonlinear import JPEG, HDRClip, PhaseRetrieval
from .registry import family_from, named_family
from .report import OperatorReport
from .rescaled import RescaledOperator

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
    "RescaledOperator",
    "as_operator",
    "centre_box",
    "check",
    "family_from",
    "from_numpy",
    "gaussian_kernel",
    "motion_kernel",
    "named_family",
]
