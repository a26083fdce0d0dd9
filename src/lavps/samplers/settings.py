"""Settings of a sampler: the sampler without its networks, as plain JSON values.

Manifests, presets, benchmarks, the bulk engine and the service store samplers in this form:

.. code-block:: json

    {"sampler": "MGDM", "num_steps": 50, "guidance": {"kind": "Gradient", "steps": 1,
     "minimizer": {"kind": "WhitenedGradient", "step_size": 1.0, "fit_std": false}}}

The fields are those of the sampler's own class and of the objects inside it; nothing is declared twice. A
field that is left out has its default. Networks are not part of the settings: the prior is left out, and an
inference model or conditional denoiser is stored by its folder or Hub id, or as null.
"""

from __future__ import annotations

__all__ = ["UNBOUND", "EvaluationCounts", "Settings", "Unbound"]

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from ..data_step import Isotropic, Stationary
from ..data_step.schedule_numbers import Trend
from ..guidance import Amortized, Gradient, Guidance, Linearized, MidpointModel, Switch
from ..guidance.midpoints import FractionMidpoint, MixedMidpoint, PreviousMidpoint, UniformMidpoint
from ..minimizers import Adam, WhitenedGradient
from ..noise import GaussianNoise
from ..operators import Identity
from ..priors import Prior
from ..problem import InverseProblem
from ..schedule import Schedule, VPLinear
from ..variational import Context, DiagonalGaussian
from .base import Sampler
from .daps import DAPS
from .ddim import DDIM
from .ddnm import DDNM
from .diffpir import DataStepSampler, DiffPIR, WienerPIR
from .dps import DPS
from .few_step import FewStep
from .fused import FusedPIR
from .gibbs import MGDM
from .mean import PosteriorMean
from .mgps import MGPS
from .mmps import MMPS, PiGDM
from .serialization import NETWORKS, UNBOUND, Unbound, decode, encode
from .supervised import Supervised
from .tuned import TunedPIR

_SAMPLERS: dict[str, type[Sampler]] = {
    cls.__name__: cls
    for cls in (
        MGDM, MGPS, FusedPIR, WienerPIR, TunedPIR, FewStep, PosteriorMean,
        DiffPIR, DAPS, DDNM, PiGDM, MMPS, DPS, DDIM, Supervised,
    )
}  # fmt: skip
_PARTS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Gradient, Linearized, Amortized, Switch, Adam, WhitenedGradient,
        FractionMidpoint, MixedMidpoint, PreviousMidpoint, UniformMidpoint, Isotropic, Stationary, Trend,
    )
}  # fmt: skip


@dataclass(frozen=True)
class EvaluationCounts:
    """Cost of one sample, if the safeguard accepts every prediction.

    Attributes:
        forwards: Denoiser evaluations.
        backwards: Backward passes through the denoiser.
        model_forwards: Forward passes of the inference model.
        linearized_steps: Solutions of the linearized problem.
        curvatures: Inner problems whose minimizer needs the likelihood's curvature.
        data_steps: Data steps (:mod:`lavps.data_step`).
    """

    forwards: float
    backwards: float
    model_forwards: float
    linearized_steps: int
    curvatures: int
    data_steps: int = 0


@dataclass(frozen=True)
class Settings:
    """A sampler without its networks: comparable, hashable and serializable.

    Args:
        template: Sampler whose networks are replaced by placeholders; pass ``UNBOUND`` for missing networks.

    Example:
        >>> settings = Settings(MGDM(UNBOUND, num_steps=25, guidance=Linearized()))
        >>> Settings.from_dict(settings.to_dict()) == settings
        True
    """

    template: Sampler

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", _mapped(_mapped(self.template, _unbound), _without_unused))

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, defaults included."""
        values = encode(self.template)
        return {"sampler": values.pop("kind")} | {k: v for k, v in values.items() if k != "prior"}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], parts: tuple[type, ...] = ()) -> Settings:
        """Build settings from plain JSON values.

        Args:
            values: Result of :meth:`to_dict`; fields that are left out have their default.
            parts: Further classes that may occur, such as a guidance of your own.

        Raises:
            ValueError: A name is unknown, or a value has the wrong type.
        """
        name = values.get("sampler")
        if not isinstance(name, str) or name not in _SAMPLERS:
            raise ValueError(f"sampler must be one of {', '.join(_SAMPLERS)}, got {name!r}")
        known = _PARTS | {part.__name__: part for part in parts}
        rest = {key: value for key, value in values.items() if key != "sampler"}
        return cls(cast(Sampler, decode(_SAMPLERS[name], rest, known)))

    @cached_property
    def key(self) -> str:
        """Twelve hexadecimal digits that identify these settings."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    @property
    def models(self) -> list[Unbound]:
        """Placeholders of the inference models and conditional denoisers, without repetition."""
        found: dict[Unbound, None] = {}

        def collect(name: str, value: Any) -> Any:
            if name != "prior" and isinstance(value, Unbound):
                found[value] = None
            return value

        _mapped(self.template, collect)
        return list(found)

    @property
    def guidance_by_step(self) -> list[Guidance]:
        """Guidance in effect at every step; empty for samplers without guidance."""
        if not isinstance(self.template, MGDM | MGPS):
            return []
        return [self.template.guidance.part(t) for t in self.template.guided_times]

    @property
    def linearized_steps(self) -> int:
        """Solutions of the linearized problem in a run, all repetitions included."""
        solved = [isinstance(getattr(part, "model", part), Linearized) for part in self.guidance_by_step]
        return sum(solved) * _repetitions(self)

    @property
    def num_steps(self) -> int:
        """Number K of steps of the sampler's grid."""
        return int(self.template.num_steps)  # type: ignore[attr-defined]

    def with_num_steps(self, num_steps: int) -> Settings:
        """Return settings with another K; parts of a guidance outside the new grid are dropped."""
        sampler = self.template
        if isinstance(sampler, TunedPIR | FewStep):
            raise ValueError("a learned schedule has its own number of evaluations: tune another one")
        if isinstance(sampler, PosteriorMean):
            raise ValueError("the posterior mean takes one denoiser evaluation: use another sampler")
        if isinstance(sampler, MGDM | MGPS):
            bare = replace(sampler, num_steps=num_steps, guidance=Gradient())
            return Settings(replace(bare, guidance=sampler.guidance.reached(bare.guided_times)))
        return Settings(cast(Sampler, replace(cast(Any, sampler), num_steps=num_steps)))

    def sampler(self, prior: Prior, model: object | None = None) -> Sampler:
        """Build the sampler.

        Args:
            prior: Denoiser.
            model: Inference model, or conditional denoiser, if the settings use one.

        Raises:
            ValueError: The settings use a model and none is given, or the reverse.
        """
        if (model is not None) != bool(self.models):
            wanted = "use a model, and none was given" if self.models else "use no model, and one was given"
            raise ValueError(f"these settings {wanted}: {self.to_dict()}")

        def bind(name: str, value: Any) -> Any:
            if name in NETWORKS and isinstance(value, Unbound):
                return prior if name == "prior" else model
            return value

        return cast(Sampler, _mapped(self.template, bind))

    @property
    def counts(self) -> EvaluationCounts:
        """Denoiser evaluations and further costs of one sample."""
        return _counts(self)


def _unbound(name: str, value: Any) -> Any:
    """Replace a network by a placeholder; linearized guidance in place of a model is no network."""
    if name not in NETWORKS or isinstance(value, Unbound | Linearized):
        return value
    return UNBOUND


def _without_unused(name: str, value: Any) -> Any:
    """Reset an unused minimizer, so that equal computations have equal keys."""
    if isinstance(value, Gradient | Amortized) and value.steps == 0:
        return replace(value, minimizer=Adam())
    return value


def _mapped(value: Any, change: Callable[[str, Any], Any]) -> Any:
    """Apply ``change(field name, field value)`` to all fields of nested dataclasses."""
    changed = {}
    for field in fields(value):
        if field.init:
            old = getattr(value, field.name)
            new = change(field.name, old)
            nested = is_dataclass(new) and field.name not in NETWORKS
            changed[field.name] = _mapped(new, change) if nested else new
    return replace(value, **changed)


class _CountedDenoiser:
    """Denoiser with a different gain per pixel, so that conjugate gradients need all their steps."""

    schedule: Schedule = VPLinear()

    def denoise(self, x_t: Tensor, t: Tensor, problem: object = None) -> Tensor:
        return torch.linspace(0.25, 0.75, x_t.shape[-1]) * x_t


class _AcceptedStep(Linearized):
    """Linearized guidance that every safeguard accepts."""

    def __call__(self, context: Context) -> DiagonalGaussian:
        return context.bridge


def _accepted_step(name: str, value: Any) -> Any:
    return _AcceptedStep() if name == "model" and isinstance(value, Linearized) else value


@lru_cache(maxsize=256)
def _counts(settings: Settings) -> EvaluationCounts:
    """Count evaluations in a run on a problem of 64 pixels."""
    if isinstance(settings.template, DataStepSampler | TunedPIR | FewStep | PosteriorMean):
        forwards = settings.num_steps * getattr(settings.template, "denoising_steps", 1)
        return EvaluationCounts(forwards, 0, 0, 0, 0, settings.num_steps)
    denoiser, accepted = _CountedDenoiser(), cast(MidpointModel, lambda context: context.bridge)
    model: object = denoiser if isinstance(settings.template, Supervised) else accepted
    problem = InverseProblem(torch.zeros(1, 1, 1, 64), Identity(), GaussianNoise(1.0))
    counted = Settings(_mapped(settings.template, _accepted_step))
    sampler = counted.sampler(denoiser, model if settings.models else None)
    trace = sampler.sample(problem).trace
    parts = settings.guidance_by_step
    curved = [part for part in parts if isinstance(getattr(part, "minimizer", None), WhitenedGradient)]
    curvatures = sum(part.steps > 0 for part in curved) * _repetitions(settings)  # type: ignore[attr-defined]
    return EvaluationCounts(
        trace.forwards, trace.backwards, trace.model_forwards, settings.linearized_steps, curvatures
    )


def _repetitions(settings: Settings) -> int:
    return int(getattr(settings.template, "repetitions", 1))
