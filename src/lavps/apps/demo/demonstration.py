"""The demonstration: an image is measured, and restored by two methods step by step."""

from __future__ import annotations

__all__ = ["SHOWN", "TASKS", "DemoMeasurement", "Demonstration", "Frame"]

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ...guidance import Gradient
from ...minimizers import WhitenedGradient
from ...noise import GaussianNoise
from ...operators import AveragePool, Blur, Identity, Mask, Operator
from ...operators.blur import gaussian_kernel
from ...operators.families import MotionBlur
from ...pages.panels import Panel, heat, picture_panel, uncertainty_scale
from ...problem import InverseProblem
from ...restoration.presets import Quality, chosen, front_for
from ...restoration.restorer import Restorer
from ...samplers import MGDM, Sampler

Pixels = npt.NDArray[np.uint8]
TASKS = ("super-resolution", "inpainting", "noise", "blur", "camera shake")
SHOWN = 320  # side of an image on the page, in pixels
_GRADIENT_STEPS: dict[Quality, int] = {"fast": 25, "balanced": 50, "best": 100}  # K of MGDM


@dataclass(frozen=True)
class DemoMeasurement:
    """Simulated measurement of the image.

    Attributes:
        task: One of TASKS.
        strength: Strength of the degradation, in [0, 1].
        noise: Standard deviation of the noise, on the scale on which black is -1 and white is +1.
        mask: Pixels to inpaint, shape (H, W); default a box in the centre.
    """

    task: str = "super-resolution"
    strength: float = 0.5
    noise: float = 0.05
    mask: npt.NDArray[np.bool_] | None = None

    def operator(self, shape: tuple[int, ...]) -> Operator:
        """Return the operator for images (C, H, W)."""
        side, strength = min(shape[1:]), min(max(self.strength, 0.0), 1.0)
        if self.task == "super-resolution":
            return AveragePool(2 ** (1 + min(int(3 * strength), 2)))
        if self.task == "inpainting":
            return Mask(self._known(*shape[1:]))
        if self.task == "blur":
            return Blur(gaussian_kernel(side / 64 * (0.5 + 3 * strength)))
        if self.task == "camera shake":
            size = 2 * round(side / 64 * (3 + 8 * strength)) + 1
            return MotionBlur(size, 0.9).draw([1], shape)
        return Identity()

    def _known(self, height: int, width: int) -> Tensor:
        hidden = torch.zeros(1, height, width, dtype=torch.bool)
        if self.mask is not None and self.mask.any():
            painted = Image.fromarray(self.mask.astype(np.uint8) * 255)
            resized = painted.resize((width, height), Image.Resampling.BOX)
            hidden[0] = torch.from_numpy(np.asarray(resized) > 127)
        else:
            margin = 0.5 - 0.1 - 0.25 * self.strength
            rows, columns = int(margin * height), int(margin * width)
            hidden[0, rows : height - rows, columns : width - columns] = True
        return ~hidden

    @property
    def std(self) -> float:
        """Standard deviation of the noise; the task "noise" takes it from the strength."""
        return 0.05 + 0.45 * self.strength if self.task == "noise" else self.noise


@dataclass(frozen=True, eq=False)
class Frame:
    """State of a method after a sampler step.

    Attributes:
        name: Name of the method.
        samples: Current estimates, shape (N, C, H, W).
        seconds: Elapsed time.
        step: Number of steps done.
        total: Total number of steps.
        forwards: Denoiser evaluations per sample.
        backwards: Backward passes through the denoiser per sample.
        chi_square: Mean misfit, after the last step.
    """

    name: str
    samples: Tensor
    seconds: float
    step: int
    total: int
    forwards: float
    backwards: float
    chi_square: float | None = None

    @property
    def done(self) -> bool:
        """Whether this is the last step."""
        return self.step == self.total

    def sample(self, number: int) -> Pixels:
        """Return a sample by its number, from 1 on."""
        return _large(picture_panel(self.samples[min(number, len(self.samples)) - 1], ""))

    @property
    def mean(self) -> Pixels:
        """Mean of the samples."""
        return _large(picture_panel(self.samples.mean(0), ""))

    @property
    def uncertainty(self) -> Pixels:
        """Standard deviation of the samples, as a heat map."""
        levels, top = uncertainty_scale(self.samples.std(0))
        return _large(Panel(heat(levels, top), ""))

    def clock(self) -> str:
        """Return time, cost and misfit as text."""
        state = f"step {self.step} of {self.total}"
        if self.done:
            state = f"{self.forwards:.0f} forwards and {self.backwards:.0f} backwards per sample"
        words = f"**{self.name}** {self.seconds:.1f} s, {state}"
        return words if self.chi_square is None else f"{words}, misfit {self.chi_square:.2f}"


class Demonstration:
    """Loaded models, and their methods.

    Args:
        prior: Model folder or Hub id of the prior.
        model: Model folder or Hub id of an inference model; without one, linearized guidance is shown.
        device: Device of the computation.
    """

    def __init__(self, prior: str, model: str | None = None, device: str = "cpu") -> None:
        self.restorer, self.device = Restorer.load(prior, model, device=device), device
        self.folder, self.warm_folder = prior, model

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of the prior's images."""
        return self.restorer.image_shape or (3, 64, 64)

    def fitted(self, picture: Pixels) -> Tensor:
        """Return the centre of an image (H, W, 3), resized to the prior's (C, H, W)."""
        channels, height, width = self.shape
        image = Image.fromarray(picture).convert("RGB" if channels == 3 else "L")
        scale = max(height / image.height, width / image.width)
        size = round(image.width * scale), round(image.height * scale)
        large = image.resize(size, Image.Resampling.LANCZOS)
        left, top = (large.width - width) // 2, (large.height - height) // 2
        levels = np.array(large.crop((left, top, left + width, top + height)), dtype=np.float32)
        return torch.from_numpy(levels).reshape(height, width, channels).permute(2, 0, 1) / 127.5 - 1

    def measured(self, picture: Pixels, how: DemoMeasurement, seed: int = 0) -> tuple[InverseProblem, Pixels]:
        """Return the inverse problem of an image, and its measurement as an image."""
        x = self.fitted(picture)[None]
        operator = how.operator(tuple(x.shape[1:]))
        problem = InverseProblem.simulate(x, operator, GaussianNoise(how.std), seed)
        observed = operator.observed(problem.y)
        seen = None if observed is None else observed.reshape(-1, *observed.shape[-2:])[:1]
        return problem, _large(picture_panel(problem.y[0], "", observed=seen))

    def methods(self, quality: Quality) -> dict[str, Sampler]:
        """Return MGDM with gradients, and LAVPS or, without an inference model, the preset."""
        prior, linear = self.restorer.prior, "denoise"  # as are all of TASKS
        guidance = Gradient(1, WhitenedGradient())
        mgdm = MGDM(prior, num_steps=_GRADIENT_STEPS[quality], guidance=guidance)
        if self.restorer.model is not None and self.warm_folder is not None:
            warm = chosen(front_for(self.warm_folder, True, linear), quality).settings
            return {"MGDM": mgdm, "LAVPS": warm.sampler(prior, self.restorer.model if warm.models else None)}
        preset = chosen(front_for(self.folder, False, linear), quality).settings.sampler(prior)
        return {"MGDM": mgdm, f"{type(preset).__name__}, preset": preset}

    def run(
        self, problem: InverseProblem, method: str, samples: int = 4, quality: Quality = "fast", seed: int = 0
    ) -> Iterator[Frame]:
        """Run a method, and yield its state after every step."""
        sampler = self.methods(quality)[method]
        problem = self.restorer.posed(problem.to(self.device))
        forwards = backwards = 0.0
        start = time.perf_counter()
        for step in sampler.iterate(problem, samples, seed=seed):
            forwards, backwards = forwards + step.forwards, backwards + step.backwards
            chi = None
            if step.index + 1 == step.total:
                chi = float(problem.repeat(samples).chi_square(step.x_0).mean())
            samples_now = self.restorer.pictures(step.x_0).cpu()
            seconds = time.perf_counter() - start
            yield Frame(method, samples_now, seconds, step.index + 1, step.total, forwards, backwards, chi)


def _large(panel: Panel) -> Pixels:
    """Enlarge by a whole factor, without interpolation."""
    factor = max(SHOWN // panel.pixels.shape[0], 1)
    large: Pixels = panel.pixels.repeat(factor, 0).repeat(factor, 1)
    return large
