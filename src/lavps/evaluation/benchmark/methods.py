"""A method of a benchmark: a sampler and its settings, in plain JSON values.

Two descriptions that run the same computation have one key: settings that the sampler does not look at are
left out, defaults are written out. Everything a benchmark stores is filed under keys.
"""

from __future__ import annotations

__all__ = ["GENTLE_STEP", "LIKELIHOOD_STEP", "UNTRAINED", "Method", "MinimizerName", "SamplerName"]

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast, get_args

from ...initializers import WarmStartModel
from ...priors import Prior
from ...samplers import DPS, MGPS, MMPS, PosteriorDenoiser, Sampler, Supervised
from ...samplers.settings import RATES, MinimizerName, Settings, minimizer_of

SamplerName = Literal["mgdm", "lavps", "mgps", "dps", "mmps", "supervised"]
LIKELIHOOD_STEP, GENTLE_STEP = "likelihood-step", "gentle-step"
UNTRAINED = (LIKELIHOOD_STEP, GENTLE_STEP)
_DESCENT = ("num_steps", "gradient_steps_start", "minimizer", "learning_rate")
_GIBBS = (*_DESCENT, "gradient_steps_end", "r_switch", "denoising_steps", "renoise")
_SETTINGS: dict[str, tuple[str, ...]] = {
    "mgdm": _GIBBS,
    "lavps": (*_GIBBS, "safeguard", "r_model", "probe_every", "r_step", "model"),
    "mgps": _DESCENT,
    "dps": ("num_steps", "step_size", "eta"),
    "mmps": ("num_steps", "solver_steps", "eta"),
    "supervised": ("num_steps", "eta", "model"),
}
_NAMES = {"adam": "Adam", "whitened": "whitened"}


@dataclass(frozen=True)
class Method:
    """A sampler and its settings.

    Attributes:
        sampler: which.
        num_steps: K.
        gradient_steps_start: G_start; for MGPS, G of every step.
        gradient_steps_end: G_end, inside the window; default G_start.
        r_switch: the window is t <= 1 - r_switch.
        minimizer: of the inner problem.
        learning_rate: Adam's eta (default .03), or the whitened gradient's tau (default 1).
        denoising_steps: M.
        renoise: "forward" or "bridge".
        safeguard: LAVPS falls back where a prediction is worse. MGPS with a model has it too.
        r_model: the model is asked where t <= 1 - r_model; default r_switch.
        probe_every: steps from one judgement of the safeguard to the next.
        r_step: where t <= 1 - r_step a likelihood step takes the model's place; default nowhere.
        step_size: DPS's zeta.
        solver_steps: MMPS's conjugate-gradient iterations.
        eta: noise of the DDIM steps of DPS, MMPS and the supervised sampler.
        model: folder (or Hub id) of the inference model of LAVPS (or MGPS), of the conditional denoiser of
            "supervised"; "likelihood-step" is the warm start without training, "gentle-step" its gentle form.
    """

    sampler: SamplerName
    num_steps: int = 100
    gradient_steps_start: int = 1
    gradient_steps_end: int | None = None
    r_switch: float = 0.0
    minimizer: MinimizerName = "adam"
    learning_rate: float | None = None
    denoising_steps: int = 1
    renoise: Literal["forward", "bridge"] = "forward"
    safeguard: bool = True
    r_model: float | None = None
    probe_every: int = 1
    r_step: float | None = None
    step_size: float = 1.0
    solver_steps: int = 3
    eta: float = 1.0
    model: str | None = None

    def __post_init__(self) -> None:
        if self.sampler not in get_args(SamplerName):
            raise ValueError(f"sampler must be one of {get_args(SamplerName)}, got {self.sampler!r}")
        if self.minimizer not in get_args(MinimizerName):
            raise ValueError(f"minimizer must be one of {get_args(MinimizerName)}, got {self.minimizer!r}")
        if self.needs_model and self.model is None:
            raise ValueError(f"{self.sampler} needs a model: name its folder")
        if self.model is not None and self.sampler not in ("lavps", "mgps", "supervised"):
            raise ValueError(f"{self.sampler} has no use for a model, got {self.model!r}")

    @property
    def needs_model(self) -> bool:
        """Whether it cannot do without."""
        return self.sampler in ("lavps", "supervised")

    def settings(self) -> dict[str, Any]:
        """All that the sampler looks at, and nothing else; :meth:`from_settings` reads it back."""
        names = _SETTINGS[self.sampler]
        if self.sampler == "mgps" and self.model is not None:
            names = (*names, "safeguard", "model")
        values = {name: getattr(self, name) for name in names}
        if "gradient_steps_end" in values:
            values["gradient_steps_end"] = self.end
        if "minimizer" in values:
            used = self if self._descends else Method("mgdm")
            values["minimizer"], values["learning_rate"] = used.minimizer, used.rate
        if self.sampler == "lavps":
            values["r_model"] = self.r_switch if self.r_model is None else self.r_model
            values["probe_every"] = self.probe_every if self.safeguard else 1
            if self.r_step is None:
                del values["r_step"]
        # Where both are equal there is no window of gradients.
        if "r_switch" in values and self.end == self.gradient_steps_start:
            values["r_switch"] = 0.0
        return {"sampler": self.sampler, **dict(sorted(values.items()))}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Method:
        """The method of plain JSON values."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise ValueError(
                f"a method has no {', '.join(unknown)}: its settings are {', '.join(sorted(known))}"
            )
        return cls(**dict(settings))

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that stand for the settings."""
        return hashlib.sha256(json.dumps(self.settings(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def rate(self) -> float:
        """The learning rate, or its default."""
        return RATES[self.minimizer] if self.learning_rate is None else self.learning_rate

    @property
    def end(self) -> int:
        """G_end, or its default."""
        return self.gradient_steps_start if self.gradient_steps_end is None else self.gradient_steps_end

    @property
    def likelihood_steps(self) -> int:
        """Steps of a run that a likelihood step begins in the model's place."""
        if self.sampler != "lavps" or self.r_step is None:
            return 0
        return Settings(self.num_steps, r_step=self.r_step).likelihood_steps

    @property
    def family(self) -> str:
        """What a table groups it under: the sampler, and the minimiser where there is one."""
        if self.sampler == "mgdm":
            return f"MGDM, {_NAMES[self.minimizer]}"
        if self.model in UNTRAINED:
            return "Likelihood step"
        if self.sampler == "mgps" and self.model is not None:
            return "MGPS, warm start"
        return self.sampler.capitalize() if self.sampler == "supervised" else self.sampler.upper()

    @property
    def label(self) -> str:
        """Its settings in a few words, within its family."""
        words = [f"K={self.num_steps}"]
        if self.sampler in ("mgdm", "lavps", "mgps"):
            ending = "" if self.end == self.gradient_steps_start or self.sampler == "mgps" else f"/{self.end}"
            words.append(f"G={self.gradient_steps_start}{ending}")
            words += [f"{_NAMES[self.minimizer]} {self.rate:.3g}"] if self._descends else []
        if self.sampler in ("mgdm", "lavps"):
            used = self.settings()
            words += [f"window {1 - self.r_switch:.0%}"] if used["r_switch"] else []
            words += [f"model {1 - used['r_model']:.0%}"] if used.get("r_model") else []
            words += ["gentle steps"] if self.model == GENTLE_STEP else []
            if self.sampler == "lavps" and self.r_step is not None:
                words.append(f"likelihood step {1 - self.r_step:.0%}")
            words += [f"M={self.denoising_steps}"] if self.denoising_steps > 1 else []
            words += ["bridge"] if self.renoise == "bridge" else []
        if self.sampler == "dps":
            words.append(f"step {self.step_size:.3g}")
        if self.sampler == "mmps":
            words.append(f"{self.solver_steps} solver steps")
        if self.model is not None and self.sampler != "supervised":
            words += [] if self.safeguard else ["no safeguard"]
            words += [f"probes 1/{self.probe_every}"] if self.safeguard and self.probe_every > 1 else []
        return ", ".join(words)

    def is_of(self, group: str) -> bool:
        """Whether all words of a group are among those of family and label: "MGDM", "MGDM, Adam, K=100"."""
        return set(group.split(", ")) <= set(f"{self.family}, {self.label}".split(", "))

    def build(self, prior: Prior, model: object | None = None) -> Sampler:
        """The sampler.

        Args:
            prior: its denoiser; "supervised" has its own.
            model: what :attr:`model` names, loaded.
        """
        if (model is None) != (self.model is None):
            raise ValueError(f"this {self.sampler} is described with model {self.model!r}, and met {model!r}")
        if self.sampler == "dps":
            return DPS(prior, num_steps=self.num_steps, step_size=self.step_size, eta=self.eta)
        if self.sampler == "mmps":
            return MMPS(prior, num_steps=self.num_steps, solver_steps=self.solver_steps, eta=self.eta)
        if self.sampler == "supervised":
            return Supervised(cast(PosteriorDenoiser, model), num_steps=self.num_steps, eta=self.eta)
        warm = cast("WarmStartModel | None", model)
        if self.sampler == "mgps":
            return MGPS(
                prior,
                num_steps=self.num_steps,
                gradient_steps=self.gradient_steps_start,
                minimizer=minimizer_of(self.minimizer, self.learning_rate),
                model=warm,
                safeguard=self.safeguard,
            )
        gibbs = {field.name: getattr(self, field.name) for field in fields(Settings)}
        return Settings(**gibbs | {"gradient_steps_end": self.end}).sampler(prior, warm)

    @property
    def _descends(self) -> bool:
        """Whether it takes any gradient step."""
        return max(self.gradient_steps_start, self.end if self.sampler != "mgps" else 0) > 0
