r"""Candidate settings: the paper's grid, a balanced subset, small grids of other samplers, a search space.

The paper's grid at K = 100 with Adam is

.. math:: G_{start} \in \{1, 3\} \times G_{end} \in \{0, 1, 3, 10\} \times \eta \in \{0.01, 0.03\}
    \times M \in \{1, 5\} \times r_{switch} \in \{0.7, 0.8, 0.9\},

96 points. The subset has 32: every combination (i, j, k, l) of indices of the first four once, with
:math:`r_{switch}` at index :math:`(i + j + k + l) \bmod 3` of its list. Each value of :math:`r_{switch}` is
thus combined with each value of every other setting about equally often.
"""

from __future__ import annotations

__all__ = [
    "Choice",
    "SamplerName",
    "Span",
    "baseline_grid",
    "paper_grid",
    "paper_subset",
    "search_space",
    "searched_settings",
]

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from ..data_step import Isotropic
from ..guidance import Amortized, Gradient, Guidance, Linearized, Switch, switch
from ..minimizers import Adam, Minimizer, WhitenedGradient
from ..samplers import (
    DAPS,
    DDNM,
    DPS,
    MGDM,
    MGPS,
    MMPS,
    UNBOUND,
    DiffPIR,
    PiGDM,
    Sampler,
    Settings,
    Supervised,
    Unbound,
    WienerPIR,
)

SamplerName = Literal[
    "mgdm", "lavps", "mgps", "dps", "mmps", "pigdm", "ddnm", "diffpir", "wienerpir", "daps", "supervised"
]
_G_START, _G_END, _RATES, _M, _SWITCHES = (1, 3), (0, 1, 3, 10), (0.01, 0.03), (1, 5), (0.7, 0.8, 0.9)


def _paper_point(model: str | None, start: int, end: int, rate: float, m: int, r_switch: float) -> Settings:
    early, late = Gradient(start, Adam(rate)), _late(model, end, Adam(rate))
    guidance = early if early == late else switch(early, late, at=round(1.0 - r_switch, 9))
    return Settings(MGDM(UNBOUND, num_steps=100, guidance=guidance, denoising_steps=m))


def _late(model: str | None, steps: int, minimizer: Minimizer) -> Guidance:
    """Return the late guidance: gradients of MGDM, or of LAVPS if there is a model."""
    return Gradient(steps, minimizer) if model is None else Amortized(Unbound(model), steps, minimizer)


def _model_of(sampler: SamplerName, model: str | None) -> str | None:
    """Return the model; raise ValueError unless LAVPS has one and MGDM has none."""
    if sampler not in ("mgdm", "lavps"):
        raise ValueError(f"{sampler} is not in the paper's grid: use baseline_grid")
    if (sampler == "lavps") != (model is not None):
        raise ValueError(f"{sampler} {'needs a' if sampler == 'lavps' else 'has no'} model, got {model!r}")
    return model


def _distinct(methods: list[Settings]) -> list[Settings]:
    """Drop repeated keys: MGDM with G_end = G_start does not depend on r_switch."""
    return list({method.key: method for method in methods}.values())


def paper_grid(sampler: SamplerName, model: str | None = None) -> list[Settings]:
    """Return the paper's grid: 96 points for "lavps", and the 80 distinct ones for "mgdm".

    Example:
        >>> len(paper_grid("mgdm")), len(paper_subset("lavps", "models/lavps"))
        (80, 32)
    """
    points = product(_G_START, _G_END, _RATES, _M, _SWITCHES)
    return _distinct([_paper_point(_model_of(sampler, model), *point) for point in points])


def paper_subset(sampler: SamplerName, model: str | None = None) -> list[Settings]:
    """Return 32 points of the paper's grid, as defined in the module's docstring."""
    axes = [list(enumerate(values)) for values in (_G_START, _G_END, _RATES, _M)]
    points = []
    for chosen in product(*axes):
        r_switch = _SWITCHES[sum(index for index, _ in chosen) % len(_SWITCHES)]
        (_, start), (_, end), (_, rate), (_, m) = chosen
        name = _model_of(sampler, model)
        points.append(_paper_point(name, int(start), int(end), float(rate), int(m), r_switch))
    return _distinct(points)


def baseline_grid(sampler: SamplerName, model: str | None = None) -> list[Settings]:
    """Return a small grid of settings of a sampler outside the paper's grid."""
    if sampler in ("mgdm", "lavps"):
        raise ValueError(f"{sampler} has the paper's grid: paper_grid, or paper_subset")
    return [Settings(point) for point in _baselines(sampler, model)]


def _baselines(sampler: SamplerName, model: str | None) -> list[Sampler]:
    """Return the points of a baseline's grid."""
    powers, lasts = (1.0, 1.5, 2.0, 3.0), (None, 0.03)
    match sampler:
        case "dps":
            return [DPS(UNBOUND, num_steps=k, step_size=z) for k, z in product((100, 300), (0.3, 1.0, 3.0))]
        case "mmps":
            return [MMPS(UNBOUND, num_steps=k, solver_steps=n) for k, n in product((25, 50, 100), (1, 3))]
        case "pigdm":
            pairs = product(powers, (0.0, 0.5, 1.0))
            return [PiGDM(UNBOUND, num_steps=25, grid_power=p, eta=eta) for p, eta in pairs]
        case "ddnm":
            pairs = product(powers, (0.5, 0.85, 1.0))
            return [DDNM(UNBOUND, num_steps=25, grid_power=p, eta=eta) for p, eta in pairs]
        case "diffpir":
            return [
                DiffPIR(
                    UNBOUND,
                    covariance=Isotropic(r),
                    zeta=z,
                    grid_power=1.0 if last is None else 2.0,
                    last_time=last,
                )
                for r, z, last in product((0.5, 1.0, 3.0), (0.3, 0.8), lasts)
            ]
        case "wienerpir":
            triples = product((1.5, 2.0, 3.0), (0.5, 0.8), (0.01, 0.03))
            return [WienerPIR(UNBOUND, grid_power=p, zeta=z, last_time=last) for p, z, last in triples]
        case "daps":
            return [
                DAPS(
                    UNBOUND,
                    num_steps=100 // m,
                    denoising_steps=m,
                    grid_power=p,
                    covariance=Isotropic(variance=v),
                )
                for m, p, v in product((1, 2), (1.0, 2.0), (0.1, 0.03, 0.01))
            ]
        case "supervised":
            return [Supervised(Unbound(model), num_steps=k) for k in (12, 25, 50, 100)]
        case _:
            return [
                MGPS(UNBOUND, num_steps=k, guidance=_late(model, g, WhitenedGradient()))
                for k, g in product((25, 50, 100), (1, 3))
            ]


@dataclass(frozen=True)
class Choice:
    """A parameter with a finite set of values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Span:
    """A number in [low, high], searched on a logarithmic scale."""

    low: float
    high: float


def search_space(sampler: SamplerName) -> dict[str, Choice | Span]:
    """Return the parameters of a search over "mgdm" or "lavps".

    The step sizes of the two minimizers are separate parameters, since their scales differ. "end_from" and
    "linearized_from" are times: 1 selects every step, 0 none.
    """
    if sampler not in ("mgdm", "lavps"):
        raise ValueError(f"the search covers mgdm and lavps, not {sampler}: use its grid")
    space: dict[str, Choice | Span] = {
        "num_steps": Choice((12, 25, 50, 100)),
        "minimizer": Choice(("adam", "whitened")),
        "adam_rate": Span(0.003, 0.1),
        "whitened_rate": Span(0.25, 1.75),
        "gradient_steps_start": Choice((0, 1, 2, 3)),
        "gradient_steps_end": Choice((0, 1, 2, 3, 5, 10)),
        "end_from": Choice((1.0, 0.7, 0.5, 0.3, 0.2, 0.1)),
    }
    if sampler == "mgdm":
        return space
    return space | {
        "safeguard_every": Choice((1, 4, None)),
        "model_everywhere": Choice((True, False)),
        "linearized_from": Choice((0.0, 0.7, 0.5, 0.3)),
    }


def searched_settings(sampler: SamplerName, model: str | None, found: Mapping[str, Any]) -> Settings:
    """Return the settings at a point of :func:`search_space`; rates are rounded to three digits."""
    rate = float(f"{found[found['minimizer'] + '_rate']:.3g}")
    minimizer: Minimizer = Adam(rate) if found["minimizer"] == "adam" else WhitenedGradient(rate)
    start, end = found["gradient_steps_start"], found["gradient_steps_end"]
    early: Guidance = Gradient(start, minimizer)
    late: Guidance = Gradient(end, minimizer)
    if _model_of(sampler, model) is not None:
        every = found["safeguard_every"]
        late = Amortized(Unbound(model), end, minimizer, every)
        if found["model_everywhere"]:
            early = Amortized(Unbound(model), start, minimizer, every)
    alike = found["end_from"] == 1.0 or early == late
    guidance = late if alike else switch(early, late, at=found["end_from"])
    if linearized_from := found.get("linearized_from", 0.0):
        if isinstance(guidance, Switch) and linearized_from >= guidance.at:
            guidance = guidance.first
        guidance = switch(guidance, Linearized(), at=linearized_from)
    bare = MGDM(UNBOUND, num_steps=found["num_steps"])
    return Settings(replace(bare, guidance=guidance.reached(bare.guided_times)))
