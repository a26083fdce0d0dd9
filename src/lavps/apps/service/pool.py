"""The models of the service, and the sampling of request batches."""

from __future__ import annotations

__all__ = ["Answer", "ModelPool", "Request", "Update"]

import io
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor

from ...checkpoints import load_prior, local_copy
from ...checkpoints.folder import read_config
from ...evaluation.noise_level import UnknownNoise
from ...image_formats import DEFAULT_SUFFIX
from ...io.directories import require_directories
from ...io.encode import encode_image
from ...io.image import ImageError, ImageFile
from ...noise import GaussianNoise
from ...operators import Identity
from ...operators.registry import NAMES
from ...pages.panels import comparison, picture_panel, uncertainty_panel
from ...problem import InverseProblem
from ...restoration.files import ITEM
from ...restoration.presets import chosen, front_for
from ...restoration.restorer import Restorer
from ...restoration.spec import ImageTooLarge, MeasuredFile, MeasurementSpec
from ...restoration.stacking import batch_key, stacked
from ...samplers import Settings
from ...schedule import as_time
from .jobs import Limits, Options, Refused

_PREVIEWS = 8  # number of previews per batch
# Tasks whose measurements are images.
TASKS = (*(name for name in NAMES if "random" not in name and name != "phase-retrieval"), "inpaint")


@dataclass(frozen=True)
class Request:
    """A measurement and its options, which can be pickled."""

    id: str
    content: bytes
    options: Options


@dataclass(frozen=True)
class Answer:
    """The result of a request: encoded images by name."""

    id: str
    pictures: dict[str, bytes]
    suffix: str = ".png"
    chi_square: tuple[float, ...] = ()
    acceptance: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class Update:
    """The progress of a batch: previews of its requests, or the answers at its end."""

    step: int
    total: int
    previews: tuple[bytes, ...] = ()
    answers: tuple[Answer, ...] = ()


class ModelPool:
    """Models by name, loaded once.

    Args:
        models: Folders of prior and inference model (or None), by name of the model.
        limits: Limits of a request.
        device: Device of the models.
    """

    def __init__(
        self, models: dict[str, tuple[str, str | None]], limits: Limits | None = None, device: str = "cpu"
    ) -> None:
        self.models, self.limits, self.device = models, limits or Limits(), device
        self.shapes = {name: _shape(prior) for name, (prior, _) in models.items()}
        self._loaded: dict[str, Restorer] = {}

    def restorer(self, name: str) -> Restorer:
        """Return the restorer of a model, loaded at first use: validation of requests needs none."""
        if name not in self._loaded:
            prior, warm = self.models[name]
            self._loaded[name] = Restorer.load(prior, warm, device=self.device)
        return self._loaded[name]

    def settings(self, options: Options) -> Settings:
        """Return the sampler settings for a request."""
        prior, warm = self.models[options.model]
        front = front_for(local_copy(warm or prior), warm is not None, options.task)
        return chosen(front, options.quality, options.evaluations).settings

    def measured(self, request: Request) -> MeasuredFile:
        """Return the inverse problem of a request.

        Raises:
            Refused: The request is invalid or exceeds a limit.
        """
        options, limits = request.options, self.limits
        if options.model not in self.models:
            raise Refused(
                404, f"there is no model {options.model!r}; the models are {', '.join(self.models)}"
            )
        if options.task not in TASKS:
            raise Refused(422, f"there is no task {options.task!r}; the tasks are {', '.join(TASKS)}")
        if not 1 <= options.samples <= limits.max_samples:
            raise Refused(422, f"samples must lie between 1 and {limits.max_samples}")
        most = limits.max_evaluations
        if options.evaluations is not None and not 1 <= options.evaluations <= most:
            raise Refused(422, f"evaluations must lie between 1 and {most}, got {options.evaluations}")
        try:
            evaluations = self.settings(options).counts.forwards
        except ValueError as error:  # both quality and evaluations, or too few of them
            raise Refused(422, str(error)) from error
        if evaluations > most:
            raise Refused(422, f"this quality takes {evaluations:g} evaluations, more than {most}")
        try:  # the header, before anything is decoded
            require_directories(request.content)
            with Image.open(io.BytesIO(request.content), formats=("PNG", "JPEG", "TIFF", "WEBP")) as image:
                width, height = image.size
        except Exception:  # decoding reports the error
            width, height = 0, 0
        if width * height > limits.max_pixels:
            raise Refused(413, f"{height} x {width} pixels exceed the limit of {limits.max_pixels}")
        try:
            spec = MeasurementSpec(options.task, options.noise)
            shape = self.shapes[options.model]
            measured = spec.read_content(request.content, None, shape, limits.max_pixels)
        except ImageTooLarge as error:
            raise Refused(413, str(error)) from error
        except UnknownNoise as error:
            remedy = "send its standard deviation, such as noise=0.05"
            raise Refused(422, f"{error.reason}: {remedy}") from error
        except ImageError as error:
            raise Refused(415, f"the measurement cannot be read: {error}") from error
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            raise Refused(422, f"the measurement is invalid: {error}") from error
        return measured

    def kind(self, request: Request) -> Hashable:
        """Return the kind of a request: requests of the same kind can be sampled together."""
        options, measured = request.options, self.measured(request)
        return options.model, self.settings(options), options.samples, batch_key(measured)

    def run(self, requests: Sequence[Request]) -> Iterator[Update]:
        """Sample requests of the same kind together; the last update has the answers."""
        measured = [self.measured(request) for request in requests]
        options = requests[0].options
        restorer = replace(self.restorer(options.model), settings=self.settings(options))
        problem = restorer.posed(stacked([one.problem for one in measured]).to(self.device))
        seeds, items = [request.options.seed for request in requests], [ITEM] * len(requests)
        sampler = restorer.sampler(problem.image_shape)
        accepted: list[Tensor] = []
        for step in sampler.iterate(problem, options.samples, seed=seeds, items=items):
            if step.progress.accepted is not None:
                accepted.append(step.progress.accepted.float().cpu())
            every = max(step.total // _PREVIEWS, 1)
            if step.index + 1 < step.total:
                previews: list[bytes] = []
                if step.index % every == every - 1:
                    shown = zip(restorer.pictures(step.x_0[:: options.samples]).cpu(), measured, strict=True)
                    previews = [encode_image(x, _plain(one.like), "PNG") for x, one in shown]
                yield Update(step.index + 1, step.total, tuple(previews))
        rows = restorer.pictures(step.x_0).cpu()
        samples = rows.reshape(len(requests), options.samples, *rows.shape[1:])
        rates: list[float | None] = [None] * len(requests)
        if accepted:
            rates = torch.stack(accepted).mean(0).reshape(len(requests), -1).mean(1).tolist()
        answers = map(_answer, requests, measured, samples, rates)
        yield Update(step.total, step.total, (), tuple(answers))

    @torch.no_grad()
    def probe(self) -> None:
        """Evaluate every denoiser once.

        Raises:
            RuntimeError: An output is not finite.
        """
        for name in self.models:
            restorer = self.restorer(name)
            shape = restorer.image_shape or (3, 64, 64)
            y = torch.zeros(1, *shape, device=self.device)
            problem = restorer.posed(InverseProblem(y, Identity(), GaussianNoise(1.0)))
            estimate = restorer.prior.denoise(y.new_zeros(1, *problem.image_shape), as_time(0.5))
            if not bool(estimate.isfinite().all()):
                raise RuntimeError(f"the output of the denoiser of {name} is not finite")


def _shape(prior: str) -> tuple[int, ...] | None:
    """Return the image shape of a prior, without loading it if its config has the shape."""
    try:
        return read_config(prior).image_shape
    except (OSError, ValueError):
        return getattr(load_prior(prior), "image_shape", None)


def _plain(like: ImageFile) -> ImageFile:
    return replace(like, alpha=None, palette=None, mode="RGB" if like.channels == 3 else "L", dtype="uint8")


def _answer(request: Request, measured: MeasuredFile, samples: Tensor, acceptance: float | None) -> Answer:
    like = measured.like
    pictures = {f"{n}": encode_image(x, like, like.format) for n, x in enumerate(samples)}
    pictures["preview"] = encode_image(samples.mean(0), _plain(like), "PNG")
    if len(samples) > 1:
        pictures["mean"] = encode_image(samples.mean(0), like, like.format)
        shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
        panels = [picture_panel(shown.mean(0), "mean"), uncertainty_panel(shown.std(0), len(shown))]
        pictures["uncertainty"] = comparison(panels)
    misfits, noise = tuple(measured.chi_square(samples)), measured.measuring.noise
    return Answer(request.id, pictures, DEFAULT_SUFFIX[like.format], misfits, acceptance, noise)
