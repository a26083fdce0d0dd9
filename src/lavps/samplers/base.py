"""What all samplers share: rows, noise, counts, progress, cancellation, and the posterior they return.

A sampler is a frozen dataclass of settings with one generator, :meth:`Sampler.steps`, that reads like its
paper. Everything that belongs to one run lives in a :class:`Run`, so one sampler object serves any number of
threads.
"""

from __future__ import annotations

__all__ = ["Cancelled", "NonFiniteError", "Progress", "Run", "Sampler", "Step"]

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor
from tqdm import tqdm

from ..entry import check_images, precision_error
from ..guidance import GuidedStep
from ..priors import CountingPrior, Prior
from ..problem import InverseProblem, Unconditional
from ..random import NoiseStreams, Purpose
from ..variational import Context, Objective
from .collect import Collector, Progress, StepRecord
from .posterior import OutOfDistributionWarning, Posterior
from .state import SamplerState, StateStore

# Noise of one step's inner problems is indexed by repetition * _STRIDE + number of the evaluation.
_STRIDE = 1 << 20


class Cancelled(RuntimeError):  # noqa: N818 - a request, not an error
    """The callback requested a stop."""


class NonFiniteError(FloatingPointError):
    """A sample became infinite or NaN.

    Attributes:
        sampler: Name of the sampler.
        step: Index of the step.
        items: Ids of the items concerned.
    """

    def __init__(self, sampler: str, step: int, time: float, items: Sequence[int]) -> None:
        self.sampler, self.step, self.items = sampler, step, tuple(items)
        super().__init__(
            f"{sampler}: x_0 is not finite at step {step} (t = {time:.4g}) for item(s) {list(self.items)}. "
            "Look for NaN or huge values in y, a noise level far below the misfit, a pixel range other than "
            "[-1, 1], or a learning rate that is too large; half-precision networks: try bfloat16 or float32."
        )


@dataclass(frozen=True)
class Run:
    """One run of a sampler over a batch of rows.

    Attributes:
        prior: Prior, with its evaluations counted.
        problem: Inverse problem, one item per row.
        noise: Noise streams, one per row.
        taken: Number of steps taken before this run, which continues another.
        state: State after these steps; empty if there are none.
    """

    prior: CountingPrior
    problem: InverseProblem | Unconditional
    noise: NoiseStreams
    taken: int = 0
    state: Mapping[str, Tensor] = field(default_factory=dict)

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

    def guided_step(
        self, context: Context, index: int, repetition: int = 0, accepted: Tensor | None = None
    ) -> GuidedStep:
        """Set up the inner problem of a context.

        Args:
            context: Context c of the step.
            index: Grid index k.
            repetition: Gibbs repetition r.
            accepted: Most recent safeguard decision, shape (B,); None before the first one.
        """

        @lru_cache(maxsize=1)
        def noise(number: int) -> Tensor:
            return self.normal(Purpose.OBJECTIVE, index, repetition * _STRIDE + number)

        def final_noise() -> Tensor:
            return self.normal(Purpose.VARIATIONAL, index, repetition)

        return GuidedStep(Objective(self.prior, context, noise), final_noise, index, accepted)


@dataclass(frozen=True)
class Step:
    """One step as seen from outside, with what it cost per row.

    Attributes:
        index: Index of the step, from 0 to total - 1.
        total: Number of steps.
        progress: Report of the sampler.
        forwards: Denoiser evaluations per row.
        backwards: Backward passes through the denoiser per row.
        seconds: Wall time.
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
    def name(self) -> str:
        """Name of the method."""
        return type(self).__name__

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Number of steps :meth:`steps` takes."""

    @abstractmethod
    def steps(self, run: Run) -> Iterator[Progress]:
        """The algorithm. The last step's x_0 is the sample. Runs without gradients recorded."""

    def denoiser_of(self, problem: InverseProblem | Unconditional) -> Prior:
        """Return the denoiser of this problem: the prior, unless it is conditioned on the measurement."""
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
            problem: Inverse problem with B items.
            num_samples: Number N of samples per item.
            seed: Seed of all items, or one per item.
            items: Item ids, default 0..B-1; they determine the noise together with the seed.

        Yields:
            A :class:`Step`; the last one's ``x_0`` (B N, C, *spatial) holds the samples.
        """
        streams = NoiseStreams.from_seed(len(problem), seed, items, num_samples)
        yield from self._iterate(problem.repeat(num_samples), streams)

    def _iterate(
        self,
        problem: InverseProblem | Unconditional,
        streams: NoiseStreams,
        state: SamplerState | None = None,
    ) -> Iterator[Step]:
        if torch.is_inference_mode_enabled():
            raise RuntimeError(
                "samplers differentiate through the denoiser, which torch.inference_mode() forbids: "
                "call them outside of it (they keep no graph between steps)"
            )
        denoiser = self.denoiser_of(problem)
        check_images(problem, denoiser)
        run = Run(CountingPrior(denoiser), problem, streams)
        if state is not None and state.records:
            tensors = {name: tensor.to(problem.like.device) for name, tensor in state.tensors.items()}
            run = replace(run, taken=len(state.records), state=tensors)
        steps, total, rows = self.steps(run), self.total_steps, len(problem)
        for index in range(run.taken, total):
            forwards, backwards, start = run.prior.forwards, run.prior.backwards, time.perf_counter()
            try:
                progress = next(steps)
            except RuntimeError as error:
                if (mixed := precision_error(error, problem, run.prior.prior)) is None:
                    raise
                raise mixed from error
            _require_finite(progress, index, streams, self.name)
            if index == total - 1 and isinstance(problem, InverseProblem):
                progress = replace(progress, x_0=problem.project(progress.x_0))
            yield Step(
                index,
                total,
                progress,
                (run.prior.forwards - forwards) / rows,
                (run.prior.backwards - backwards) / rows,
                time.perf_counter() - start,
            )

    def _chunk(
        self,
        problem: InverseProblem | Unconditional,
        streams: NoiseStreams,
        state: SamplerState,
        report: Callable[[Step, SamplerState], None],
    ) -> tuple[Tensor, tuple[StepRecord, ...]]:
        """Return the samples and the steps of a chunk, started or continued; report every new step."""
        records = state.records
        for step in self._iterate(problem, streams, state):
            records += (StepRecord.from_progress(step.progress, step.forwards, step.backwards, step.seconds),)
            report(step, SamplerState(state.finished, len(problem), step.progress.state or {}, records))
        return step.x_0, records

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
        store: StateStore | None = None,
    ) -> Posterior:
        """Draw samples from the posterior of every item.

        Args:
            problem: Inverse problem with B items.
            num_samples: Number N of samples per item.
            seed: Seed of all items, or one per item.
            items: Item ids, default 0..B-1; they determine the noise together with the seed, so item 7 of a
                batch is ``sample(problem[7], items=[7])``.
            batch_size: Number of rows (items times samples) at a time; default all.
            keep_samples: Whether samples are kept; otherwise mean, std and quantiles are streamed in the
                memory of a few images.
            quantiles: Levels estimated when streaming.
            progress: Whether a progress bar with an ETA is shown.
            callback: Function called after every step; a true return value raises :class:`Cancelled`.
            store: Storage of the run's state, from which it continues; samples must be kept.

        Warns:
            OutOfDistributionWarning: The safeguard rejected many predictions of the inference model.
        """
        streams = NoiseStreams.from_seed(len(problem), seed, items, num_samples)
        rows = torch.arange(len(problem)).repeat_interleave(num_samples)
        chunks = torch.split(rows, batch_size or len(rows))
        collector = Collector(len(problem), keep_samples, quantiles, self.name)
        state = (None if store is None else store.load()) or SamplerState()
        bar = tqdm(total=len(chunks) * self.total_steps, desc=self.name, disable=not progress, unit="step")
        start = 0

        def report(step: Step, reached: SamplerState) -> None:
            bar.update()
            if callback is not None and callback(step):
                raise Cancelled(f"cancelled after step {step.index + 1} of {step.total}")
            unfinished = step.index + 1 < step.total and step.progress.state is not None
            if store is not None and unfinished:
                store.save(reached)

        with bar:
            for number, chunk in enumerate(chunks):
                part = streams.select(range(start, start + len(chunk)))
                start += len(chunk)
                rows_of_chunk = problem if len(chunks) == num_samples == 1 else problem.select(chunk)
                if number < len(state.finished):
                    x_0, records = state.finished[number]
                    x_0 = x_0.to(problem.like.device)
                    bar.update(len(records))
                else:
                    x_0, records = self._chunk(rows_of_chunk, part, state, report)
                    if store is not None:
                        state = SamplerState((*state.finished, (x_0, records)))
                        store.save(state)
                collector.add(x_0, chunk, records)
                if isinstance(rows_of_chunk, InverseProblem):
                    collector.misfits.append(rows_of_chunk.chi_square(x_0))
        posterior = collector.posterior(num_samples)
        if posterior.trace.advice is not None:
            warnings.warn(posterior.trace.advice, OutOfDistributionWarning, stacklevel=3)  # past no_grad
        return posterior


def _require_finite(progress: Progress, index: int, streams: NoiseStreams, sampler: str) -> None:
    # A sum is finite unless an entry is not (or overflows, which is no better).
    finite = progress.x_0.flatten(1).sum(1).isfinite()
    if not bool(finite.all()):
        items = sorted({streams.items[row] for row in (~finite).nonzero().flatten().tolist()})
        raise NonFiniteError(sampler, index, float(progress.t.max()), items)
