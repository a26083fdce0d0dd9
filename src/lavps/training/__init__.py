"""Training: one loop for all networks, its data, its log and its checkpoints."""

from .crops import RandomCrops
from .data import ImageData
from .denoiser import DenoiserTask
from .task import Task
from .trainer import TrainerConfig, train

__all__ = ["DenoiserTask", "ImageData", "RandomCrops", "Task", "TrainerConfig", "train"]
