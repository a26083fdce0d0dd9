"""What a sampler returns: samples, their statistics, and a record of every step."""

from __future__ import annotations

__all__ = ["OutOfDistributionWarning", "Posterior", "Trace"]

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..intervals import CalibratedScale, central_interval

# In benchmarks/amortization_oracle.md the acceptance rate is at least 86 % on the training distribution, and
# at most 72 % on operators outside it.
_FAMILIAR = 0.75


class OutOfDistributionWarning(UserWarning):
    """The safeguard rejected many predictions: the model was not trained for measurements like these."""


@dataclass(frozen=True)
class Trace:
    """Record of every step, for every row (item-major: item 0's samples first).

    Counts are per row: ``step_forwards[k]`` is the number of denoiser evaluations of step k divided by the
    number of rows, so that a batch reads like a single run.

    Attributes:
        times: Time t of every step, shape (steps,).
        losses: Objective where it was last evaluated, shape (steps, rows); NaN where it was not.
        accepted: 1 where the prediction was accepted, 0 where it was rejected, NaN without a decision.
        step_forwards: Denoiser evaluations at every step, per row, shape (steps,).
        step_backwards: Backward passes at every step, per row, shape (steps,).
        step_model_forwards: Forward passes of the inference model at every step, per row, shape (steps,).
        step_seconds: Wall time of every step, shape (steps,), all chunks together.
    """

    times: Tensor
    losses: Tensor
    accepted: Tensor
    step_forwards: Tensor
    step_backwards: Tensor
    step_model_forwards: Tensor
    step_seconds: Tensor

    @property
    def forwards(self) -> float:
        """Denoiser evaluations per row."""
        return float(self.step_forwards.sum())

    @property
    def backwards(self) -> float:
        """Backward passes through the denoiser per row."""
        return float(self.step_backwards.sum())

    @property
    def model_forwards(self) -> float:
        """Forward passes of the inference model per row."""
        return float(self.step_model_forwards.sum())

    @property
    def seconds(self) -> float:
        """Wall time of the whole run."""
        return float(self.step_seconds.sum())

    @property
    def acceptance(self) -> float:
        """Acceptance rate of the safeguard; NaN without any decision."""
        return float(self.accepted.nanmean())

    @property
    def acceptance_by_step(self) -> Tensor:
        """The same for every step (steps,)."""
        return self.accepted.nanmean(dim=1)

    @property
    def acceptance_by_row(self) -> Tensor:
        """The same for every row (rows,)."""
        return self.accepted.nanmean(dim=0)

    @property
    def out_of_distribution(self) -> bool:
        """Whether the acceptance rate is lower than usual; False without a safeguard."""
        return self.acceptance < _FAMILIAR

    @property
    def advice(self) -> str | None:
        """Advice to the user about this run, if any."""
        if not self.out_of_distribution:
            return None
        return (
            f"your operator looks out of distribution: the safeguard accepted only {self.acceptance:.0%} of "
            "the model's predictions; on its training distribution it accepts more than 85%. The others were "
            "replaced by zero-shot ones: leave the model out, or train it on such measurements."
        )

    def select(self, rows: slice) -> Trace:
        """The trace of some rows, with their share of the time and of the counts."""
        losses, accepted = self.losses[:, rows], self.accepted[:, rows]
        share = losses.shape[1] / max(self.losses.shape[1], 1)
        return replace(self, losses=losses, accepted=accepted, step_seconds=share * self.step_seconds)

    @staticmethod
    def join(traces: Sequence[Trace]) -> Trace:
        """One trace from those of several chunks of rows."""
        rows = torch.tensor([trace.losses.shape[1] for trace in traces], dtype=torch.float64)
        weights = rows / rows.sum()

        def average(name: str) -> Tensor:
            stacked = torch.stack([getattr(trace, name) for trace in traces])
            return (weights[:, None] * stacked).sum(0)

        return Trace(
            traces[0].times,
            torch.cat([trace.losses for trace in traces], dim=1),
            torch.cat([trace.accepted for trace in traces], dim=1),
            average("step_forwards"),
            average("step_backwards"),
            average("step_model_forwards"),
            torch.stack([trace.step_seconds for trace in traces]).sum(0),
        )


@dataclass(frozen=True, repr=False)
class Posterior:
    """Samples of the posterior of every item, and their statistics.

    Attributes:
        samples: Samples, shape (B, N, C, *spatial); None when they were only streamed.
        mean: Mean of the samples, shape (B, C, *spatial).
        std: Standard deviation, shape (B, C, *spatial); NaN for a single sample.
        num_samples: Number N of samples per item.
        trace: Record of every step.
        sampler: Name of the sampler.
        chi_square: Misfit of every sample in units of the noise's variance, shape (B, N), about 1 for the
            true image; None without measurements.
    """

    samples: Tensor | None
    mean: Tensor
    std: Tensor
    num_samples: int
    trace: Trace
    _quantiles: dict[float, Tensor] = field(default_factory=dict)
    sampler: str = ""
    chi_square: Tensor | None = None

    def __repr__(self) -> str:
        """Three lines: shapes, sampler, and cost with misfit."""
        batch, *shape = self.mean.shape
        trace = self.trace
        cost = f"{trace.forwards:g} denoiser evaluations per sample"
        cost += f", {trace.backwards:g} backward passes" if trace.backwards else ""
        misfit = "" if self.chi_square is None else f", misfit {float(self.chi_square.mean()):.3g}"
        return (
            f"Posterior: {batch} x {self.num_samples} samples of shape {tuple(shape)}\n"
            f"  {self.sampler or 'unnamed sampler'}, {len(trace.times)} steps, {trace.seconds:.3g} s\n"
            f"  {cost}{misfit}"
        )

    def __getitem__(self, index: int) -> Posterior:
        """The posterior of one item, as a batch of one."""
        item = range(len(self.mean))[index]
        one, rows = slice(item, item + 1), slice(item * self.num_samples, (item + 1) * self.num_samples)
        return Posterior(
            None if self.samples is None else self.samples[one],
            self.mean[one],
            self.std[one],
            self.num_samples,
            self.trace.select(rows),
            {level: values[one] for level, values in self._quantiles.items()},
            self.sampler,
            None if self.chi_square is None else self.chi_square[one],
        )

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of every pixel, (B, C, *spatial).

        Exact where samples were kept; streamed runs have the levels named in ``sample(quantiles=...)``.
        """
        if self.samples is not None:
            return torch.quantile(self.samples, q, dim=1)
        if q not in self._quantiles:
            raise KeyError(
                f"quantile {q} was not followed while streaming (only {sorted(self._quantiles)}): "
                "name it in sample(..., quantiles=(...)), or keep the samples"
            )
        return self._quantiles[q]

    def interval(
        self, level: float = 0.9, certificate: CalibratedScale | None = None
    ) -> tuple[Tensor, Tensor]:
        """The central interval of every pixel at this level, (B, C, *spatial) each.

        The ends are order statistics (:mod:`~lavps.intervals`): for exact samples the coverage is
        the level, and 90 % need at least 19 samples. Streamed runs use their quantiles.

        Args:
            level: Level in (0, 1).
            certificate: Certificate of ``lavps calibrate`` (:class:`lavps.restoration.Certificate`) for this
                prior, operator, noise and sampler, whose correction is applied.

        Raises:
            ValueError: There are too few samples, or the certificate does not fit.
        """
        scale = 1.0 if certificate is None else certificate.scale(level, self.num_samples)
        if self.samples is not None:
            return central_interval(self.samples, level, scale)
        if certificate is not None:
            raise ValueError("a certificate corrects intervals of samples: keep the samples")
        tail = (1.0 - level) / 2
        return self.quantile(round(tail, 6)), self.quantile(round(1.0 - tail, 6))
