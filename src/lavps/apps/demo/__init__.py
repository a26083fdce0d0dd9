"""The demonstration: a degraded image is restored in the browser."""

from .demonstration import Demonstration
from .page import build_page, launch

__all__ = ["Demonstration", "build_page", "launch"]
