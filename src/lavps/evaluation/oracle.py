r"""Oracle problems: mixtures with a known posterior, and the score of a sampler against it.

Component k of the mixture over n x n pixels, with d the distance between two pixels, has the covariance
:math:`0.08 \exp(-d^2 / 2 (1 + 0.7 k)^2) + 0.001 I` and a mean drawn once from
:math:`N(0, 0.25 \exp(-d^2 / 2 (2.5)^2))`. Components differ in smoothness as well as in mean, like regions of
images, and the measurements leave some of them ambiguous.
"""

from __future__ import annotations

__all__ = [
    "OptimizedStart",
    "OracleScore",
    "exact_samples",
    "oracle_mixture",
    "oracle_problem",
    "random_start",
    "score",
]

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..minimizers import Adam, Minimizer
from ..operators import AveragePool, Mask, Operator
from ..priors import GaussianMixturePrior, Prior
from ..problem import GaussianNoise, InverseProblem
from ..random import NoiseStreams, Purpose
from ..schedule import Schedule
from ..variational import Context, DiagonalGaussian, Objective
from .distances import sliced_wasserstein


def oracle_mixture(
    size: int = 8,
    components: int = 4,
    schedule: Schedule | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 6,
) -> GaussianMixturePrior:
    """Return the mixture of the module's docstring, with equal weights, for images (1, size, size).

    The default seed was chosen after inspecting samplers' scores on several draws. It is an easy draw: no
    observation is ambiguous between components, so scores favour samplers with wrong weights of far modes.
    Use the benchmark's ten draws for comparisons.

    Example:
        >>> prior = oracle_mixture(4)
        >>> truth, problem = oracle_problem(prior, "sr4", observations=3)
        >>> truth.shape, problem.y.shape
        (torch.Size([3, 1, 4, 4]), torch.Size([3, 1, 1, 1]))
    """
    axis = torch.arange(size, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    squared = (points[:, None] - points[None]).square().sum(-1)
    eye = torch.eye(size**2, dtype=torch.float64)
    covariances = torch.stack(
        [0.08 * torch.exp(-squared / (2 * (1 + 0.7 * k) ** 2)) + 0.001 * eye for k in range(components)]
    )
    root = torch.linalg.cholesky(0.25 * torch.exp(-squared / (2 * 2.5**2)) + 1e-9 * eye)
    z = NoiseStreams.from_seed(components, seed).normal(Purpose.PRIOR, (size**2,), root)
    means = (z @ root.T).reshape(components, 1, size, size)
    return GaussianMixturePrior([1.0] * components, means, covariances, schedule, dtype)


def oracle_problem(
    prior: GaussianMixturePrior,
    task: Literal["sr4", "inpainting"],
    observations: int,
    noise_std: float = 0.05,
    seed: int = 0,
) -> tuple[Tensor, InverseProblem]:
    """Draw truths (B, 1, size, size) from the prior, and measure them.

    Args:
        prior: Mixture prior.
        task: Measurement: "sr4" averages 4 x 4 blocks; "inpainting" keeps half of the pixels, drawn once.
        observations: Number B of items.
        noise_std: Standard deviation of the measurement noise.
        seed: Seed of truths, mask and measurement noise.
    """
    truth = prior.sample(observations, seed=seed)
    operator: Operator
    if task == "sr4":
        operator = AveragePool(4)
    elif task == "inpainting":
        pixels = prior.shape[-2] * prior.shape[-1]
        score = NoiseStreams.from_seed(1, seed).normal(Purpose.OPERATOR, (pixels,), truth)[0]
        operator = Mask((score <= score.median()).reshape(prior.shape[-2:]))
    else:
        raise ValueError(f"task must be 'sr4' or 'inpainting', got {task!r}")
    return truth, InverseProblem.simulate(truth, operator, GaussianNoise(noise_std), seed)


@dataclass(frozen=True)
class OracleScore:
    """Errors of samples relative to the exact posterior, averaged over items.

    Attributes:
        sw2: Sliced Wasserstein-2 distance to as many exact samples.
        sw2_by_item: Distance of every item.
        mean_error: Root mean square error of the posterior mean.
        std_ratio: Mean ratio of the samples' standard deviation to the exact one, over pixels.
        chi_square: Mean squared residual in units of the noise; about 1 for the exact posterior.
    """

    sw2: float
    sw2_by_item: tuple[float, ...]
    mean_error: float
    std_ratio: float
    chi_square: float


def score(
    samples: Tensor, problem: InverseProblem, exact: list[GaussianMixturePrior], reference_seed: int = 10**6
) -> OracleScore:
    """Score samples (B, N, C, *spatial) against the exact posterior of every item."""
    batch, count = samples.shape[:2]
    distances = [
        sliced_wasserstein(samples[item], exact[item].sample(count, seed=reference_seed + item).to(samples))
        for item in range(batch)
    ]
    mean = torch.stack([posterior.mean for posterior in exact])
    std = torch.stack([posterior.std for posterior in exact])
    return OracleScore(
        sum(distances) / batch,
        tuple(distances),
        float((samples.double().mean(1) - mean).square().mean().sqrt()),
        float((samples.double().std(1) / std).mean()),
        float(problem.repeat(count).chi_square(samples.flatten(0, 1)).mean()),
    )


def exact_samples(
    problem: InverseProblem, exact: list[GaussianMixturePrior], count: int, seed: int = 0
) -> Tensor:
    """Draw samples (B, N, C, *spatial) of the exact posteriors; their score is the Monte Carlo floor."""
    drawn = [posterior.sample(count, seed=seed * 1000 + item) for item, posterior in enumerate(exact)]
    return torch.stack(drawn).to(problem.y.dtype)


@dataclass(frozen=True)
class OptimizedStart:
    """Initialization by many gradient steps on the inner problem, as of a perfect inference model.

    Its denoiser evaluations are not counted.

    Args:
        prior: Denoiser.
        steps: Number of gradient steps.
        minimizer: Minimizer of the inner problem.
    """

    prior: Prior
    steps: int = 200
    minimizer: Minimizer = Adam(0.03)

    def __call__(self, context: Context) -> DiagonalGaussian:
        """Return the minimizer's result, initialized with the bridge."""
        shape = context.x_t.shape[1:]

        def noise(index: int) -> Tensor:
            z = NoiseStreams((1,), (0,), (0,)).normal(Purpose.PROBE, shape, context.x_t, index=index)
            return z.expand_as(context.x_t)

        objective = Objective(self.prior, context, noise)
        return self.minimizer.minimize(objective, context.bridge, self.steps)[0]


def random_start(context: Context) -> DiagonalGaussian:
    """Return a harmful initialization: unit noise around the bridge, ten times too wide."""
    z = NoiseStreams((2,), (0,), (0,)).normal(Purpose.PROBE, context.x_t.shape[1:], context.x_t)
    return DiagonalGaussian(context.bridge.mean + z, context.bridge.log_std + 2.3)
