r"""The training loop of priors, inference models and conditional denoisers, on one CPU or many GPUs.

AdamW minimizes the mean of a task's loss; the learning rate is warmed up linearly, then follows a cosine. The
result is the running average of the weights (:class:`~lavps.training.ema.Ema`). With several decays it is the
average of the lowest validation loss.

A sample is identified by its item, ``step * batch_size + position``, and all its randomness is a function of
(seed, item). So W processes compute the same as one (up to rounding of a sum), and a resumed run continues
bit for bit from its last checkpoint (except for networks with dropout). Start several processes with
``torchrun`` or ``accelerate launch``; they must share the output folder.
"""

from __future__ import annotations

__all__ = ["TrainerConfig", "TrainingResult", "learning_rate_at", "train"]

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from ..devices import keep_freed_memory, resolve_device
from ..extras import require
from ..io.atomic import claim, write_json
from .config import FREE, TrainerConfig, learning_rate_at, may_end_elsewhere
from .data import Images, load_samples, shards
from .ema import Averages, Ema
from .logger import TrainingLogger
from .preview import save_grid
from .run_state import RunState, load_run, save_run
from .task import Task


@dataclass(frozen=True)
class TrainingResult:
    """Number of steps, loss of the last step, last validation, process 0 or not, decay of the average."""

    step: int
    loss: float
    validation: dict[str, Any]
    is_main: bool
    ema_decay: float


class _Loss(nn.Module):
    """The loss as a module, as the wrappers of distributed training and autocast require."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network, self._loss = task.network, task.loss

    def forward(self, images: Tensor, items: Sequence[int]) -> Tensor:
        return self._loss(images, items)


def _accelerator(config: TrainerConfig) -> Any:
    accelerate = require("accelerate", "train", "training needs accelerate")
    accelerate.state.AcceleratorState._reset_state()  # allows another precision in a second run here
    return accelerate.Accelerator(
        mixed_precision=config.precision,
        gradient_accumulation_steps=config.accumulate,
        cpu=config.cpu or resolve_device() == "cpu",
        # The other processes wait while process 0 validates and writes previews.
        kwargs_handlers=[accelerate.InitProcessGroupKwargs(timeout=timedelta(hours=4))],
    )


class _TrainingRun:
    """A run in progress: weights, their average, the optimizer, and the counters of checkpoints."""

    def __init__(self, task: Task, data: Images, config: TrainerConfig) -> None:
        self.task, self.config, self.network = task, config, task.network
        self.accelerator = _accelerator(config)
        self.device = self.accelerator.device
        if self.device.type == "cpu":
            keep_freed_memory()
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        # Matrices first: the order in which the optimizer numbers its parameters.
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
        if config.compile:
            self.network.compile(dynamic=False)
        self.averages = Averages(self.network, config.decays, config.export_decay)
        self.step, self.loss = 0, math.nan
        self.window = [0.0, 0]  # sum and count of the losses since the last line of the log
        settings = {key: value for key, value in asdict(config).items() if key not in FREE}
        about = data.describe() if hasattr(data, "describe") else {"count": len(data)}
        self.setup = {"trainer": settings, "task": task.describe(), "data": about}
        self.folder = config.output / "checkpoints"
        if (state := load_run(self.folder, self.setup, may_end_elsewhere)) is not None:
            self._restore(state)

    def _restore(self, state: RunState) -> None:
        parts: dict[str, dict[str, Tensor]] = {name: {} for name in ("network", *self.averages.members)}
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in state.tensors.items():
            part, name = key.split("/", 1)
            if part in parts:
                parts[part][name] = value.to(self.device)
            else:
                # In the layout of its parameter: the fused optimizer pairs their entries by address.
                if part != "step":
                    value = torch.empty_like(self.network.get_parameter(name)).copy_(value)
                moments.setdefault(self.names.index(name), {})[part] = value.detach()
        self.network.load_state_dict(parts["network"])
        for name, ema in self.averages.members.items():
            ema.weights = parts[name]
        self.adam.load_state_dict({"state": moments, "param_groups": self.adam.state_dict()["param_groups"]})
        self.step = state.step
        self.loss, self.window, self.averages.validations = state.counters

    def save(self) -> None:
        """Write a checkpoint in process 0."""
        if self.accelerator.is_main_process:
            tensors = {f"network/{name}": value for name, value in self.network.state_dict().items()}
            for part, ema in self.averages.members.items():
                tensors |= {f"{part}/{name}": value for name, value in ema.weights.items()}
            for number, moments in self.adam.state_dict()["state"].items():
                tensors |= {f"{key}/{self.names[number]}": value for key, value in moments.items()}
            counters = [self.loss, self.window, self.averages.validations]
            save_run(self.folder, RunState(self.step, tensors, self.setup, counters))

    def chosen(self) -> Ema:
        """Return the average to export: in every process the choice of process 0, which validates."""
        own = self.averages.choice if self.accelerator.is_main_process else 0
        index = self.accelerator.reduce(torch.tensor([float(own)], device=self.device), "sum")
        return list(self.averages.members.values())[int(index)]

    def is_due(self, every: int) -> bool:
        """Return whether an action of every ``every`` steps, and at the end, is due."""
        return self.step % every == 0 or self.step == self.config.steps

    def look(self, journal: TrainingLogger, data: Images | None) -> None:
        """Validate and write a preview with the averaged weights, where due."""
        # Their batch sizes are not compiled: that would take longer than a few evaluations.
        with torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext():
            self._look(journal, data)

    def _look(self, journal: TrainingLogger, data: Images | None) -> None:
        if data is not None and self.is_due(self.config.validate_every):
            images = torch.stack([data[index] for index in range(len(data))]).to(self.device)
            self.averages.validate(self.network, lambda: self.task.validate(images))
            journal.write(self.step, {f"validation/{k}": v for k, v in self.averages.record().items()})
        if self.is_due(self.config.preview_every):
            with self.averages.chosen.applied(self.network):
                grid = self.task.preview()
            if grid is not None:
                save_grid(grid, self.config.output / "previews" / f"step-{self.step:09d}.png")

    def report(self, journal: TrainingLogger, numbers: dict[str, float], seconds: float) -> None:
        """Write a line of the log with means since the last one."""
        total, count = self.window
        speed = count * self.config.batch_size / seconds
        journal.write(self.step, {"loss": total / count, **numbers, "images_per_second": speed})
        self.window = [0.0, 0]

    def advance(
        self, batches: Iterator[tuple[Tensor, list[int]]], stop: bool
    ) -> tuple[dict[str, float], bool]:
        """Take one optimizer step; return its metrics and whether any process was interrupted."""
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
        self.averages.update(self.network, self.step)
        self.step += 1
        self.loss, stops = self.accelerator.reduce(report, "mean").tolist()
        if not math.isfinite(self.loss):
            raise FloatingPointError(f"the loss is {self.loss} at step {self.step}: lower the learning rate?")
        self.window = [self.window[0] + self.loss, self.window[1] + 1]
        return {"lr": rate, "grad_norm": float(norm)}, stops > 0


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Defer Ctrl-C and SIGTERM until the step is complete; a second Ctrl-C is immediate."""
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
        task: Task whose network is trained; it ends in eval mode with the averaged weights.
        data: Training images.
        config: Settings. An output folder with a run of other settings raises an error.
        validation_data: Validation images, evaluated in one batch.

    Raises:
        KeyboardInterrupt: After Ctrl-C or SIGTERM; the checkpoint has been written.
    """
    is_first = int(os.environ.get("RANK", 0)) == 0
    with claim(config.output / "run.lock", wait=False) if is_first else nullcontext(True) as is_free:
        if not is_free:
            raise ValueError(f"another training is running in {config.output}")
        return _train(task, data, config, validation_data)


def _train(task: Task, data: Images, config: TrainerConfig, validation_data: Images | None) -> TrainingResult:
    run = _TrainingRun(task, data, config)
    ranks = (run.accelerator.process_index, run.accelerator.num_processes)
    loader: DataLoader[Any] = DataLoader(
        range(config.steps * config.batch_size),  # type: ignore[arg-type]
        batch_sampler=shards(range(run.step, config.steps), config.batch_size, *ranks, config.accumulate),
        collate_fn=partial(load_samples, data, config.seed),
        num_workers=config.num_workers,
        pin_memory=run.device.type == "cuda",
        generator=torch.Generator(),  # keeps torch's global generator unchanged
    )
    journal = None
    if run.accelerator.is_main_process:
        write_json(config.output / "config.json", run.setup | {"trainer": asdict(config)})
        journal = TrainingLogger(config.output, config.tensorboard, run.step)
    bar = tqdm(total=config.steps, initial=run.step, disable=None if journal else True, unit="step")
    with _interrupts() as interrupted, bar:
        batches, clock = iter(loader), time.perf_counter()  # here, so that its processes ignore Ctrl-C
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
    chosen = run.chosen()
    run.network.load_state_dict(chosen.weights)
    run.network.eval()
    run.accelerator.wait_for_everyone()
    is_main = run.accelerator.is_main_process
    return TrainingResult(run.step, run.loss, run.averages.record(), is_main, chosen.decay)
