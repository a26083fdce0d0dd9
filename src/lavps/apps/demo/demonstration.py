"""The demonstration: a degraded image is restored step by step, as by ``lavps restore``."""

from __future__ import annotations

__all__ = ["SHOWN", "Demonstration", "Outcome", "Status"]

import queue
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ...checkpoints import local_copy
from ...evaluation.noise_level import UnknownNoise
from ...pages.panels import Panel, heat, picture_panel, uncertainty_scale
from ...problem import InverseProblem
from ...restoration.config import RestorationConfig
from ...restoration.files import RestoredFile
from ...restoration.forecast import RunForecast, in_words
from ...restoration.job import FileRestorer
from ...restoration.manifest import Manifest
from ...restoration.presets import Quality
from ...restoration.restorer import Restorer
from ...samplers import FewStepModel
from ...samplers.base import Step
from .damage import Damage

Pixels = npt.NDArray[np.uint8]
SHOWN = 512  # smallest side of an image on the page, in pixels; the largest is twice as long
_INTERVAL = 0.3  # seconds between two states
_ERRORS = (OSError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError)


@dataclass(frozen=True, eq=False)
class Status:
    """State of a restoration.

    Attributes:
        text: Current computation, in words.
        share: Share that is done, in [0, 1].
        warnings: Probable mistakes.
        preview: Current estimate of the first sample.
    """

    text: str
    share: float = 0.0
    warnings: tuple[str, ...] = ()
    preview: Pixels | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a restoration.

    Attributes:
        before: Measurement, at the size of the samples.
        samples: Samples.
        mean: Mean of the samples.
        uncertainty: Standard deviation of the samples, as a heat map; None for one sample.
        checks: Data fit, typicality and health, each a name and its words.
        archive: All outputs of the restoration, a zip file.
    """

    before: Pixels
    samples: tuple[Pixels, ...]
    mean: Pixels
    uncertainty: Pixels | None
    checks: tuple[tuple[str, str], ...]
    archive: Path


class _StopRequested(Exception):  # noqa: N818 - not an error
    """The user has stopped the restoration."""


class Demonstration:
    """Models of the demonstration.

    Args:
        prior: Model folder, name in the zoo, or Hub id of the prior.
        model: Inference model or few-step model of this prior.
        device: Device of the computation.
    """

    def __init__(self, prior: str, model: str | None = None, device: str = "cpu") -> None:
        self.prior, self.model, self.device = prior, model, device
        self.restorer = Restorer.load(prior, model, device=device)
        self.shape = self.restorer.image_shape or (3, 64, 64)
        self._scratch = tempfile.TemporaryDirectory(prefix="lavps-demo-")

    @property
    def has_quality(self) -> bool:
        """Whether the presets differ; a few-step model has one."""
        return not isinstance(self.restorer.model, FewStepModel)

    def folder(self) -> Path:
        """Return a new folder, which is removed at the end of the process."""
        return Path(tempfile.mkdtemp(dir=self._scratch.name))

    def examples(self) -> list[Pixels]:
        """Return the first samples on the sheet beside the prior; none without a sheet."""
        sheet, side = Path(local_copy(self.prior)) / "samples.png", self.shape[-1]
        if not sheet.is_file():
            return []
        with Image.open(sheet) as image:
            pixels = np.asarray(image.convert("RGB"))
        columns = range(0, pixels.shape[1] - side + 1, side)
        return [pixels[: self.shape[-2], left : left + side] for left in columns][:8]

    def degraded(self, image: Pixels, damage: Damage, seed: int = 0) -> Path:
        """Degrade the centre of an image (H, W, 3), and write it to a file."""
        x = self.fitted(image)
        problem = InverseProblem.simulate(x[None], damage.operator(), damage.noise or 0.0, seed)
        file = self.folder() / ("example.jpg" if damage.kind == "jpeg" else "example.png")
        pixels = picture_panel(problem.y[0], "").pixels
        if damage.kind == "jpeg":
            Image.fromarray(pixels).save(file, quality=int(damage.amount))
        else:
            Image.fromarray(pixels).save(file)
        return file

    def shown(self, file: Path, damage: Damage) -> Pixels:
        """Return a degraded example for the page; missing pixels show a checkerboard."""
        with Image.open(file) as image:
            pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1) / 127.5 - 1
        seen = None if damage.mask is None else torch.from_numpy(~damage.mask)[None]
        return _sized(picture_panel(pixels, "", observed=seen))

    def original(self, image: Pixels) -> Pixels:
        """Return the part of an example that is degraded, for the page."""
        return _sized(picture_panel(self.fitted(image), ""))

    def fitted(self, image: Pixels) -> Tensor:
        """Return the centre of an image (H, W, 3), resized to the prior's (C, H, W)."""
        channels, height, width = self.shape
        given = Image.fromarray(image).convert("RGB" if channels == 3 else "L")
        scale = max(height / given.height, width / given.width)
        size = round(given.width * scale), round(given.height * scale)
        large = given if scale == 1 else given.resize(size, Image.Resampling.LANCZOS)
        left, top = (large.width - width) // 2, (large.height - height) // 2
        levels = np.array(large.crop((left, top, left + width, top + height)), dtype=np.float32)
        return torch.from_numpy(levels).reshape(height, width, channels).permute(2, 0, 1) / 127.5 - 1

    def restore(
        self,
        file: Path,
        damage: Damage,
        samples: int = 4,
        quality: Quality = "fast",
        seed: int = 0,
        stop: threading.Event | None = None,
    ) -> Iterator[Status | Outcome]:
        """Restore a file, and yield its progress, and last its outcome.

        Args:
            file: Degraded image.
            damage: Degradation.
            samples: Number of samples.
            quality: Preset of quality against cost.
            seed: Seed of the sampler's noise.
            stop: Event that ends the run at the next denoiser evaluation, without an outcome.

        Raises:
            ValueError: The file cannot be restored; the message is one sentence.
        """
        folder = self.folder()
        run = _Run(self.restorer, stop or threading.Event())
        spec = damage.spec(folder)
        job = RestorationConfig(
            self.prior, self.model, spec, samples, seed, quality=quality, device=self.device
        )
        worker = threading.Thread(target=run.restore, args=(job, file, folder / "restored"), daemon=True)
        worker.start()
        try:
            while (state := run.states.get()) is not None:
                if isinstance(state, UnknownNoise):
                    raise ValueError(f"{state.reason}: choose how noisy the image is.") from state
                if isinstance(state, Exception):
                    raise ValueError(" ".join(str(state).split()) or type(state).__name__) from state
                yield state
        finally:  # also when the page was closed
            run.stop.set()


class _Run:
    """A restoration in a thread; its states are in a queue, which ends with None."""

    def __init__(self, restorer: Restorer, stop: threading.Event) -> None:
        self.restorer, self.stop = restorer, stop
        self.states: queue.SimpleQueue[Status | Outcome | Exception | None] = queue.SimpleQueue()
        self._state, self._done, self._total, self._start = Status("Reading the image"), 0, 1, 0.0
        self._last = 0.0

    def restore(self, job: RestorationConfig, file: Path, folder: Path) -> None:
        try:
            self.states.put(self._state)
            folder.mkdir()
            restored, manifest = FileRestorer(job, self.restorer).restore(
                file, folder, self._step, announce=self._announce, progress=self._advance
            )
            self.states.put(_outcome(restored, manifest, file, folder))
        except _StopRequested:
            pass
        except _ERRORS as error:
            self.states.put(error)
        finally:
            self.states.put(None)

    def _announce(self, expected: RunForecast) -> None:
        self._total, self._start = max(expected.total, 1), time.monotonic()
        text = f"{expected.measured} to {expected.restored} pixels, noise {expected.noise}"
        if expected.seconds is not None:
            text += f", about {in_words(expected.seconds)}"
        # The rest of a doubt is a command, which does not help on a page.
        warnings = tuple(re.split("[:.] ", doubt)[0] for doubt in expected.doubts)
        self._put(replace(self._state, text=text, warnings=warnings), forced=True)

    def _advance(self, evaluations: int) -> None:
        self._done += evaluations
        share = min(self._done / self._total, 1.0)
        left = (time.monotonic() - self._start) * (1 - share) / share if share else 0.0
        self._put(replace(self._state, text=f"{share:.0%}, about {in_words(left)} left", share=share))

    def _step(self, step: Step) -> None:
        panel = picture_panel(self.restorer.pictures(step.x_0[:1])[0], "")
        self._put(replace(self._state, preview=_sized(panel)))

    def _put(self, state: Status, forced: bool = False) -> None:
        """Keep the state, and publish it if the interval has passed or it is forced."""
        if self.stop.is_set():
            raise _StopRequested
        self._state = state
        if forced or time.monotonic() - self._last >= _INTERVAL:
            self._last = time.monotonic()
            self.states.put(state)


def _outcome(restored: RestoredFile, manifest: Manifest, file: Path, folder: Path) -> Outcome:
    problem, samples = restored.measured.grey or restored.measured.problem, restored.samples
    observed = problem.operator.observed(problem.y)
    seen = None if observed is None else observed.reshape(-1, *observed.shape[-2:])[:1]
    shown = tuple(_sized(picture_panel(sample, "")) for sample in samples)
    before = _sized(picture_panel(problem.y[0], "", observed=seen), shown[0].shape[1::-1])
    uncertainty = None
    if len(samples) > 1:
        uncertainty = _sized(Panel(heat(*uncertainty_scale(samples.std(0))), ""))
    result = manifest.result
    named = (
        ("Data fit", "verdict"),
        ("Typicality", "typicality"),
        ("Pixel values", "health"),
        ("Advice", "advice"),
    )
    checks = tuple((name, str(result[key])) for name, key in named if result.get(key))
    archive = shutil.make_archive(str(folder.with_name(f"{file.stem}-restored")), "zip", folder)
    mean = _sized(picture_panel(samples.mean(0), ""))
    return Outcome(before, shown, mean, uncertainty, checks, Path(archive))


def _sized(panel: Panel, size: tuple[int, ...] | None = None) -> Pixels:
    """Return the pixels at a size (width, height) for the page: at least SHOWN, at most twice as much."""
    image = Image.fromarray(panel.pixels)
    if size is None:
        factor = max(SHOWN / min(image.size), 1.0)
        factor *= min(2 * SHOWN / (factor * max(image.size)), 1.0)
        size = tuple(round(factor * side) for side in image.size)
    return np.asarray(image.resize((size[0], size[1]), Image.Resampling.BICUBIC))
