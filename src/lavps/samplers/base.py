"""What all samplers share: rows, noise, meters, progress, cancellation, and the posterior they return.

A sampler is a frozen bag of settings with one generator, :meth:`Sampler.steps`, that reads like its paper.
Everything that belongs to one run lives in a :class:`Run`, so one sampler object serves any number of
threads.
"""

from __future__ import annotations

__all__ = ["Cancelled", "NonFiniteError", "Progress", "Run", "Sampler", "Step"]

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ..priors import MeteredPrior, Prior
from ..problem import InverseProblem, Unconditional
from ..random import NoiseStreams, Purpose
from .collect import Collector, Progress, StepRecord
from .posterior import OutOfDistributionWarning, Posterior


class Cancelled(RuntimeError):  # noqa: N818 - a request, not an error
    """The callback asked to stop."""


class NonFiniteError(FloatingPointError):
    """A sample became infinite or NaN.

    Attributes:
        step: index of the step.
        items: ids of the items concerned.
    """

    def __init__(self, step: int, time: float, items: Sequence[int], what: str) -> None:
        self.step, self.items = step, tuple(items)
        super().__init__(
            f"{what} is not finite at step {step} (t = {time:.4g}) for item(s) {list(self.items)}. Look for "
            "NaN or huge values in y, a noise level far below the misfit, a pixel range other than [-1, 1], "
            "or a learning rate that is too large; half-precision networks: try bfloat16 or float32."
        )


@dataclass(frozen=True)
class Run:
    """One run of a sampler over a batch of rows.

    Attributes:
        prior: the prior, metered.
        problem: what is asked, one item per row.
        noise: one stream per row.
    """

    prior: MeteredPrior
    problem: InverseProblem | Unconditional
    noise: NoiseStreams

    @property
    def measured(self) -> InverseProblem:
        """The problem, which must have a measurement."""
        if isinstance(self.problem, Unconditional):
            raise TypeError("this sampler needs a measurement: give it an InverseProblem")
        return self.problem

    def normal(self, purpose: Purpose, step: int = 0, index: int = 0) -> Tensor:
        """Standard normal images, one per row."""
        return self.noise.normal(purpose, self.problem.image_shape, self.problem.like, step, index)

    def initial(self) -> Tensor:
        """x_1 = sigma_1 z."""
        sigma = self.prior.schedule.sigma(torch.ones((), dtype=torch.float64))
        return self.normal(Purpose.INITIAL) * sigma.to(self.problem.like.dtype)


@dataclass(frozen=True)
class Step:
    """One step as seen from outside, with what it cost per row.

    Attributes:
        index: 0 .. total - 1.
        total: number of steps.
        progress: the sampler's own report.
        forwards: denoiser forwards per row.
        backwards: denoiser backwards per row.
        seconds: wall time.
    """

    index: int
    total: int
    progress: Progress
    forwards: float
    backwards: float
    seconds: float

    @property
    def x_0(self) -> Tensor:
        """Current estimate of the clean images, one per row (item-major)."""
        return self.progress.x_0


class Sampler(ABC):
    """A posterior sampler: settings, and the loop of its paper."""

    prior: Prior

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Number of steps :meth:`steps` takes."""

    @abstractmethod
    def steps(self, run: Run) -> Iterator[Progress]:
        """The algorithm. The last step's x_0 is the sample. Runs without gradients recorded."""

    def denoiser_of(self, problem: InverseProblem | Unconditional) -> Prior:
        """What denoises the rows of this problem: the prior, unless the denoiser knows the measurement."""
        return self.prior

    @torch.no_grad()
    def iterate(
        self,
        problem: InverseProblem | Unconditional,
        num_samples: int = 1,
        *,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
    ) -> Iterator[Step]:
        """Sample step by step; stop iterating to cancel.

        Args:
            problem: B items.
            num_samples: N samples an item.
            seed: one seed, or one per item.
            items: item ids, default 0..B-1; with the seed they decide the noise.

        Yields:
            A :class:`Step`; the last one's ``x_0`` (B N, C, *spatial) holds the samples.
        """
        streams = NoiseStreams.of(len(problem), seed, items, num_samples)
        yield from self._iterate(problem.repeat(num_samples), streams)

    def _iterate(self, problem: InverseProblem | Unconditional, streams: NoiseStreams) -> Iterator[Step]:
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "samplers differentiate through the denoiser, which torch.inference_mode() forbids: "
                "call them outside of it (they keep no graph between steps)"
            )
        run = Run(MeteredPrior(self.denoiser_of(problem)), problem, streams)
        steps, total, rows = self.steps(run), self.total_steps, len(problem)
        for index in range(total):
            forwards, backwards, start = run.prior.forwards, run.prior.backwards, time.perf_counter()
            progress = next(steps)
            _require_finite(progress, index, streams)
            yield Step(
                index,
                total,
                progress,
                (run.prior.forwards - forwards) / rows,
                (run.prior.backwards - backwards) / rows,
                time.perf_counter() - start,
            )

    @torch.no_grad()
    def sample(
        self,
        problem: InverseProblem | Unconditional,
        num_samples: int = 1,
        *,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
        batch_size: int | None = None,
        keep_samples: bool = True,
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        progress: bool = False,
        callback: Callable[[Step], bool | None] | None = None,
    ) -> Posterior:
        """Draw samples from the posterior of every item.

        Args:
            problem: B items.
            num_samples: N samples an item.
            seed: one seed, or one per item.
            items: item ids, default 0..B-1; with the seed they decide the noise, so item 7 of a batch is
                ``sample(problem[7], items=[7])``.
            batch_size: rows (item times sample) at a time; default all.
            keep_samples: False streams: mean, std and quantiles in the memory of a few images.
            quantiles: levels to follow when streaming.
            progress: show a bar with the time left.
            callback: called after every step; a true return value raises :class:`Cancelled`.

        Warns:
            OutOfDistributionWarning: the safeguard refused many of an inference model's warm starts.
        """
        streams = NoiseStreams.of(len(problem), seed, items, num_samples)
        rows = torch.arange(len(problem)).repeat_interleave(num_samples)
        chunks = torch.split(rows, batch_size or len(rows))
        collector = Collector(len(problem), keep_samples, quantiles)
        bar = tqdm(
            total=len(chunks) * self.total_steps, desc=type(self).__name__, disable=not progress, unit="step"
        )
        with bar:
            start = 0
            for chunk in chunks:
                part = streams.select(range(start, start + len(chunk)))
                start += len(chunk)
                records = []
                for step in self._iterate(problem.select(chunk), part):
                    bar.update()
                    if callback is not None and callback(step):
                        raise Cancelled(f"cancelled after step {step.index + 1} of {step.total}")
                    records.append(StepRecord.of(step.progress, step.forwards, step.backwards, step.seconds))
                collector.add(step.x_0, chunk, records)
        posterior = collector.posterior(num_samples)
        if posterior.trace.advice is not None:
            warnings.warn(posterior.trace.advice, OutOfDistributionWarning, stacklevel=3)  # past no_grad
        return posterior


def _require_finite(progress: Progress, index: int, streams: NoiseStreams) -> None:
    # A sum is finite unless an entry is not (or overflows, which is no better).
    finite = progress.x_0.flatten(1).sum(1).isfinite()
    if not bool(finite.all()):
        items = sorted({streams.items[row] for row in (~finite).nonzero().flatten().tolist()})
        raise NonFiniteError(index, float(progress.t.max()), items, "x_0")
