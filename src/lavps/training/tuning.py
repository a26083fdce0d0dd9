r"""Learned schedules (:class:`~lavps.samplers.tuned.TunedPIR`), by gradients through the sampler.

Images are measured with operators and noise levels drawn at random, two samples are drawn for each, and the
loss is a proper score of both: for samples :math:`x^1, x^2` of the true image :math:`x`,

.. math:: \tfrac12 (|x - x^1| + |x - x^2|) - \tfrac12 |x^1 - x^2|,

as the mean over pixels (CRPS) plus the mean over patches of 8 x 8 pixels (energy score, with the root mean
square of a patch as its norm). The CRPS alone does not depend on the correlation of pixels. The network is
frozen; a schedule of K evaluations has 5 K - 3 numbers, and as many slopes for each property of the problem
that it depends on (:class:`~lavps.data_step.schedule_numbers.Trend`). Neither score is sensitive to the fit
of the measurement, so the squared logarithm of chi-square is added, with a small weight. A perceptual
distance, such as LPIPS, can be added as the mean over both samples: it is not a proper score, and favours
sharpness. With several tasks, a step takes one of them, and its score counts relative to that of the initial
schedule.

References:
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
"""

from __future__ import annotations

__all__ = ["Tuning", "TuningConfig", "sample_score", "simulate_family", "tune"]

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
from ..noise import GaussianNoise
from ..operators.families import OperatorFamily
from ..priors import CountingPrior, Prior
from ..priors.protocol import WrappedPrior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers.base import Run
from ..samplers.diffpir import WienerPIR
from ..samplers.tuned import TunedPIR

_PATCH = 8
_MISFIT_WEIGHT = 0.02
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


def sample_score(samples: Tensor, truth: Tensor) -> Tensor:
    """Return the score of two samples of each image, differentiable, shape (B,); lower is better.

    Args:
        samples: Samples (B, 2, C, H, W).
        truth: True images (B, C, H, W).
    """

    def size(difference: Tensor) -> Tensor:
        pixels = difference.abs().flatten(1).mean(1)
        mean_square = F.avg_pool2d(difference.square().mean(1, keepdim=True), min(_PATCH, *truth.shape[2:]))
        return pixels + (mean_square + 1e-12).sqrt().flatten(1).mean(1)

    first, second = samples[:, 0], samples[:, 1]
    return 0.5 * (size(first - truth) + size(second - truth)) - 0.5 * size(first - second)


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
        samples = last.x_0.reshape(len(truth), 2, *truth.shape[1:])
        chi_square = run.measured.chi_square(last.x_0).reshape(-1, 2).mean(1)
        score = sample_score(samples, truth) + _MISFIT_WEIGHT * chi_square.clamp(min=1e-6).log().square()
        if self.perceptual is None:
            return score
        distances = self.perceptual(samples.flatten(0, 1), truth.repeat_interleave(2, dim=0))
        return score + distances.reshape(-1, 2).mean(1).to(score)

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


def simulate_family(
    truth: Tensor, items: Sequence[int], family: OperatorFamily, noise: tuple[float, float], seed: int
) -> InverseProblem:
    """Measure images with an operator and a noise level of their own, functions of (seed, item)."""
    low, high = noise
    shares = NoiseStreams.from_seed(len(truth), seed, items).uniform(Purpose.MEASUREMENT, step=1)
    stds = (low * (high / low) ** shares).to(truth)
    operator = family.draw(items, tuple(truth.shape[1:]), seed).to(truth.device)
    model = GaussianNoise(stds if high > low else float(low))
    return InverseProblem.simulate(truth, operator, model, seed, items)
