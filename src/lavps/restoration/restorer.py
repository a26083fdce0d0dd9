"""From a measurement to samples of its posterior: a prior, perhaps an inference model, and settings.

.. code-block:: python

    photo = read_image("photo.png")
    prior = lavps.load_prior("runs/prior/model")
    posterior = restore(photo.pixels[None], lavps.operators.AveragePool(4), prior, noise=0.02, samples=4)
    write_image("restored.png", posterior.samples[0, 0], like=photo)

The size of the images is the measurement's: where it is not the prior's own, denoiser and inference model
work on windows (:mod:`~lavps.restoration.tiling`).
"""

from __future__ import annotations

__all__ = ["Restorer", "restore"]

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ..amortization import InferenceModel, load_inference_model, load_prior
from ..amortization.hashes import weights_hash
from ..amortization.loading import prior_hash
from ..noise import GaussianNoise, NoiseModel
from ..operators import DecodedOperator, Operator
from ..priors import LatentPrior, Prior
from ..problem import InverseProblem
from ..samplers import MGDM, Posterior
from ..samplers.base import Step
from .pacing import Pace
from .presets import FrontEntry, Quality, Settings, front_for, of_quality
from .tiling import TiledPrior, tiled_model


@dataclass(frozen=True)
class Restorer:
    """What restores: loaded once, it serves any number of problems and threads.

    Args:
        prior: the denoiser.
        settings: of the sampler.
        model: an inference model of this prior; None samples zero-shot (MGDM).
        image_shape: (C, *spatial) the prior was made for; default what it says of itself. Other sizes are
            restored window by window; None takes every size as it is.
        tile_batch: windows at a time.
    """

    prior: Prior
    settings: Settings = Settings()
    model: InferenceModel | None = None
    image_shape: tuple[int, ...] | None = None
    tile_batch: int = 16

    def __post_init__(self) -> None:
        if self.image_shape is None:
            known = getattr(self.prior, "image_shape", None)
            object.__setattr__(self, "image_shape", None if known is None else tuple(known))

    @classmethod
    def load(
        cls,
        prior: str | Path,
        model: str | Path | None = None,
        settings: Settings | None = None,
        device: str | torch.device = "cpu",
        tile_batch: int = 16,
        label: int | None = None,
    ) -> Restorer:
        """From model folders or checkpoints; a model that was not trained for the prior is refused."""
        loaded = load_prior(prior, device, label)
        warm = None if model is None else load_inference_model(model, loaded, device)
        if settings is None:
            front = front_for(model or prior, warm is not None, None, isinstance(loaded, LatentPrior))
            settings = of_quality(front, "balanced").settings
        return cls(loaded, settings, warm, tile_batch=tile_batch)

    @property
    def hashes(self) -> tuple[str | None, str | None]:
        """What tells the prior and the model from others."""
        return prior_hash(self.prior), None if self.model is None else weights_hash(self.model)

    def on(self, image_shape: Sequence[int]) -> tuple[Prior, InferenceModel | None]:
        """Prior and model for images (C, *spatial): themselves, or tiled. Latents are taken as they are."""
        own = None if isinstance(self.prior, LatentPrior) else self.image_shape
        if own is None or tuple(image_shape[1:]) == own[1:]:
            return self.prior, self.model
        window = own[1:]
        model = None if self.model is None else tiled_model(self.model, window, self.tile_batch)
        return TiledPrior(self.prior, window, batch=self.tile_batch), model

    def sampler(self, image_shape: Sequence[int]) -> MGDM:
        """MGDM or LAVPS for images (C, *spatial)."""
        return self.settings.sampler(*self.on(image_shape))

    def pace(self, problem: InverseProblem, samples: int = 1, batch_size: int | None = None) -> Pace:
        """Seconds of one pass each, on this machine, for all samples of a problem."""
        problem, rows = self.posed(problem), len(problem) * samples
        at_once = min(batch_size or rows, rows)
        prior, model = self.on(problem.image_shape)
        pace = Pace.measure(prior, problem.select(torch.arange(rows)[:at_once] // samples), model)
        return pace.times(rows / at_once)

    def using(self, entry: FrontEntry) -> Restorer:
        """The same with the settings of an entry of a front."""
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
    ) -> Posterior:
        """Samples of the posterior; the arguments are those of :meth:`lavps.MGDM.sample`.

        Under a latent prior latents are sampled, and what is returned is decoded.
        """
        problem = self.posed(problem)
        posterior = self.sampler(problem.image_shape).sample(
            problem, samples, seed=seed, items=items, batch_size=batch_size, callback=callback
        )
        return self._decoded(posterior, batch_size) if isinstance(self.prior, LatentPrior) else posterior

    def posed(self, problem: InverseProblem) -> InverseProblem:
        """The problem as a question about what the prior knows: images, or latents."""
        if not isinstance(self.prior, LatentPrior):
            return problem
        return InverseProblem(problem.y, DecodedOperator(problem.operator, self.prior), problem.noise)

    def pictures(self, rows: Tensor) -> Tensor:
        """What was sampled as images (B, C, *spatial): itself, or decoded latents."""
        return self.prior.decode(rows) if isinstance(self.prior, LatentPrior) else rows

    @torch.no_grad()
    def _decoded(self, posterior: Posterior, batch_size: int | None) -> Posterior:
        assert posterior.samples is not None
        rows = posterior.samples.flatten(0, 1)
        images = torch.cat([self.pictures(part) for part in torch.split(rows, batch_size or len(rows))])
        samples = images.reshape(*posterior.samples.shape[:2], *images.shape[1:])
        std = samples.std(1) if posterior.num_samples > 1 else torch.full_like(samples[:, 0], float("nan"))
        return replace(posterior, samples=samples, mean=samples.mean(1), std=std)


def restore(
    y: Tensor,
    operator: Operator | Callable[[Tensor], Tensor],
    prior: Prior | str | Path,
    noise: float | NoiseModel = 0.05,
    samples: int = 1,
    *,
    model: InferenceModel | None = None,
    quality: Quality = "balanced",
    seed: int = 0,
) -> Posterior:
    """Restore measurements: samples, mean and spread of the images that explain them.

    Args:
        y: measurements (B, *measurement), images in [-1, 1].
        operator: how the images were measured.
        prior: a denoiser, a model folder or another library's checkpoint. One that knows its size is tiled
            for others.
        noise: standard deviation of the noise in the units of y, or a noise model.
        samples: N samples an item.
        model: an inference model of this prior, for a warm start.
        quality: "fast", "balanced" or "best" (:mod:`~lavps.restoration.presets`).
        seed: of the sampler's noise.
    """
    noise = noise if isinstance(noise, NoiseModel) else GaussianNoise(noise)
    loaded = load_prior(prior, y.device) if isinstance(prior, str | Path) else prior
    folder = prior if isinstance(prior, str | Path) else ""
    entry = of_quality(front_for(folder, model is not None, None, isinstance(loaded, LatentPrior)), quality)
    restorer = Restorer(loaded, entry.settings, model)
    in_shape = None if isinstance(operator, Operator) else restorer.image_shape
    return restorer.restore(InverseProblem(y, operator, noise, in_shape), samples, seed=seed)
