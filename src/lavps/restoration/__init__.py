"""Restoration of image files with diffusion priors, for images of any size."""

from .certificate import Certificate
from .forecast import RunForecast
from .job import FileRestorer, RestorationConfig
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
