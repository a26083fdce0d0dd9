"""Posterior samples from measurements: a prior, an optional inference model, and settings.

If the size of the images is not the prior's own, denoiser and inference model are evaluated on overlapping
windows (:mod:`~lavps.tiling.tiled`).
"""

from __future__ import annotations

__all__ = ["Restorer", "restore"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ..amortization import InferenceModel
from ..amortization.few_step import few_step_of, load_model
from ..amortization.loading import prior_hash
from ..checkpoints import load_prior
from ..checkpoints.hashes import weights_hash
from ..entry import check_images
from ..noise import GaussianNoise, NoiseModel
from ..operators import DecodedOperator, Operator, RescaledOperator
from ..operators.convert import with_batch_axis
from ..operators.pixel_range import check_range
from ..operators.registry import task_of
from ..priors import LatentPrior, Prior
from ..priors.precision import Precision
from ..priors.protocol import folder_of
from ..problem import InverseProblem
from ..samplers import FewStep, FewStepModel, Posterior, Sampler, Settings
from ..samplers.base import Step
from ..samplers.ddim import denoising_noise
from ..samplers.state import StateStore
from ..tiling.partial import PartialEvaluation
from ..tiling.tiled import TiledPrior, tiled_model
from .pacing import PassTimes
from .presets import FrontEntry, Quality, chosen, few_step_front, front_for

_PRESET = cast(Settings, None)  # replaced by that of prior and model


@dataclass(frozen=True)
class Restorer:
    """Loaded models and settings, for any number of problems and threads.

    Args:
        prior: Denoiser.
        settings: Settings of the sampler; default the balanced preset.
        model: Inference model or few-step model of this prior. Default: that beside the prior's folder for
            settings of a few-step model, else none.
        image_shape: Shape (C, *spatial) of the prior's images; default the prior's attribute. Other sizes are
            restored window by window; without a shape, every size is used as it is.
        tile_batch: Windows per denoiser call.
        progress: Function called with the number of new denoiser evaluations: of windows if the image is
            tiled, else of whole images after each step. Backward passes count, too.
        partial: Storage of an interrupted evaluation of a tiled image.

    Example:
        >>> import lavps
        >>> from lavps.operators import AveragePool
        >>> from lavps.priors import GaussianPrior
        >>> restorer = Restorer(GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64)))
        >>> problem = InverseProblem(torch.zeros(1, 1, 2, 2), AveragePool(2), lavps.GaussianNoise(0.1))
        >>> restorer.restore(problem, samples=2).samples.shape
        torch.Size([1, 2, 1, 4, 4])
    """

    prior: Prior
    settings: Settings = _PRESET
    model: InferenceModel | FewStepModel | None = None
    image_shape: tuple[int, ...] | None = None
    tile_batch: int = 16
    progress: Callable[[int], None] | None = None
    partial: PartialEvaluation | None = None

    def __post_init__(self) -> None:
        if self.image_shape is None:
            known = getattr(self.prior, "image_shape", None)
            object.__setattr__(self, "image_shape", None if known is None else tuple(known))
        if self.settings is _PRESET:
            front = _front(self.prior, self.model)
            object.__setattr__(self, "settings", chosen(front).settings)
        if self.model is None and isinstance(self.settings.template, FewStep):
            object.__setattr__(self, "model", few_step_of(self.prior))

    @classmethod
    def load(
        cls,
        prior: str | Path,
        model: str | Path | None = None,
        settings: Settings | None = None,
        device: str | torch.device = "cpu",
        tile_batch: int = 16,
        label: int | None = None,
        precision: Precision = "fp32",
        compiled: bool = False,
    ) -> Restorer:
        """Load model folders or checkpoints; raise if the model was not trained for the prior."""
        loaded = load_prior(prior, device, label, precision, compiled)
        warm = None if model is None else load_model(model, loaded, device)
        if settings is None:
            folder = model or folder_of(loaded)
            front = front_for(folder, warm is not None, None, isinstance(loaded, LatentPrior))
            settings = chosen(front).settings
        return cls(loaded, settings, warm, tile_batch=tile_batch)

    @cached_property
    def hashes(self) -> tuple[str | None, str | None]:
        """Hashes of the weights of prior and model."""
        if isinstance(self.model, FewStepModel):
            return prior_hash(self.prior), prior_hash(self.model.prior)
        return prior_hash(self.prior), None if self.model is None else weights_hash(self.model)

    def on(self, image_shape: Sequence[int]) -> tuple[Prior, InferenceModel | FewStepModel | None]:
        """Return prior and model for images (C, *spatial), tiled if need be; latent priors are not tiled."""
        if (window := self._window(image_shape)) is None:
            return self.prior, self.model
        progress, partial = self.progress, self.partial
        prior = TiledPrior(self.prior, window, batch=self.tile_batch, progress=progress, partial=partial)
        model = self.model
        if isinstance(model, FewStepModel):
            return prior, replace(model, prior=replace(prior, prior=model.prior), check_prior=None)
        return prior, None if model is None else tiled_model(model, window, self.tile_batch)

    def _window(self, image_shape: Sequence[int]) -> tuple[int, ...] | None:
        """Return the size of the windows for images (C, *spatial); None if they are not tiled."""
        own = None if isinstance(self.prior, LatentPrior) else self.image_shape
        return None if own is None or tuple(image_shape[1:]) == own[1:] else own[1:]

    def windows(self, image_shape: Sequence[int]) -> int:
        """Return the number of windows of an image (C, *spatial); 1 if it is not tiled."""
        window = self._window(image_shape)
        return 1 if window is None else TiledPrior(self.prior, window).count(image_shape[1:])

    def sampler(self, image_shape: Sequence[int]) -> Sampler:
        """Return the sampler for images (C, *spatial); settings without a model leave it out."""
        prior, model = self.on(image_shape)
        return self.settings.sampler(prior, model if self.settings.models else None)

    def pace(self, problem: InverseProblem, samples: int = 1, batch_size: int | None = None) -> PassTimes:
        """Time each kind of pass on this machine, for all samples of a problem."""
        problem, rows = self.posed(problem), len(problem) * samples
        at_once = min(batch_size or rows, rows)
        prior, model = self.on(problem.image_shape)
        pace = PassTimes.measure(prior, problem.select(torch.arange(rows)[:at_once] // samples), model)
        return pace.times(rows / at_once)

    def using(self, entry: FrontEntry) -> Restorer:
        """Return the same with the settings of a front's entry."""
        return replace(self, settings=entry.settings)

    def restore(
        self,
        problem: InverseProblem,
        samples: int = 1,
        *,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
        batch_size: int | None = None,
        callback: Callable[[Step], bool | None] | None = None,
        store: StateStore | None = None,
    ) -> Posterior:
        """Sample the posterior; the arguments are those of :meth:`lavps.MGDM.sample`.

        With a latent prior, latents are sampled, and decoded images are returned.
        """
        measured, problem = problem, self.posed(problem)
        if isinstance(self.prior, LatentPrior):
            check_images(measured, self.prior)
        if self.progress is not None and self._window(problem.image_shape) is None:
            callback = _reporting(self.progress, callback)
        posterior = self.sampler(problem.image_shape).sample(
            problem,
            samples,
            seed=seed,
            items=items,
            batch_size=batch_size,
            callback=callback,
            store=store,
        )
        if not isinstance(self.prior, LatentPrior):
            return posterior
        return self._decoded(posterior, measured, batch_size)

    def posed(self, problem: InverseProblem) -> InverseProblem:
        """Return the problem in the prior's space: images, or latents."""
        if not isinstance(self.prior, LatentPrior):
            return problem
        return InverseProblem(problem.y, DecodedOperator(problem.operator, self.prior), problem.noise)

    def pictures(self, rows: Tensor) -> Tensor:
        """Return sampled rows as images (B, C, *spatial): unchanged, or decoded latents."""
        return self.prior.decode(rows) if isinstance(self.prior, LatentPrior) else rows

    @torch.no_grad()
    def _decoded(self, posterior: Posterior, problem: InverseProblem, batch_size: int | None) -> Posterior:
        assert posterior.samples is not None
        rows = posterior.samples.flatten(0, 1)
        images = torch.cat([self.pictures(part) for part in torch.split(rows, batch_size or len(rows))])
        repeated = problem.repeat(posterior.num_samples)
        images = repeated.project(images)
        misfits = repeated.chi_square(images).reshape(-1, posterior.num_samples)
        samples = images.reshape(*posterior.samples.shape[:2], *images.shape[1:])
        std = samples.std(1) if posterior.num_samples > 1 else torch.full_like(samples[:, 0], float("nan"))
        return replace(posterior, samples=samples, mean=samples.mean(1), std=std, chi_square=misfits)


def _front(
    prior: Prior, model: InferenceModel | FewStepModel | None, task: str | None = None
) -> list[FrontEntry]:
    """Return the front of a loaded model, or of the prior."""
    if isinstance(model, FewStepModel):
        return few_step_front(len(model.limits))
    folder = folder_of(prior) if model is None else None
    return front_for(folder, model is not None, task, isinstance(prior, LatentPrior))


def _reporting(
    progress: Callable[[int], None], callback: Callable[[Step], bool | None] | None
) -> Callable[[Step], bool | None]:
    """Return a callback that also reports the denoiser evaluations of each step."""

    def report(step: Step) -> bool | None:
        progress(round((step.forwards + step.backwards) * len(step.x_0)))
        return None if callback is None else callback(step)

    return report


def restore(
    y: Tensor,
    operator: Operator | Callable[[Tensor], Tensor],
    prior: Prior | str | Path,
    noise: float | NoiseModel | None = None,
    samples: int = 1,
    *,
    model: InferenceModel | FewStepModel | None = None,
    quality: Quality | None = None,
    evaluations: int | None = None,
    seed: int = 0,
) -> Posterior:
    """Restore measurements: samples, mean and standard deviation of the posterior.

    Args:
        y: Measurements y ~ N(A(x), σ²I) of images x in [-1, 1], shape (B, *measurement). One measurement
            without a batch axis is a batch of one, and so is its posterior.
        operator: Operator A.
        prior: Denoiser, model folder or another library's checkpoint; tiled for images of other sizes.
        noise: Standard deviation σ in the units of y, 0 for exact values, or a noise model; default the
            operator's own, such as that of a physics of deepinv.
        samples: Number of samples per item.
        model: Inference model or few-step model of this prior.
        quality: "fast", "balanced" or "best" (:mod:`~lavps.restoration.presets`); default "balanced".
        evaluations: Maximum number of denoiser evaluations per sample, instead of a quality; 1 for an
            estimate of the posterior mean.
        seed: Seed of the sampler's noise.

    Raises:
        ValueError: y cannot be a measurement of images in [-1, 1], does not fit operator or prior, or has
            noise that is neither given nor stated by the operator.

    Warns:
        PixelRangeWarning: y suggests images in [0, 1].

    Example:
        >>> from lavps.operators import AveragePool
        >>> from lavps.priors import GaussianPrior
        >>> prior = GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> restore(torch.zeros(1, 1, 2, 2), AveragePool(2), prior, noise=0.1, samples=3).std.shape
        torch.Size([1, 1, 4, 4])
    """
    loaded = load_prior(prior, y.device) if isinstance(prior, str | Path) else prior
    restorer = Restorer(loaded, model=model)
    in_shape = restorer.image_shape
    if isinstance(operator, Operator):
        y, in_shape = with_batch_axis(y, operator, len(in_shape or ())), None
    problem = InverseProblem(y, operator, noise, in_shape)
    if isinstance(problem.noise, GaussianNoise) and not isinstance(problem.operator, RescaledOperator):
        check_range(problem.operator, problem.y, float(torch.as_tensor(problem.noise.std).max()))
    task = task_of(operator)
    if task == "denoise" and denoising_noise(problem) is None:
        task = None  # its noise is not white
    entry = chosen(_front(loaded, model, task), quality, evaluations)
    return restorer.using(entry).restore(problem, samples, seed=seed)
