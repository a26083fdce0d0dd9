r"""Which settings are tried: the paper's grid, a spread subset of it, small grids of rivals, a free search.

The paper's grid at K = 100 with Adam is

.. math:: G_{start} \in \{1, 3\} \times G_{end} \in \{0, 1, 3, 10\} \times \eta \in \{.01, .03\}
    \times M \in \{1, 5\} \times r_{switch} \in \{.7, .8, .9\},

96 points. The subset has 32: every combination of the first four once, with
:math:`r_{switch}` at place :math:`(i + j + k + l) \bmod 3` of its list, (i, j, k, l) being the places of the
four. So each window meets each level of every other setting about equally often.
"""

from __future__ import annotations

__all__ = ["Choice", "Span", "paper_grid", "paper_subset", "rival_grid", "search_space", "searched_method"]

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from .methods import Method, SamplerName

_G_START, _G_END, _RATES, _M, _SWITCHES = (1, 3), (0, 1, 3, 10), (0.01, 0.03), (1, 5), (0.7, 0.8, 0.9)


def _paper_point(
    sampler: SamplerName, model: str | None, start: int, end: int, rate: float, m: int, switch: float
) -> Method:
    return Method(
        sampler,
        num_steps=100,
        gradient_steps_start=start,
        gradient_steps_end=end,
        r_switch=switch,
        learning_rate=rate,
        denoising_steps=m,
        model=model,
    )


def _distinct(methods: list[Method]) -> list[Method]:
    """One of each key: MGDM with G_end = G_start is the same method at every window."""
    return list({method.key: method for method in methods}.values())


def paper_grid(sampler: SamplerName, model: str | None = None) -> list[Method]:
    """The paper's 96 points for "lavps"; for "mgdm" the 80 of them that differ."""
    points = product(_G_START, _G_END, _RATES, _M, _SWITCHES)
    return _distinct([_paper_point(sampler, model, *point) for point in points])


def paper_subset(sampler: SamplerName, model: str | None = None) -> list[Method]:
    """32 points of the paper's grid, spread as the module says."""
    axes = [list(enumerate(values)) for values in (_G_START, _G_END, _RATES, _M)]
    points = []
    for places in product(*axes):
        switch = _SWITCHES[sum(place for place, _ in places) % len(_SWITCHES)]
        (_, start), (_, end), (_, rate), (_, m) = places
        points.append(_paper_point(sampler, model, int(start), int(end), float(rate), int(m), switch))
    return _distinct(points)


def rival_grid(sampler: SamplerName, model: str | None = None) -> list[Method]:
    """A few sensible settings of a sampler that has few."""
    if sampler == "dps":
        return [Method("dps", num_steps=k, step_size=z) for k, z in product((100, 300), (0.3, 1.0, 3.0))]
    if sampler == "mmps":
        return [Method("mmps", num_steps=k, solver_steps=n) for k, n in product((25, 50, 100), (1, 3))]
    if sampler == "supervised":
        return [Method("supervised", num_steps=k, model=model) for k in (12, 25, 50, 100)]
    if sampler == "mgps":
        points = product((25, 50, 100), (1, 3))
        return [
            Method("mgps", num_steps=k, gradient_steps_start=g, minimizer="whitened", model=model)
            for k, g in points
        ]
    raise ValueError(f"{sampler} has the paper's grid: paper_grid, or paper_subset")


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Span:
    """A number between two, searched in its logarithm."""

    low: float
    high: float


def search_space(sampler: SamplerName) -> dict[str, Choice | Span]:
    """What is free when K is: of "mgdm" and "lavps".

    The two minimisers' rates are told apart by name: they are numbers of different kinds.
    """
    if sampler not in ("mgdm", "lavps"):
        raise ValueError(f"the free search is made for mgdm and lavps, not for {sampler}: it has a grid")
    space: dict[str, Choice | Span] = {
        "num_steps": Choice((12, 25, 50, 100)),
        "minimizer": Choice(("adam", "whitened")),
        "adam_rate": Span(0.003, 0.1),
        "whitened_rate": Span(0.25, 1.75),
        "gradient_steps_start": Choice((0, 1, 2, 3)),
        "gradient_steps_end": Choice((0, 1, 2, 3, 5, 10)),
        "r_switch": Choice((0.0, 0.3, 0.5, 0.7, 0.8, 0.9)),
    }
    if sampler == "mgdm":
        return space
    return space | {
        "safeguard": Choice((True, False)),
        "probe_every": Choice((1, 4)),
        "r_model": Choice((0.0, None)),  # every step, or the window
        "r_step": Choice((None, 0.3, 0.5, 0.7)),
    }


def searched_method(sampler: SamplerName, model: str | None, found: Mapping[str, Any]) -> Method:
    """The method at a point of :func:`search_space`; rates are kept to three digits."""
    values = {name: value for name, value in found.items() if not name.endswith("_rate")}
    rate = float(f"{found[values['minimizer'] + '_rate']:.3g}")
    return Method(sampler, learning_rate=rate, model=model, **values)
