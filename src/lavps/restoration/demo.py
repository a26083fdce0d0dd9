"""The demonstration: a picture is measured here, and restored by two methods while you watch.

What the page shows is in :class:`Show`; the page itself is
:mod:`lavps.restoration.demo_page`.
"""

from __future__ import annotations

__all__ = ["SHOWN", "TASKS", "Demonstration", "Measurement", "Show"]

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..noise import GaussianNoise
from ..operators import AveragePool, Blur, Identity, Mask, Operator
from ..operators.blur import gaussian_kernel
from ..operators.families import MotionBlur
from ..problem import InverseProblem
from ..samplers import MGDM
from .pictures import Panel, heat, picture_panel, uncertainty_scale
from .presets import Quality, front_for, of_quality
from .restorer import Restorer

Pixels = npt.NDArray[np.uint8]
TASKS = ("super-resolution", "inpainting", "noise", "blur", "camera shake")
SHOWN = 320  # pixels of a side on the page


@dataclass(frozen=True)
class Measurement:
    """How the picture is measured.

    Attributes:
        task: one of TASKS.
        strength: from 0 to 1: how much is lost.
        noise: standard deviation, black being -1 and white +1.
        mask: (H, W), true where the picture is painted out; for inpainting, else a box in the middle.
    """

    task: str = "super-resolution"
    strength: float = 0.5
    noise: float = 0.05
    mask: npt.NDArray[np.bool_] | None = None

    def operator(self, shape: tuple[int, ...]) -> Operator:
        """The operator for images (C, H, W)."""
        side, strength = min(shape[1:]), min(max(self.strength, 0.0), 1.0)
        if self.task == "super-resolution":
            return AveragePool(2 ** (1 + min(int(3 * strength), 2)))
        if self.task == "inpainting":
            return Mask(self._known(shape))
        if self.task == "blur":
            return Blur(gaussian_kernel(side / 64 * (0.5 + 3 * strength)))
        if self.task == "camera shake":
            size = 2 * round(side / 64 * (3 + 8 * strength)) + 1
            return MotionBlur(size, 0.9).draw([1], shape)
        return Identity()

    def _known(self, shape: tuple[int, ...]) -> Tensor:
        height, width = shape[1:]
        hidden = torch.zeros(1, height, width, dtype=torch.bool)
        if self.mask is not None and self.mask.any():
            drawn = Image.fromarray(self.mask.astype(np.uint8) * 255).resize(
                (width, height), Image.Resampling.BOX
            )
            hidden[0] = torch.from_numpy(np.asarray(drawn) > 127)
        else:
            margin = 0.5 - 0.1 - 0.25 * self.strength
            rows, columns = int(margin * height), int(margin * width)
            hidden[0, rows : height - rows, columns : width - columns] = True
        return ~hidden

    @property
    def std(self) -> float:
        """Of the noise: for the task of removing it, its strength."""
        return 0.05 + 0.45 * self.strength if self.task == "noise" else self.noise


@dataclass(frozen=True, eq=False)
class Show:
    """What is to be seen of a method.

    Attributes:
        name: of the method.
        samples: (N, C, H, W), as far as they are.
        seconds: it has taken.
        step: of the sampler.
        total: steps there will be.
        forwards: of the denoiser, a sample.
        backwards: through the denoiser, a sample.
        chi_square: mean misfit, once done.
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
        """Whether this is the end."""
        return self.step == self.total

    def sample(self, number: int) -> Pixels:
        """One of the samples."""
        return _large(picture_panel(self.samples[min(number, len(self.samples)) - 1], ""))

    @property
    def mean(self) -> Pixels:
        """Of the samples."""
        return _large(picture_panel(self.samples.mean(0), ""))

    @property
    def uncertainty(self) -> Pixels:
        """Standard deviation of the samples, as a heat map."""
        levels, top = uncertainty_scale(self.samples.std(0))
        return _large(Panel(heat(levels, top), ""))

    def clock(self) -> str:
        """In words."""
        words = f"**{self.name}** {self.seconds:.1f} s, step {self.step} of {self.total}"
        if self.done:
            words = (
                f"**{self.name}** {self.seconds:.1f} s, {self.forwards:.0f} forwards and "
                f"{self.backwards:.0f} backwards a sample"
            )
        return words if self.chi_square is None else f"{words}, misfit {self.chi_square:.2f}"


class Demonstration:
    """Loaded models, and what is done with them.

    Args:
        prior: model folder or Hub id.
        model: the same of an inference model; without one LAVPS starts from a step of guidance.
        device: where to compute.
    """

    def __init__(self, prior: str, model: str | None = None, device: str = "cpu") -> None:
        self.restorer, self.device = Restorer.load(prior, model, device=device), device
        self.folder, self.warm_folder = prior, model

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of the prior's images."""
        return self.restorer.image_shape or (3, 64, 64)

    def fitted(self, picture: Pixels) -> Tensor:
        """A picture (H, W, 3) in the prior's size, its middle, as (C, H, W)."""
        channels, height, width = self.shape
        image = Image.fromarray(picture).convert("RGB" if channels == 3 else "L")
        scale = max(height / image.height, width / image.width)
        large = image.resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS
        )
        left, top = (large.width - width) // 2, (large.height - height) // 2
        levels = np.array(large.crop((left, top, left + width, top + height)), dtype=np.float32)
        return torch.from_numpy(levels).reshape(height, width, channels).permute(2, 0, 1) / 127.5 - 1

    def measured(self, picture: Pixels, how: Measurement, seed: int = 0) -> tuple[InverseProblem, Pixels]:
        """The picture, measured: the problem, and what of the picture is left to be seen."""
        x = self.fitted(picture)[None]
        operator = how.operator(tuple(x.shape[1:]))
        problem = InverseProblem.simulate(x, operator, GaussianNoise(how.std), seed)
        observed = operator.observed(problem.y)
        seen = None if observed is None else observed.reshape(-1, *observed.shape[-2:])[:1]
        return problem, _large(picture_panel(problem.y[0], "", observed=seen))

    def methods(self, quality: Quality) -> dict[str, MGDM]:
        """MGDM, and LAVPS with the inference model or without any training."""
        prior, linear = self.restorer.prior, "denoise"  # as all of TASKS are
        mgdm = of_quality(front_for(self.folder, False, None), quality).settings.sampler(prior)
        if self.restorer.model is not None and self.warm_folder is not None:
            warm = of_quality(front_for(self.warm_folder, True, linear), quality).settings
            return {"MGDM": mgdm, "LAVPS": warm.sampler(prior, self.restorer.model)}
        zero = of_quality(front_for(self.folder, False, linear), quality).settings
        steps = replace(zero, gradient_steps_end=0, r_switch=0.5, r_step=0.5)
        return {"MGDM": mgdm, "LAVPS, untrained": steps.sampler(prior)}

    def run(
        self, problem: InverseProblem, method: str, samples: int = 4, quality: Quality = "fast", seed: int = 0
    ) -> Iterator[Show]:
        """A method at work, step by step."""
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
            yield Show(method, samples_now, seconds, step.index + 1, step.total, forwards, backwards, chi)


def _large(panel: Panel) -> Pixels:
    """Enlarged by whole pixels, which are then seen."""
    factor = max(SHOWN // panel.pixels.shape[0], 1)
    large: Pixels = panel.pixels.repeat(factor, 0).repeat(factor, 1)
    return large
