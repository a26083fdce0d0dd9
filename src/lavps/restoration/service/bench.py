"""The models of the service, and what runs on them: batches of requests, step by step."""

from __future__ import annotations

__all__ = ["Answer", "Bench", "Request", "Update"]

import io
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...amortization import load_prior
from ...amortization.checkpoint import read_config
from ...noise import GaussianNoise
from ...operators import Identity
from ...operators.named import NAMES
from ...priors.foreign import local_copy
from ...problem import InverseProblem
from ...schedule import as_time
from ..files import ITEM
from ..images import ImageError, ImageFile
from ..measuring import Measured, Measuring
from ..pictures import comparison, picture_panel, uncertainty_panel
from ..presets import Settings, front_for, of_quality
from ..restorer import Restorer
from ..stacking import alike, stacked
from ..writing import encode_image
from .jobs import Limits, Options, Refused

_PREVIEWS = 8  # in a run
_NEEDS_MORE = ("phase-retrieval",)  # whose measurements are no pictures
TASKS = (*(name for name in NAMES if "random" not in name and name not in _NEEDS_MORE), "inpaint")
_SUFFIXES = {"PNG": ".png", "JPEG": ".jpg", "TIFF": ".tif", "WEBP": ".webp", "NPY": ".npy"}


@dataclass(frozen=True)
class Request:
    """A measurement and what is asked of it; pickles."""

    id: str
    content: bytes
    options: Options


@dataclass(frozen=True)
class Answer:
    """What came of a request: pictures by name, or a reason."""

    id: str
    pictures: dict[str, bytes]
    suffix: str = ".png"
    chi_square: tuple[float, ...] = ()
    acceptance: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Update:
    """How far a batch is, with a picture of each as it looks now, or the answers at its end."""

    step: int
    total: int
    previews: tuple[bytes, ...] = ()
    answers: tuple[Answer, ...] = ()


class Bench:
    """Models by name, loaded once.

    Args:
        models: name to (folder of the prior, folder of the inference model or None).
        limits: of a request.
        device: where to compute.
    """

    def __init__(
        self, models: dict[str, tuple[str, str | None]], limits: Limits | None = None, device: str = "cpu"
    ) -> None:
        self.models, self.limits, self.device = models, limits or Limits(), device
        self.shapes = {name: _shape(prior) for name, (prior, _) in models.items()}
        self._loaded: dict[str, Restorer] = {}

    def restorer(self, name: str) -> Restorer:
        """What restores with a model, loaded when it is first wanted: who only checks requests needs none."""
        if name not in self._loaded:
            prior, warm = self.models[name]
            self._loaded[name] = Restorer.load(prior, warm, device=self.device)
        return self._loaded[name]

    def settings(self, options: Options) -> Settings:
        """Of the sampler, for a request."""
        prior, warm = self.models[options.model]
        front = front_for(local_copy(warm or prior), warm is not None, options.task)
        settings = of_quality(front, options.quality).settings
        if options.steps is not None:
            settings = replace(settings, num_steps=options.steps)
        return settings

    def measured(self, request: Request) -> Measured:
        """The problem that a request poses.

        Raises:
            Refused: it poses none, or one that is too large.
        """
        options, limits = request.options, self.limits
        if options.model not in self.models:
            raise Refused(404, f"there is no model {options.model!r}: there are {', '.join(self.models)}")
        if options.task not in TASKS:
            raise Refused(422, f"there is no task {options.task!r}: there are {', '.join(TASKS)}")
        if not 1 <= options.samples <= limits.most_samples:
            raise Refused(422, f"samples must lie between 1 and {limits.most_samples}")
        steps = self.settings(options).num_steps
        if not 3 <= steps <= limits.most_steps:
            raise Refused(422, f"steps must lie between 3 and {limits.most_steps}, got {steps}")
        _require_small(request.content, limits.most_pixels)
        try:
            how = Measuring(options.task, options.noise)
            measured = how.read_content(request.content, None, self.shapes[options.model])
        except ImageError as error:
            raise Refused(415, f"the measurement cannot be read: {error}") from error
        except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
            raise Refused(422, f"the measurement does not fit: {error}") from error
        height, width = measured.problem.image_shape[-2:]
        if height * width > limits.most_pixels:
            raise Refused(413, f"{height} x {width} pixels are more than {limits.most_pixels}")
        return measured

    def kind(self, request: Request) -> Hashable:
        """Requests of one kind can be sampled together."""
        options, measured = request.options, self.measured(request)
        return options.model, self.settings(options), options.samples, alike(measured)

    def run(self, requests: Sequence[Request]) -> Iterator[Update]:
        """Sample requests of one kind together; the last update has the answers."""
        measured = [self.measured(request) for request in requests]
        options = requests[0].options
        restorer = replace(self.restorer(options.model), settings=self.settings(options))
        problem = restorer.posed(stacked([one.problem for one in measured]).to(self.device))
        steps = restorer.sampler(problem.image_shape).iterate(
            problem,
            options.samples,
            seed=[request.options.seed for request in requests],
            items=[ITEM] * len(requests),
        )
        kept: list[Tensor] = []
        for step in steps:
            if step.progress.accepted is not None:
                kept.append(step.progress.accepted.float().cpu())
            every = max(step.total // _PREVIEWS, 1)
            if step.index + 1 < step.total:
                previews: tuple[bytes, ...] = ()
                if step.index % every == every - 1:
                    rows = restorer.pictures(step.x_0[:: options.samples]).cpu()
                    previews = tuple(
                        encode_image(x, _plain(one.like), "PNG")
                        for x, one in zip(rows, measured, strict=True)
                    )
                yield Update(step.index + 1, step.total, previews)
        rows = restorer.pictures(step.x_0).cpu()
        samples = rows.reshape(len(requests), options.samples, *rows.shape[1:])
        shares = torch.stack(kept).mean(0).reshape(len(requests), -1).mean(1) if kept else None
        answers = []
        for index, (request, one) in enumerate(zip(requests, measured, strict=True)):
            share = None if shares is None else float(shares[index])
            answers.append(_answer(request, one, samples[index], share))
        yield Update(step.total, step.total, (), tuple(answers))

    @torch.no_grad()
    def probe(self) -> None:
        """One pass of every denoiser, which must be finite.

        Raises:
            RuntimeError: it is not.
        """
        for name in self.models:
            restorer = self.restorer(name)
            shape = restorer.image_shape or (3, 64, 64)
            nothing = torch.zeros(1, *shape, device=self.device)
            problem = restorer.posed(InverseProblem(nothing, Identity(), GaussianNoise(1.0)))
            x = nothing.new_zeros(1, *problem.image_shape)
            estimate = restorer.prior.denoise(x, as_time(0.5))
            if not bool(estimate.isfinite().all()):
                raise RuntimeError(f"the denoiser of {name} gives numbers that are not finite")


def _shape(prior: str) -> tuple[int, ...] | None:
    """Of a prior's images, without loading it where its folder says so."""
    try:
        return read_config(prior).image_shape
    except (OSError, ValueError):
        return getattr(load_prior(prior), "image_shape", None)


def _plain(like: ImageFile) -> ImageFile:
    return replace(like, alpha=None, palette=None, mode="RGB" if like.channels == 3 else "L", dtype="uint8")


def _answer(request: Request, measured: Measured, samples: Tensor, share: float | None) -> Answer:
    like = measured.like
    suffix = _SUFFIXES[like.format]
    pictures = {f"{n}": encode_image(x, like, like.format) for n, x in enumerate(samples)}
    pictures["preview"] = encode_image(samples.mean(0), _plain(like), "PNG")
    if len(samples) > 1:
        pictures["mean"] = encode_image(samples.mean(0), like, like.format)
        shown = samples.mean(1, keepdim=True) if like.channels == 1 else samples
        panels = [picture_panel(shown.mean(0), "mean"), uncertainty_panel(shown.std(0), len(shown))]
        pictures["uncertainty"] = comparison(panels)
    return Answer(request.id, pictures, suffix, tuple(measured.chi_square(samples)), share)


def _require_small(content: bytes, most: int) -> None:
    """Refuse, by its header, a picture whose own pixels are too many."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("PNG", "JPEG", "TIFF", "WEBP")) as image:
            width, height = image.size
    except Exception:  # whatever it is, the decoder will say it
        return
    if width * height > most:
        raise Refused(413, f"{height} x {width} pixels are more than {most}")
