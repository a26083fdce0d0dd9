"""Measurement operators, and random families of them."""

from .base import CallableOperator, Operator, as_operator
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
from .linear import AveragePool, Identity, Mask, centre_box
from .motion import motion_kernel
from .named import family_from, named_family
from .nonlinear import JPEG, HDRClip, PhaseRetrieval
from .report import OperatorReport

__all__ = [
    "JPEG",
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
    "Operator",
    "OperatorFamily",
    "OperatorReport",
    "PhaseRetrieval",
    "RandomGaussianBlur",
    "RandomPixels",
    "RandomRectangle",
    "as_operator",
    "centre_box",
    "check",
    "family_from",
    "gaussian_kernel",
    "motion_kernel",
    "named_family",
]
