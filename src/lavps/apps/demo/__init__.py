"""The demonstration: an image is measured and restored in the browser."""

from .demonstration import Demonstration
from .page import build_page

__all__ = ["Demonstration", "build_page"]
