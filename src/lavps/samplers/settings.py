"""Settings of MGDM and LAVPS in plain JSON values, and the samplers they stand for."""

from __future__ import annotations

__all__ = ["RATES", "MinimizerName", "Settings", "minimizer_of"]

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch

from ..initializers import LikelihoodStep, Safeguarded, WarmStartModel, ZeroShot
from ..minimizers import Adam, Minimizer, WhitenedGradient
from ..priors import Prior
from .gibbs import LAVPS, MGDM, in_window

MinimizerName = Literal["adam", "whitened"]
RATES: dict[str, float] = {"adam": 0.03, "whitened": 1.0}


def minimizer_of(name: MinimizerName, rate: float | None = None) -> Minimizer:
    """The minimiser of a name, with a learning rate, or step size, of its own by default."""
    rate = RATES[name] if rate is None else rate
    return Adam(rate) if name == "adam" else WhitenedGradient(rate)


@dataclass(frozen=True)
class Settings:
    """Settings of MGDM and LAVPS as plain JSON values: they pickle, and a manifest holds them.

    Attributes:
        num_steps: K.
        gradient_steps_start: G_start, outside the window.
        gradient_steps_end: G_end, inside; default G_start.
        r_switch: the window is t <= 1 - r_switch.
        minimizer: "whitened" (:class:`~lavps.WhitenedGradient`) or "adam".
        learning_rate: the whitened gradient's step size (default 1), or Adam's learning rate (default .03).
        safeguard: fall back to the zero-shot start where a model's prediction is worse.
        r_model: the model is asked where t <= 1 - r_model; default r_switch. Where there is none but r_step,
            gentle likelihood steps; default nowhere.
        probe_every: steps from one judgement of the safeguard to the next.
        r_step: where t <= 1 - r_step a likelihood step is the start, in the model's place or, where there is
            no model, in the zero-shot start's; default nowhere.
        denoising_steps: M denoiser calls from x_s to x_0.
        renoise: "forward" or "bridge".
    """

    num_steps: int = 50
    gradient_steps_start: int = 1
    gradient_steps_end: int | None = None
    r_switch: float = 0.0
    minimizer: MinimizerName = "whitened"
    learning_rate: float | None = None
    safeguard: bool = True
    r_model: float | None = None
    probe_every: int = 1
    r_step: float | None = None
    denoising_steps: int = 1
    renoise: Literal["forward", "bridge"] = "forward"

    def __post_init__(self) -> None:
        if self.minimizer not in RATES:
            raise ValueError(f"minimizer must be one of {', '.join(RATES)}, got {self.minimizer!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """The inverse of :meth:`to_dict`; what is left out has its default."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise ValueError(f"there is no setting {', '.join(unknown)}: known are {', '.join(known)}")
        return cls(**values)

    def sampler(self, prior: Prior, model: WarmStartModel | None = None) -> MGDM:
        """MGDM, or LAVPS where there is an inference model or where likelihood steps are wanted."""
        options: dict[str, Any] = {
            "num_steps": self.num_steps,
            "gradient_steps_start": self.gradient_steps_start,
            "gradient_steps_end": self.gradient_steps_end,
            "r_switch": self.r_switch,
            "minimizer": minimizer_of(self.minimizer, self.learning_rate),
            "denoising_steps": self.denoising_steps,
            "renoise": self.renoise,
        }
        if model is None and self.r_step is None:
            return MGDM(prior, **options)
        if model is None:
            asked = 1.0 if self.r_model is None else self.r_model
            gentle = LikelihoodStep.gentle()
            return LAVPS(prior, gentle, safeguard=False, r_model=asked, r_step=self.r_step, **options)
        names = ("safeguard", "r_model", "probe_every", "r_step")
        options |= {name: getattr(self, name) for name in names}
        return LAVPS(prior, model, **options)

    @property
    def likelihood_steps(self) -> int:
        """Steps of a run that a likelihood step begins."""
        if self.r_step is None:
            return 0
        return sum(in_window(k / self.num_steps, self.r_step) for k in range(2, self.num_steps))

    def cost(self, amortized: bool) -> tuple[int, int, int]:
        """Forwards, backwards and model passes of a run, if the safeguard keeps every warm start."""
        nobody: Any = None  # is asked for nothing but its rules
        sampler = self.sampler(nobody, (lambda context: context.bridge) if amortized else None)
        forwards, backwards, passes, verdict = 1, 0, 0, None
        for k in range(self.num_steps - 1, 1, -1):
            start = sampler.initializer(k / self.num_steps, k, verdict)
            gradients = sampler.gradient_steps(k / self.num_steps)
            backwards += gradients
            forwards += gradients + self.denoising_steps
            passes += int(not isinstance(start, ZeroShot | LikelihoodStep))
            if isinstance(start, Safeguarded):
                verdict = torch.ones(1, dtype=torch.bool)
                # The two evaluations are the first gradient's forward, or the one denoising, at once.
                forwards += 1 if gradients or self.denoising_steps == 1 else 2
        return forwards, backwards, passes
