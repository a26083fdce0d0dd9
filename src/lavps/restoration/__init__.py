"""Restoration of image files with diffusion priors, for images of any size."""

from .certificate import Certificate
from .config import RestorationConfig
from .forecast import RunForecast
from .job import FileRestorer
from .manifest import Manifest
from .restorer import Restorer, restore
from .spec import MeasuredFile, MeasurementSpec

__all__ = [
    "Certificate",
    "FileRestorer",
    "Manifest",
    "MeasuredFile",
    "MeasurementSpec",
    "RestorationConfig",
    "Restorer",
    "RunForecast",
    "restore",
]
