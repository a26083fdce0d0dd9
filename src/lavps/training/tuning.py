r"""Learned schedules (:class:`~lavps.samplers.tuned.TunedPIR`), by gradients through the sampler.

The loss is the score of two samples of each image (:mod:`lavps.training.scores`). The network is frozen; a
schedule of K evaluations has 5 K - 3 numbers, and as many slopes for each property of the problem that it
depends on (:class:`~lavps.data_step.schedule_numbers.Trend`). With several tasks, a step takes one of them,
and its score counts relative to that of the initial schedule.
"""

from __future__ import annotations

__all__ = ["Tuning", "TuningConfig", "tune"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from ..data_step import LARGEST_LEVEL
from ..data_step.schedule_numbers import Properties, ScheduleNumbers, Trend, as_tensors, rounded
from ..operators.families import OperatorFamily
from ..priors import CountingPrior, Prior
from ..priors.protocol import WrappedPrior
from ..random import NoiseStreams
from ..samplers.base import Run
from ..samplers.diffpir import WienerPIR
from ..samplers.tuned import TunedPIR
from .scores import score_of, simulate_family

_VALIDATION_SEED = 1 << 30
_SMALLEST_RATIO = 0.02  # of the logarithms of neighbouring noise levels
_SLOPE_RATE = 0.4  # learning rate of slopes relative to that of numbers
_PROPERTY_ITEMS = 16  # problems per task from which the range of their properties is known


@dataclass(frozen=True)
class TuningConfig:
    """Options of a tuning.

    Attributes:
        iterations: Number of optimizer steps.
        batch_size: Images per step, each with two samples.
        learning_rate: Peak learning rate of Adam, with cosine decay.
        validate_every: Steps between validations; the numbers of the best one are kept.
        seed: Seed of images, operators and noise.
        trends: Whether the numbers depend on the problem: for several tasks or noise levels.
        checkpointing: Whether activations of the denoiser are recomputed instead of stored.
        progress: Whether a progress bar is shown.
    """

    iterations: int = 100
    batch_size: int = 2
    learning_rate: float = 0.05
    validate_every: int = 20
    seed: int = 0
    trends: bool = False
    checkpointing: bool = False
    progress: bool = False


@dataclass(frozen=True)
class Tuning:
    """Result of a tuning.

    Attributes:
        sampler: Sampler with the learned schedule.
        before: Validation score of the initial schedule, that of WienerPIR.
        after: Validation score of the learned schedule.
        losses: Training loss of every step.
        validation: Validation scores, by step.
    """

    sampler: TunedPIR
    before: float
    after: float
    losses: list[float] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)


class _Checkpointed(WrappedPrior):
    """A prior whose activations are recomputed for the gradient."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        x_0: Tensor = checkpoint(self.prior.denoise, x_t, t, use_reentrant=False)
        return x_0


class _Parameters(torch.nn.Module):
    """Free parameters of a schedule: its levels descend, whatever their values.

    Args:
        start: Initial schedule.
        trends: Trends with the ranges of the problems' properties; empty for a constant schedule.
    """

    def __init__(self, start: TunedPIR, trends: Sequence[Trend] = ()) -> None:
        super().__init__()
        numbers = as_tensors(start)
        logs = numbers.levels.log()
        self.first = torch.nn.Parameter(logs[0])
        gaps = (logs[:-1] - logs[1:] - _SMALLEST_RATIO).clamp(min=1e-3)
        self.gaps = torch.nn.Parameter(_inverse_softplus(gaps))
        self.data = torch.nn.Parameter(numbers.data_levels.log())
        self.relaxations = torch.nn.Parameter(numbers.relaxations)
        self.kept = torch.nn.Parameter(numbers.kept)
        self.fresh = torch.nn.Parameter(numbers.fresh)
        self.ranges = tuple(trends)
        self.slopes = torch.nn.ParameterList(part for trend in trends for part in as_tensors(trend))

    def _slopes(self) -> list[ScheduleNumbers]:
        parts = list(self.slopes)
        return [ScheduleNumbers(*parts[i : i + 5]) for i in range(0, len(parts), 5)]

    def base(self) -> ScheduleNumbers:
        """Return the numbers at the references of the trends, differentiable."""
        falls = (F.softplus(self.gaps) + _SMALLEST_RATIO).cumsum(0)
        levels = torch.cat([self.first.reshape(1), self.first - falls]).exp().clamp(max=LARGEST_LEVEL)
        return ScheduleNumbers(levels, self.data.exp(), self.relaxations, self.kept, self.fresh)

    def numbers(self, properties: Properties | None) -> ScheduleNumbers:
        """Return the numbers for problems with these properties, differentiable."""
        found = self.base()
        if properties is None:
            return found
        for trend, slopes, value in zip(self.ranges, self._slopes(), properties, strict=True):
            found = found.changed(slopes, trend.change(value))
        return found.ordered()

    def sampler(self, start: TunedPIR) -> TunedPIR:
        """Return the sampler with the present numbers."""
        pairs = zip(("by_noise", "by_unobserved"), self.ranges, self._slopes(), strict=False)
        learned: dict[str, Any] = rounded(self.base())
        for name, trend, slopes in pairs:
            slopes_by_name: dict[str, Any] = rounded(slopes)
            learned[name] = replace(trend, **slopes_by_name)
        return replace(start, **learned)


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


def tune(
    initial: WienerPIR,
    images: Callable[[Sequence[int]], Tensor],
    validation: Tensor,
    families: OperatorFamily | Sequence[OperatorFamily],
    noise: tuple[float, float],
    config: TuningConfig | None = None,
    perceptual: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tuning:
    """Learn the schedule of a sampler.

    Args:
        initial: Sampler whose schedule is the initial one, with its prior and number of evaluations.
        images: Function of sample numbers that returns training images (B, C, H, W).
        validation: Validation images (B, C, H, W).
        families: Distribution of the operators, one for each task.
        noise: Lowest and highest standard deviation of the noise, drawn log-uniformly.
        config: Options.
        perceptual: Differentiable distance (B,) of two batches of images, added to the score.
    """
    config = config or TuningConfig()
    tasks = [families] if isinstance(families, OperatorFamily) else list(families)
    prior: Prior = _Checkpointed(initial.prior) if config.checkpointing else initial.prior
    start = TunedPIR.like(initial)
    loss = _ScheduleLoss(start, prior, noise, perceptual)
    if config.trends:
        trends = loss.ranges(validation[:_PROPERTY_ITEMS], tasks)
        zeros: dict[str, Any] = {
            name: tuple(0.0 for _ in values) for name, values in rounded(as_tensors(start)).items()
        }
        loss.depend, parameters = True, _Parameters(start, [Trend(*ends, **zeros) for ends in trends])
    else:
        parameters = _Parameters(start)
    slopes = {id(parameter) for parameter in parameters.slopes}
    groups = [
        {"params": [p for p in parameters.parameters() if id(p) not in slopes], "lr": config.learning_rate},
        {"params": list(parameters.slopes), "lr": _SLOPE_RATE * config.learning_rate},
    ]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], betas=(0.9, 0.95))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / config.iterations)
    )

    def validated() -> list[float]:
        """Return the score of every task."""
        parts = torch.split(torch.arange(len(validation)), config.batch_size)
        with torch.no_grad():
            scores = [
                [loss(parameters, validation[p], p.tolist(), task, _VALIDATION_SEED) for p in parts]
                for task in tasks
            ]
        return [float(torch.cat(found).mean()) for found in scores]

    references = validated()
    relative = [1.0] if len(tasks) == 1 else references

    def overall(scores: list[float]) -> float:
        return sum(score / unit for score, unit in zip(scores, relative, strict=True)) / len(tasks)

    before = after = overall(references)
    best = parameters.sampler(start)
    losses: list[float] = []
    history = {0: before}
    with tqdm(total=config.iterations, desc="tune", disable=not config.progress, unit="step") as bar:
        for step in range(config.iterations):
            items = range(step * config.batch_size, (step + 1) * config.batch_size)
            task = step % len(tasks)
            value = loss(parameters, images(items), items, tasks[task], config.seed).mean() / relative[task]
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters.parameters(), 1.0)
            if all(bool(p.grad.isfinite().all()) for p in parameters.parameters() if p.grad is not None):
                optimizer.step()
            rate.step()
            losses.append(float(value.detach()))
            if (step + 1) % config.validate_every == 0 or step + 1 == config.iterations:
                history[step + 1] = score = overall(validated())
                if score < after:
                    after, best = score, parameters.sampler(start)
            bar.update()
            bar.set_postfix(score=f"{after:.4f}", before=f"{before:.4f}")
    return Tuning(best, before, after, losses, history)


@dataclass
class _ScheduleLoss:
    """The loss of a schedule, (B,), on measurements of a batch of images."""

    start: TunedPIR
    prior: Prior
    noise: tuple[float, float]
    perceptual: Callable[[Tensor, Tensor], Tensor] | None
    depend: bool = False

    def __call__(
        self, parameters: _Parameters, truth: Tensor, items: Sequence[int], family: OperatorFamily, seed: int
    ) -> Tensor:
        run = self._run(truth, items, family, seed)
        *_, last = self.start.steps_with(run, parameters.numbers, self.depend)
        return score_of(last.x_0, truth, run.measured, self.perceptual)

    def ranges(self, truth: Tensor, families: Sequence[OperatorFamily]) -> list[tuple[float, float, float]]:
        """Return the middle, lowest and highest value of every property of the tasks' problems."""
        found: list[Properties] = []
        for family in families:
            run = self._run(truth, range(len(truth)), family, _VALIDATION_SEED)
            found.append(self.start.properties(run))
        values = [torch.cat(parts) for parts in zip(*found, strict=True)]
        return [(float((v.min() * v.max()).sqrt()), float(v.min()), float(v.max())) for v in values]

    def _run(self, truth: Tensor, items: Sequence[int], family: OperatorFamily, seed: int) -> Run:
        """Return a run with two samples of every image."""
        problem = simulate_family(truth, items, family, self.noise, seed)
        return Run(
            CountingPrior(self.prior), problem.repeat(2), NoiseStreams.from_seed(len(truth), seed, items, 2)
        )
