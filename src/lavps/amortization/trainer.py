r"""Training: one loop for priors, inference models and conditional denoisers, on one CPU or many GPUs.

AdamW on the mean of a task's loss, the learning rate warmed up linearly, then a cosine; the weights one uses
are their running average (:class:`~lavps.amortization.ema.Ema`).

A sample is known by its item, ``step * batch_size + position``, and everything random about it is a function
of (seed, item). So W processes compute what one computes (up to the rounding of a sum), and a run resumed
from its last checkpoint continues bit for bit (networks with dropout excepted: it draws as it pleases).
Start several processes with ``torchrun`` or ``accelerate launch``; they must share the output folder.
"""

from __future__ import annotations

__all__ = ["TrainerConfig", "TrainingResult", "learning_rate_at", "train"]

import json
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from .checkpoint import RunState, load_run, save_run, write_json
from .data import Images, load_samples, shards
from .ema import Ema
from .journal import Journal
from .preview import save_grid
from .task import Task

# What may differ between a run and its continuation: it changes no number beyond rounding.
_FREE = {"output", "accumulate", "log_every", "validate_every", "checkpoint_every", "preview_every"}
_FREE |= {"num_workers", "cpu", "tensorboard"}


@dataclass(frozen=True)
class TrainerConfig:
    """How to train."""

    output: Path  # folder of the run: checkpoints, logs, previews
    steps: int = 100_000  # optimiser steps
    batch_size: int = 64  # samples a step, over all processes and accumulated pieces
    learning_rate: float = 2e-4  # at its highest
    weight_decay: float = 0.01  # AdamW's, for tensors of two dimensions or more
    warmup_steps: int = 500  # steps until the learning rate is at its highest
    final_lr_fraction: float = 0.05  # where the learning rate ends, as a fraction of its highest
    cooldown_steps: int | None = None  # last steps, in which it falls; default all, by a cosine
    ema_decay: float = 0.9999  # beta of the averaged weights
    clip_norm: float = 1.0  # largest norm of the gradient
    precision: Literal["no", "bf16"] = "no"  # bf16: autocast; weights, average and optimiser stay float32
    accumulate: int = 1  # pieces a batch is cut into, to save memory
    log_every: int = 50  # steps between lines of log.jsonl
    validate_every: int = 1000  # steps between validations
    checkpoint_every: int = 1000  # steps between checkpoints
    preview_every: int = 5000  # steps between previews
    seed: int = 0  # of all that is random
    num_workers: int = 0  # loader processes; 0 loads in the training process
    cpu: bool = False  # train on the CPU even where there is a GPU
    tensorboard: bool = True  # write TensorBoard's files too, where it is installed

    def __post_init__(self) -> None:
        every = (self.log_every, self.validate_every, self.checkpoint_every, self.preview_every)
        counts = (self.steps, self.batch_size, self.accumulate, self.cooldown_steps or 1, *every)
        if min(counts) < 1 or not 0 <= self.ema_decay < 1:
            raise ValueError(f"counts must be at least 1 and ema_decay in [0, 1): {self}")


@dataclass(frozen=True)
class TrainingResult:
    """Attributes: steps taken, loss of the last one, last validation, whether this is process 0."""

    step: int
    loss: float
    validation: dict[str, Any]
    is_main: bool


def learning_rate_at(config: TrainerConfig, step: int) -> float:
    """The learning rate of step 0, 1, ...: linear warm-up, then a cosine down to its final fraction.

    With ``cooldown_steps`` it stays there and falls linearly at the end. Until then such a run may be
    given more steps, or fewer: up to there they are the same run.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.cooldown_steps is not None:
        height = min(1.0, (config.steps - step) / config.cooldown_steps)
    else:
        progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
        height = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return config.learning_rate * (config.final_lr_fraction + (1.0 - config.final_lr_fraction) * height)


def _may_end_elsewhere(old: Mapping[str, Any], new: Mapping[str, Any], step: int) -> bool:
    """Whether runs of these settings are the same up to this step, however many steps they have."""
    cooldown = new["trainer"]["cooldown_steps"]
    ends = [setup["trainer"]["steps"] for setup in (old, new)]
    return cooldown is not None and step <= min(ends) - cooldown


class _Loss(nn.Module):
    """The loss as a module, so that the wrappers of distributed training and autocast see one forward."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self._loss = task.network, task.loss

    def forward(self, images: Tensor, items: Sequence[int]) -> Tensor:
        return self._loss(images, items)


def _accelerator(config: TrainerConfig) -> Any:
    try:
        from accelerate import Accelerator, InitProcessGroupKwargs  # type: ignore[import-untyped]
        from accelerate.state import AcceleratorState  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError('training needs accelerate: pip install "lavps[train]"') from error
    AcceleratorState._reset_state()  # else a second run in this process could not choose its precision
    has_device = torch.cuda.is_available() or torch.backends.mps.is_available() or torch.xpu.is_available()
    return Accelerator(
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulate,
        cpu=config.cpu or not has_device,
        # The other processes wait while process 0 validates and draws previews.
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=4))],
    )


class _Run:
    """A run under way: weights, their average, the optimiser, and the counters that go to checkpoints."""

    def __init__(self, task: Task, data: Images, config: TrainerConfig) -> None:
        self.task, self.config, self.network = task, config, task.network
        self.accelerator = _accelerator(config)
        self.device = self.accelerator.device
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        # Matrices first: the order of the optimiser's own numbering of its parameters.
        self.names = sorted(trained, key=lambda name: trained[name].ndim < 2)
        groups = [
            {"params": [p for p in trained.values() if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in trained.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.99), fused=True)
        self.module, self.optimizer = self.accelerator.prepare(_Loss(task), self.adam)
        if hasattr(task, "to"):
            task.to(self.device)
        self.network.train()
        self.ema = Ema(self.network, config.ema_decay)
        self.step, self.loss, self.validation = 0, math.nan, dict[str, Any]()
        self.window = [0.0, 0]  # sum and number of the losses since the last line of the log
        settings = {key: value for key, value in asdict(config).items() if key not in _FREE}
        about = data.describe() if hasattr(data, "describe") else {"count": len(data)}
        self.setup = {"trainer": settings, "task": task.describe(), "data": about}
        self.folder = config.output / "checkpoints"
        if (state := load_run(self.folder, self.setup, _may_end_elsewhere)) is not None:
            self._restore(state)

    def _restore(self, state: RunState) -> None:
        parts: dict[str, dict[str, Tensor]] = {"network": {}, "ema": {}}
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state.tensors.items():
            part, name = key.split("/", 1)
            if part in parts:
                parts[part][name] = value.to(self.device)
            else:
                # In the layout of its parameter: the fused optimiser pairs their entries by address.
                placed = (
                    value
                    if part == "step"
                    else torch.empty_like(self.network.get_parameter(name)).copy_(value)
                )
                moments.setdefault(self.names.index(name), {})[part] = placed.detach()
        self.network.load_state_dict(parts["network"])
        self.ema.weights = parts["ema"]
        self.adam.load_state_dict({"state": moments, "param_groups": self.adam.state_dict()["param_groups"]})
        self.step = state.step
        self.loss, self.window, self.validation = state.counters

    def save(self) -> None:
        """A checkpoint, by process 0."""
        if self.accelerator.is_main_process:
            tensors = {f"network/{name}": value for name, value in self.network.state_dict().items()}
            tensors |= {f"ema/{name}": value for name, value in self.ema.weights.items()}
            for number, moments in self.adam.state_dict()["state"].items():
                tensors |= {f"{key}/{self.names[number]}": value for key, value in moments.items()}
            counters = [self.loss, self.window, self.validation]
            save_run(self.folder, RunState(self.step, tensors, self.setup, counters))

    def is_due(self, every: int) -> bool:
        """Whether something done ``every`` so many steps, and at the end, is due now."""
        return self.step % every == 0 or self.step == self.config.steps

    def look(self, journal: Journal, data: Images | None) -> None:
        """Validation and preview, with the averaged weights, where they are due."""
        if data is not None and self.is_due(self.config.validate_every):
            images = torch.stack([data[index] for index in range(len(data))]).to(self.device)
            with self.ema.applied(self.network):
                found = json.dumps(self.task.validate(images))
            # The mean of an empty bin is NaN, which is not JSON.
            self.validation = json.loads(found, parse_constant=lambda _: None)
            journal.write(self.step, {f"validation/{k}": v for k, v in self.validation.items()})
        if self.is_due(self.config.preview_every):
            with self.ema.applied(self.network):
                grid = self.task.preview()
            if grid is not None:
                save_grid(grid, self.config.output / "previews" / f"step-{self.step:09d}.png")

    def report(self, journal: Journal, numbers: dict[str, float], seconds: float) -> None:
        """A line of the log: means since the last one."""
        total, count = self.window
        speed = count * self.config.batch_size / seconds
        journal.write(self.step, {"loss": total / count, **numbers, "images_per_second": speed})
        self.window = [0.0, 0]

    def advance(
        self, batches: Iterator[tuple[Tensor, list[int]]], stop: bool
    ) -> tuple[dict[str, float], bool]:
        """One step of the optimiser; the numbers of it, and whether any process wants to stop."""
        rate = learning_rate_at(self.config, self.step)
        for group in self.adam.param_groups:
            group["lr"] = rate
        report, norm = torch.tensor([0.0, float(stop)], device=self.device), torch.zeros(())
        for _ in range(self.config.accumulate):
            images, items = next(batches)
            with self.accelerator.accumulate(self.module):
                loss = self.module(images.to(self.device, non_blocking=True), items).mean()
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    norm = self.accelerator.clip_grad_norm_(self.network.parameters(), self.config.clip_norm)
                self.optimizer.step()
                self.optimizer.zero_grad()
            report[0] += loss.detach() / self.config.accumulate
        self.ema.update(self.network, self.step)
        self.step += 1
        self.loss, stops = self.accelerator.reduce(report, "mean").tolist()
        if not math.isfinite(self.loss):
            raise FloatingPointError(f"the loss is {self.loss} at step {self.step}: lower the learning rate?")
        self.window = [self.window[0] + self.loss, self.window[1] + 1]
        return {"lr": rate, "grad_norm": float(norm)}, stops > 0


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM wait until the step is complete; a second Ctrl-C does not."""
    event, old = threading.Event(), dict[int, Any]()

    def note(number: int, _: object) -> None:
        event.set()
        signal.signal(number, old[number])

    if threading.current_thread() is threading.main_thread():
        old |= {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def train(
    task: Task, data: Images, config: TrainerConfig, validation_data: Images | None = None
) -> TrainingResult:
    """Train ``task.network``, resuming from the output folder's last checkpoint if there is one.

    Args:
        task: what to train. Its network ends in eval mode with the averaged weights.
        data: the images.
        config: how to train. A run of other settings in the output folder is refused.
        validation_data: images to validate on, all at once.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM; the checkpoint has been written.
    """
    run = _Run(task, data, config)
    ranks = (run.accelerator.process_index, run.accelerator.num_processes)
    loader: DataLoader[Any] = DataLoader(
        range(config.steps * config.batch_size),  # type: ignore[arg-type]
        batch_sampler=shards(range(run.step, config.steps), config.batch_size, *ranks, config.accumulate),
        collate_fn=partial(load_samples, data, config.seed),
        num_workers=config.num_workers,
        pin_memory=run.device.type == "cuda",
        generator=torch.Generator(),  # so that torch's own is left alone
    )
    journal = None
    if run.accelerator.is_main_process:
        write_json(config.output / "config.json", run.setup | {"trainer": asdict(config)})
        journal = Journal(config.output, config.tensorboard, run.step)
    bar = tqdm(total=config.steps, initial=run.step, disable=None if journal else True, unit="step")
    with _interrupts() as interrupted, bar:
        batches, clock = iter(loader), time.perf_counter()  # here, so that its processes too ignore Ctrl-C
        while run.step < config.steps:
            numbers, stopped = run.advance(batches, interrupted.is_set())
            bar.update()
            bar.set_postfix(loss=f"{run.loss:.4g}", refresh=False)
            if journal is not None:
                if run.is_due(config.log_every):
                    run.report(journal, numbers, time.perf_counter() - clock)
                    clock = time.perf_counter()
                run.look(journal, validation_data)
            if stopped or run.is_due(config.checkpoint_every):
                run.save()
            if stopped and run.step < config.steps:
                raise KeyboardInterrupt(f"stopped after step {run.step}: run again to continue")
    run.network.load_state_dict(run.ema.weights)
    run.network.eval()
    run.accelerator.wait_for_everyone()
    return TrainingResult(run.step, run.loss, run.validation, run.accelerator.is_main_process)
