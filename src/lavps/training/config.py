"""Settings of a training run, and the learning rate that follows from them."""

from __future__ import annotations

__all__ = ["FREE", "TrainerConfig", "learning_rate_at", "may_end_elsewhere"]

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

# Settings that may differ between a run and its continuation: they change results by rounding only.
FREE = {"output", "accumulate", "log_every", "validate_every", "checkpoint_every", "preview_every"}
FREE |= {"num_workers", "cpu", "tensorboard", "export_decay", "compile"}


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of a training run."""

    output: Path  # Folder of the run: checkpoints, logs, previews
    steps: int = 100_000  # Number of optimizer steps
    batch_size: int = 64  # Samples per step, over all processes and accumulated pieces
    learning_rate: float = 2e-4  # Peak learning rate
    weight_decay: float = 0.01  # Weight decay of AdamW, for tensors of two dimensions or more
    warmup_steps: int = 500  # Steps of the linear warm-up of the learning rate
    final_lr_fraction: float = 0.05  # Final learning rate as a fraction of its peak
    # Last steps, in which the rate falls linearly; default a cosine
    cooldown_steps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    # Decay of the averaged weights; several give one average each, of which the best is exported
    ema_decay: Annotated[float | tuple[float, ...], tyro.conf.arg(metavar="DECAY ...")] = 0.9999
    # Decay of the exported average; default that of the lowest validation loss, or the first
    export_decay: Annotated[float | None, tyro.conf.arg(metavar="DECAY", help_behavior_hint="")] = None
    clip_norm: float = 1.0  # Maximum norm of the gradient
    precision: Literal["no", "bf16"] = "no"  # bf16: autocast; weights, average and optimizer stay float32
    compile: bool = False  # torch.compile of the network: a slow first step, then faster ones
    accumulate: int = 1  # Pieces of a batch processed one after the other, to save memory
    log_every: int = 50  # Steps between lines of log.jsonl
    validate_every: int = 1000  # Steps between validations
    checkpoint_every: int = 1000  # Steps between checkpoints
    preview_every: int = 5000  # Steps between previews
    seed: int = 0  # Seed of all randomness
    num_workers: int = 0  # Loader processes; 0 loads in the training process
    cpu: bool = False  # Training on the CPU even if there is a GPU
    tensorboard: bool = True  # TensorBoard files, if it is installed

    def __post_init__(self) -> None:
        every = (self.log_every, self.validate_every, self.checkpoint_every, self.preview_every)
        counts = (self.steps, self.batch_size, self.accumulate, self.cooldown_steps or 1, *every)
        if isinstance(self.ema_decay, tuple) and len(self.ema_decay) == 1:
            object.__setattr__(self, "ema_decay", self.ema_decay[0])
        decays = self.decays
        if min(counts) < 1 or not all(0 <= decay < 1 for decay in decays):
            raise ValueError(f"counts must be at least 1 and ema_decay in [0, 1): {self}")
        if not decays or len(set(decays)) < len(decays):
            raise ValueError(f"ema_decay must be one number or several distinct ones, got {decays}")
        if self.export_decay is not None and self.export_decay not in decays:
            raise ValueError(f"export_decay must be a value of ema_decay, {decays}, got {self.export_decay}")

    @property
    def decays(self) -> tuple[float, ...]:
        """Decays of all averages of the weights."""
        return self.ema_decay if isinstance(self.ema_decay, tuple) else (self.ema_decay,)


def learning_rate_at(config: TrainerConfig, step: int) -> float:
    """Return the learning rate of step 0, 1, ...: linear warm-up, then a cosine to its final fraction.

    With ``cooldown_steps`` the rate stays at its peak and falls linearly at the end. Before the cooldown,
    the number of steps of such a run may be changed.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.cooldown_steps is not None:
        height = min(1.0, (config.steps - step) / config.cooldown_steps)
    else:
        progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
        height = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_lr_fraction + (1.0 - config.final_lr_fraction) * height)


def may_end_elsewhere(old: Mapping[str, Any], new: Mapping[str, Any], step: int) -> bool:
    """Return whether runs of these settings agree up to this step, whatever their numbers of steps."""
    cooldown = new["trainer"]["cooldown_steps"]
    ends = [setup["trainer"]["steps"] for setup in (old, new)]
    return cooldown is not None and step <= min(ends) - cooldown
