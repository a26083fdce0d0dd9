r"""Learned schedules (:class:`~lavps.samplers.tuned.TunedPIR`), by gradients through the sampler.

Images are measured with operators and noise levels drawn at random, two samples are drawn for each, and the
loss is a proper score of both: for samples :math:`x^1, x^2` of the true image :math:`x`,

.. math:: \tfrac12 (|x - x^1| + |x - x^2|) - \tfrac12 |x^1 - x^2|,

as the mean over pixels (CRPS) plus the mean over patches of 8 x 8 pixels (energy score, with the root mean
square of a patch as its norm). The CRPS alone does not depend on the correlation of pixels. The network is
frozen; a schedule of K evaluations has 5 K - 3 numbers. Neither score is sensitive to the fit of
the measurement, so the squared logarithm of chi-square is added, with a small weight. A perceptual distance,
such as LPIPS, can be added as the mean over both samples: it is not a proper score, and favours sharpness.

References:
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
"""

from __future__ import annotations

__all__ = ["Tuning", "TuningConfig", "sample_score", "simulate_family", "tune"]

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from tqdm import tqdm

from ..noise import GaussianNoise
from ..operators.families import OperatorFamily
from ..priors import CountingPrior, Prior
from ..priors.protocol import WrappedPrior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose
from ..samplers.base import Run
from ..samplers.diffpir import WienerPIR
from ..samplers.tuned import ScheduleNumbers, TunedPIR

_PATCH = 8
_MISFIT_WEIGHT = 0.02
_VALIDATION_SEED = 1 << 30
_SMALLEST_RATIO = 0.02  # of the logarithms of neighbouring noise levels


@dataclass(frozen=True)
class TuningConfig:
    """Options of a tuning.

    Attributes:
        iterations: Number of optimizer steps.
        batch_size: Images per step, each with two samples.
        learning_rate: Peak learning rate of Adam, with cosine decay.
        validate_every: Steps between validations; the numbers of the best one are kept.
        seed: Seed of images, operators and noise.
        checkpointing: Whether activations of the denoiser are recomputed instead of stored.
        progress: Whether a progress bar is shown.
    """

    iterations: int = 100
    batch_size: int = 2
    learning_rate: float = 0.05
    validate_every: int = 20
    seed: int = 0
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
    """Free parameters of a schedule: its levels descend, whatever their values."""

    def __init__(self, numbers: ScheduleNumbers) -> None:
        super().__init__()
        logs = numbers.levels.log()
        self.first = logs[0]
        gaps = (logs[:-1] - logs[1:] - _SMALLEST_RATIO).clamp(min=1e-3)
        self.gaps = torch.nn.Parameter(_inverse_softplus(gaps))
        self.data = torch.nn.Parameter(numbers.data_levels.log())
        self.relaxations = torch.nn.Parameter(numbers.relaxations.double().clone())
        self.kept = torch.nn.Parameter(numbers.kept.double().clone())
        self.fresh = torch.nn.Parameter(numbers.fresh.double().clone())

    def numbers(self) -> ScheduleNumbers:
        """Return the numbers of the schedule, differentiable."""
        falls = (F.softplus(self.gaps) + _SMALLEST_RATIO).cumsum(0)
        levels = torch.cat([self.first.reshape(1), self.first - falls]).exp()
        return ScheduleNumbers(levels, self.data.exp(), self.relaxations, self.kept, self.fresh)


def _inverse_softplus(x: Tensor) -> Tensor:
    return x + torch.log(-torch.expm1(-x))


def tune(
    initial: WienerPIR,
    images: Callable[[Sequence[int]], Tensor],
    validation: Tensor,
    family: OperatorFamily,
    noise: tuple[float, float],
    config: TuningConfig | None = None,
    perceptual: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tuning:
    """Learn the schedule of a sampler.

    Args:
        initial: Sampler whose schedule is the initial one, with its prior and number of evaluations.
        images: Function of sample numbers that returns training images (B, C, H, W).
        validation: Validation images (B, C, H, W).
        family: Distribution of the operators.
        noise: Lowest and highest standard deviation of the noise, drawn log-uniformly.
        config: Options.
        perceptual: Differentiable distance (B,) of two batches of images, added to the score.
    """
    config = config or TuningConfig()
    start = TunedPIR.like(initial)
    parameters = _Parameters(start.numbers)
    optimizer = torch.optim.Adam(parameters.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / config.iterations)
    )
    prior: Prior = _Checkpointed(initial.prior) if config.checkpointing else initial.prior

    def loss(numbers: ScheduleNumbers, truth: Tensor, items: Sequence[int], seed: int) -> Tensor:
        problem = simulate_family(truth, items, family, noise, seed)
        streams = NoiseStreams.from_seed(len(truth), seed, items, 2)
        run = Run(CountingPrior(prior), problem.repeat(2), streams)
        *_, last = start.steps_with(run, numbers)
        samples = last.x_0.reshape(len(truth), 2, *truth.shape[1:])
        chi_square = run.measured.chi_square(last.x_0).reshape(-1, 2).mean(1)
        score = sample_score(samples, truth) + _MISFIT_WEIGHT * chi_square.clamp(min=1e-6).log().square()
        if perceptual is None:
            return score
        distances = perceptual(samples.flatten(0, 1), truth.repeat_interleave(2, dim=0))
        return score + distances.reshape(-1, 2).mean(1).to(score)

    def validated(numbers: ScheduleNumbers) -> float:
        with torch.no_grad():
            parts = torch.split(torch.arange(len(validation)), config.batch_size)
            scores = [loss(numbers, validation[p], p.tolist(), _VALIDATION_SEED) for p in parts]
        return float(torch.cat(scores).mean())

    best = parameters.numbers()
    before = after = validated(best)
    losses: list[float] = []
    history = {0: before}
    with tqdm(total=config.iterations, desc="tune", disable=not config.progress, unit="step") as bar:
        for step in range(config.iterations):
            items = range(step * config.batch_size, (step + 1) * config.batch_size)
            value = loss(parameters.numbers(), images(items), items, config.seed).mean()
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters.parameters(), 1.0)
            if all(bool(p.grad.isfinite().all()) for p in parameters.parameters() if p.grad is not None):
                optimizer.step()
            rate.step()
            losses.append(float(value.detach()))
            if (step + 1) % config.validate_every == 0 or step + 1 == config.iterations:
                history[step + 1] = score = validated(parameters.numbers())
                if score < after:
                    after, best = score, parameters.numbers()
            bar.update()
            bar.set_postfix(score=f"{after:.4f}", before=f"{before:.4f}")
    sampler = TunedPIR.of(initial.prior, best, initial.covariance, initial.solver_steps)
    return Tuning(sampler, before, after, losses, history)


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
