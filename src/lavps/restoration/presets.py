r"""Settings of the samplers a practitioner chooses between: a front of quality against cost.

A front is a list of settings, each with what it scores and what it costs in passes of the denoiser, backwards
through it and passes of the inference model. A model folder may hold its own, measured, as ``fronts.json``:

.. code-block:: json

    [{"settings": {"num_steps": 50, "gradient_steps_start": 1, "minimizer": "whitened"},
      "score": 0.071, "forwards": 97, "backwards": 48, "model_forwards": 0, "task": "sr4"}]

``settings`` are those of :class:`~lavps.samplers.settings.Settings`, what is left out has its default there;
``score`` is LPIPS, lower is better; ``task``, which may be left out, is the measurement the score belongs
to. ``inpaint`` takes that of ``centre-box`` where it has none of its own, ``deblur`` that of
``motion-blur``. The folder of the inference model is asked, or that of the prior where there is none.
Without the file these are used:

==========  =================================  ============================================================
quality     MGDM, whitened gradient            LAVPS, safeguarded
==========  =================================  ============================================================
fast        K = 25, one gradient a step        K = 25, no gradient
balanced    K = 50, one gradient a step        K = 50, no gradient
best        K = 100, two gradients a step      K = 100, one whitened gradient a step, warm start in the last
                                               30 % of the time
==========  =================================  ============================================================

For tasks known to be linear the second half of the time goes by likelihood steps instead, without gradients
or model: cheaper, and nearer to the measurement (``benchmarks/speedup.md``). Before that MGDM takes one
gradient a step at K = 50 and 100 and, as its fast setting, gentle likelihood steps at K = 50, which costs 50
forwards and no backward; LAVPS has K = 25 and 50 without gradients and, as its best, K = 50 with one. An
operator of your own may be anything, and has the table.

Under a latent prior Adam takes five gradients a step in place of these: the whitened gradient would ask the
decoder for its curvature, some sixty passes through it at every step.
"""

from __future__ import annotations

__all__ = ["FRONTS", "FrontEntry", "Quality", "Settings", "front_for", "of_quality", "read_fronts"]

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from ..operators.named import NAMES
from ..samplers.settings import Settings

Quality = Literal["fast", "balanced", "best"]
FRONTS = "fronts.json"
_LATENT_STEPS = 5
# Tasks that a front measured on others serves, the nearest first: a mask or kernel of the user's own, mostly.
_KIN = {
    "inpaint": ("centre-box", "random-rectangle", "random-pixels", "half-pixels"),
    "deblur": ("motion-blur", "random-motion-blur", "gaussian-blur"),
    "random-rectangle": ("centre-box",),
    "random-pixels": ("half-pixels",),
    "random-motion-blur": ("motion-blur",),
    "random-motion-blur-hard": ("random-motion-blur", "motion-blur"),
}


@dataclass(frozen=True)
class FrontEntry:
    """Settings, what they score and what they cost.

    Attributes:
        settings: of the sampler.
        score: LPIPS, lower is better; None where it was not measured.
        forwards: of the denoiser, a sample.
        backwards: through the denoiser, a sample.
        model_forwards: of the inference model, a sample.
        task: the measurement it was measured on; None serves all.
    """

    settings: Settings
    score: float | None
    forwards: float
    backwards: float
    model_forwards: float
    task: str | None = None

    @classmethod
    def of(cls, settings: Settings, amortized: bool) -> FrontEntry:
        """An entry that nobody has scored, its cost counted."""
        return cls(settings, None, *settings.cost(amortized))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FrontEntry:
        """An entry of ``fronts.json``."""
        return cls(
            Settings.from_dict(values["settings"]),
            float(values["score"]),
            float(values["forwards"]),
            float(values["backwards"]),
            float(values["model_forwards"]),
            values.get("task"),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as ``fronts.json`` has them."""
        return asdict(self)


_DEFAULTS: dict[bool, tuple[Settings, ...]] = {
    False: (
        Settings(num_steps=25, gradient_steps_start=1),
        Settings(num_steps=50, gradient_steps_start=1),
        Settings(num_steps=100, gradient_steps_start=2),
    ),
    True: (
        Settings(num_steps=25, gradient_steps_start=0),
        Settings(num_steps=50, gradient_steps_start=0),
        Settings(num_steps=100, gradient_steps_start=1, gradient_steps_end=1, r_switch=0.7),
    ),
}


# In the first half of the time; a likelihood step does the second.
_LINEAR: dict[bool, tuple[Settings, ...]] = {
    False: (
        Settings(num_steps=50, gradient_steps_start=0, r_model=0.0, r_step=0.5),
        Settings(num_steps=50, gradient_steps_start=1, gradient_steps_end=0, r_switch=0.5, r_step=0.5),
        Settings(num_steps=100, gradient_steps_start=1, gradient_steps_end=0, r_switch=0.5, r_step=0.5),
    ),
    True: (
        Settings(num_steps=25, gradient_steps_start=0, r_step=0.5),
        Settings(num_steps=50, gradient_steps_start=0, r_step=0.5),
        Settings(50, 1, gradient_steps_end=0, r_switch=0.5, r_model=0.0, r_step=0.5),
    ),
}
_LINEAR_TASKS = {*NAMES, "inpaint", "deblur"} - {"hdr", "jpeg", "phase-retrieval"}


def read_fronts(folder: str | Path, task: str | None) -> list[FrontEntry]:
    """The measured front in a model folder for a task, best score last; empty where there is none.

    Raises:
        ValueError: the file is not of the format above.
    """
    file = Path(folder) / FRONTS
    if not file.is_file():
        return []
    try:
        entries = [FrontEntry.from_dict(values) for values in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is no list of settings with score and costs: {error!r}") from error
    for known in (task, *_KIN.get(str(task), ()), None):
        if own := [entry for entry in entries if entry.task == known]:
            return sorted(own, key=lambda entry: -float(entry.score or 0.0))
    return []


def front_for(
    folder: str | Path, amortized: bool, task: str | None, latent: bool = False
) -> list[FrontEntry]:
    """The settings to choose from, best last: those measured for a model, or the table above."""
    if measured := read_fronts(folder, task):
        return measured
    defaults = (_LINEAR if task in _LINEAR_TASKS and not latent else _DEFAULTS)[amortized]
    if latent:
        defaults = tuple(replace(s, gradient_steps_start=_LATENT_STEPS, minimizer="adam") for s in defaults)
    return [FrontEntry.of(settings, amortized) for settings in defaults]


def of_quality(front: Sequence[FrontEntry], quality: Quality) -> FrontEntry:
    """The cheapest entry of a front, its best, or a balance.

    Balanced is the middle of a front without scores, else the cheapest whose score has at least three
    quarters of the way from the worst to the best.
    """
    if quality not in get_args(Quality):
        raise ValueError(f"quality must be one of {', '.join(get_args(Quality))}, got {quality!r}")

    def passes(entry: FrontEntry) -> float:
        return entry.forwards + 2 * entry.backwards + entry.model_forwards

    if quality == "best":
        return front[-1]
    if quality == "fast":
        return min(front, key=passes)
    scores = [entry.score for entry in front if entry.score is not None]
    if not scores:
        return front[len(front) // 2]
    enough = min(scores) + 0.25 * (max(scores) - min(scores))
    return min((entry for entry in front if entry.score is not None and entry.score <= enough), key=passes)
