"""Plan of a training run: the number of steps that a time allows, from a few timed steps.

Settings that have their default values are scaled with it: the warm-up of the learning rate, the decay of the
averaged weights, and the intervals of validations, checkpoints and previews.
"""

from __future__ import annotations

__all__ = ["TrainingPlan", "planned"]

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from ..devices import resolve_device
from .config import TrainerConfig
from .data import Images, load_samples
from .task import Task

_TIMED = 8  # samples per timed step
_PATIENCE = 3.0  # seconds of timed steps
_FEWEST = 20  # training images of which some can be held out


@dataclass(frozen=True)
class TrainingPlan:
    """Plan of a training run.

    Attributes:
        steps: Number of optimizer steps.
        batch_size: Samples per step.
        images: Number of training images.
        seconds_per_step: Measured seconds per step.
        first_loss: Loss of the first batch, before training.
    """

    steps: int
    batch_size: int
    images: int
    seconds_per_step: float
    first_loss: float

    def __str__(self) -> str:
        seen = self.steps * self.batch_size
        hours = self.steps * self.seconds_per_step / 3600.0
        return (
            f"plan: {self.steps} steps of {self.batch_size} images, {seen} in all, "
            f"{seen / self.images:.3g} epochs of "
            f"{self.images}; {self.seconds_per_step:.2g} s per step, about {hours:.2g} h; "
            f"first loss {self.first_loss:.3g}"
        )

    @property
    def warning(self) -> str | None:
        """Warning about too few images; None if there are enough."""
        if self.images >= _FEWEST:
            return None
        return (
            f"{self.images} images are too few to hold one out: overfitting cannot be measured. Add more, "
            "or start from a trained prior with --init-from"
        )


def planned(
    config: TrainerConfig, task: Task, data: Images, hours: float
) -> tuple[TrainerConfig, TrainingPlan]:
    """Return the settings of a run of this many hours, and the plan.

    A run that is continued keeps its number of steps.

    Args:
        config: Settings; its number of steps is replaced.
        task: Task to time; its weights and gradients are left as they are.
        data: Training images.
        hours: Duration.

    Raises:
        ValueError: The number of hours is not positive.
    """
    if not hours > 0:
        raise ValueError(f"--hours must be above 0, got {hours}")
    seconds, loss = _timed(task, data, config)
    steps = _stored_steps(config) or max(int(3600.0 * hours / seconds), 1)
    plan = TrainingPlan(steps, config.batch_size, len(data), seconds, loss)
    scaled = {
        "warmup_steps": min(config.warmup_steps, steps // 10),
        "ema_decay": max(min(0.9999, 1.0 - 10.0 / steps), 0.5),
        **{name: min(getattr(config, name), max(steps // 10, 1)) for name in _INTERVALS},
    }
    defaults = {field.name: field.default for field in fields(config)}
    changed = {name: value for name, value in scaled.items() if getattr(config, name) == defaults[name]}
    return replace(config, steps=steps, **changed), plan


_INTERVALS = ("validate_every", "checkpoint_every", "preview_every", "log_every")


def _stored_steps(config: TrainerConfig) -> int | None:
    """Return the number of steps of the run that the output folder holds."""
    try:
        stored = json.loads((config.output / "config.json").read_text(encoding="utf-8"))
        return int(stored["trainer"]["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _timed(task: Task, data: Images, config: TrainerConfig) -> tuple[float, float]:
    """Return seconds per step, and the loss of the first samples, without a change of the weights."""
    network = task.network
    move = getattr(task, "to", network.to)  # of a task with more modules
    home = next(network.parameters()).device
    device = torch.device("cpu" if config.cpu else resolve_device())
    count = min(_TIMED, config.batch_size)
    images, items = load_samples(data, config.seed, list(range(count)))
    move(device)
    network.train()
    with torch.random.fork_rng():
        loss, start = _step(task, images.to(device), items)
        taken, last = 0, start
        while taken == 0 or (taken < 3 and last - start < _PATIENCE):
            _, last = _step(task, images.to(device), items)
            taken += 1
    network.zero_grad(set_to_none=True)
    move(home)
    return (last - start) / taken * config.batch_size / count, loss


def _step(task: Task, images: Tensor, items: Sequence[int]) -> tuple[float, float]:
    """Return the loss of a forward and a backward pass, and the time after it."""
    loss = task.loss(images, items).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), time.perf_counter()
