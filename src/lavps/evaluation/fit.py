r"""Statistics of the fit between a measurement, its samples and the prior.

If the operator, the noise level or the kind of image is not the assumed one, the samples leave a trace: a
misfit that is too large or too small, residuals :math:`y - A(x)` that are correlated between neighbours, or
samples that the denoiser changes more than usual. For the samples x of one measurement the statistics are

- the logarithm of chi-square of the samples, and of their mean;
- the correlations of neighbouring residuals of the mean, by axis and diagonal;
- for images, the logarithm of the smallest mean square of these residuals over a block of an eighth of the
  image's side, relative to that of all: a part without noise was not measured as stated;
- the logarithm of the samples' variance;
- for a few noise levels s and noise z, the logarithms of :math:`|D(x + s z) - x|^2 / s^2` and of chi-square
  of :math:`D(x + s z)`.

:func:`~lavps.evaluation.conformal_p_value` compares them with those of measurements that fit.
"""

from __future__ import annotations

__all__ = ["FIT_SAMPLES", "fit_statistics"]

import torch
import torch.nn.functional as F
from torch import Tensor

from ..priors import Prior
from ..problem import InverseProblem
from ..random import NoiseStreams, Purpose

FIT_SAMPLES = 4  # samples per measurement that the statistics use, at most
_LEVELS = (0.1, 0.4, 1.0)
_SMALLEST = 1e-12


@torch.no_grad()
def fit_statistics(problem: InverseProblem, samples: Tensor, prior: Prior) -> Tensor:
    """Return the statistics (B, K) of every measurement, in float64.

    Args:
        problem: Inverse problem of B items.
        samples: Samples (B, N, C, *spatial), of which the first ``FIT_SAMPLES`` are used, N at least 2.
        prior: Denoiser of images of this size.
    """
    few = samples[:, :FIT_SAMPLES]
    items, count = few.shape[:2]
    rows, repeated = few.flatten(0, 1), problem.repeat(count)
    mean = few.mean(1)
    # The noise is the same for every item: statistics do not depend on the batch.
    streams = NoiseStreams.from_seed(items, 0, [0] * items, count)

    def averaged(values: Tensor) -> Tensor:
        return _log(values.double().reshape(items, count).mean(1))

    found = [averaged(repeated.chi_square(rows)), _log(problem.chi_square(mean).double())]
    residual = problem.residual(problem.operator(mean))
    found += _neighbour_correlations(residual)
    if residual.ndim >= 4:
        found.append(_log(_quietest_block(residual)))
    found.append(_log(few.double().var(1).flatten(1).mean(1)))
    schedule = prior.schedule
    for step, level in enumerate(_LEVELS):
        t = schedule.time(torch.tensor(level, dtype=torch.float64, device=rows.device))
        noise = streams.normal(Purpose.PROBE, rows.shape[1:], rows, step)
        alpha, sigma = (value.to(rows) for value in schedule.coefficients(t))
        x_0 = prior.denoise(alpha * rows + sigma * noise, t)
        found.append(averaged((x_0 - rows).square().flatten(1).mean(1) / level**2))
        found.append(averaged(repeated.chi_square(x_0)))
    return torch.stack(found, dim=1).cpu()


def _log(values: Tensor) -> Tensor:
    return values.clamp(min=_SMALLEST).log()


def _neighbour_correlations(residual: Tensor) -> list[Tensor]:
    """Return the correlations (B,) of residuals (B, *measurement) with neighbours along the last axes."""
    shifts = [(0, 1), (1, 0), (1, 1), (1, -1)] if residual.ndim >= 4 else [(1,)]
    axes = tuple(range(-len(shifts[0]), 0))
    power = residual.abs().square().double().flatten(1).sum(1).clamp(min=_SMALLEST)
    products = [
        (residual.conj() * residual.roll(shift, axes)).real.double().flatten(1).sum(1) for shift in shifts
    ]
    return [product / power for product in products]


def _quietest_block(residual: Tensor) -> Tensor:
    """Return the smallest mean square (B,) of residuals (B, ..., H, W) over a block, relative to that of all.

    Residuals that are exactly 0 belong to pixels that were not observed; blocks with few others do not count.
    """
    power = residual.abs().square().double().flatten(1, -3).sum(1, keepdim=True)
    count = (residual != 0).double().flatten(1, -3).sum(1, keepdim=True)
    size = [min(max(n // 8, 2), n) for n in residual.shape[-2:]]
    blocks, observed = (F.avg_pool2d(values, size).flatten(1) for values in (power, count))
    enough = observed > 0.5 * observed.amax(1, keepdim=True)
    smallest = torch.where(enough, blocks / observed.clamp(min=_SMALLEST), torch.inf).amin(1)
    overall = power.flatten(1).sum(1) / count.flatten(1).sum(1).clamp(min=1.0)
    return (smallest / overall.clamp(min=_SMALLEST)).clamp(max=1.0)
