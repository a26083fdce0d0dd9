"""Presets of sampler settings: a front of quality against cost.

A front is a list of settings, each with its score and its cost: denoiser evaluations, backward passes through
the denoiser and inference-model evaluations. A model folder may hold a measured front, ``fronts.json``:

.. code-block:: json

    [{"settings": {"sampler": "MGDM", "num_steps": 50, "guidance": {"kind": "Gradient", "steps": 1}},
      "score": 0.071, "forwards": 97, "backwards": 48, "model_forwards": 0, "task": "sr4"}]

``settings`` are those of :class:`~lavps.samplers.settings.Settings`; ``score`` is LPIPS, lower is better, or
null in all entries of a task, whose order then counts: the last three are ``fast``, ``balanced`` and
``best``. ``task``, which may be left out, is the measurement of the score. Without a front of their own,
``inpaint`` uses that of ``centre-box``, ``deblur`` that of ``motion-blur``, ``sr8`` that of ``sr4``, and
``jpeg10`` that of ``jpeg``. The file is read from the folder of the inference model, or of the prior if there
is none. Without the file, these are the defaults:

==========  =====================================  ==================================================
quality     without an inference model             LAVPS, safeguarded
==========  =====================================  ==================================================
fast        FewStep, K = 4, or TunedPIR, K = 8     K = 25, no gradient
balanced    WienerPIR, K = 25                      K = 50, no gradient
best        WienerPIR, K = 100                     K = 100, one whitened gradient per step, the model
                                                   in the last 30 % of the time
==========  =====================================  ==================================================

FewStep is for tasks known to be linear and priors with a few-step model
(:func:`~lavps.amortization.few_step.few_step_folder`), also with a measured front without scores. TunedPIR
has the schedule for any task (:meth:`lavps.TunedPIR.universal`). All three take one evaluation per step, as
does DDIM, which denoises: K = 8, 25 and 100. With an inference model, tasks known to be linear use linearized
guidance in the second half of the time, without gradients: K = 25 and 50 and, as the best, K = 50 with one
gradient. Under a latent prior MGDM and LAVPS take five gradients per step with Adam: a data step would need
many passes through the decoder.

In place of a quality, a number of denoiser evaluations may be given: the few-step model or learned schedule
of the front if it has one for this number, else the balanced settings with as many steps as fit. Without a
model, one evaluation gives an estimate of the posterior mean (:class:`~lavps.samplers.PosteriorMean`).
"""

from __future__ import annotations

__all__ = [
    "BALANCED",
    "FRONTS",
    "FrontEntry",
    "Quality",
    "Settings",
    "chosen",
    "few_step_front",
    "front_for",
    "read_fronts",
]

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ..amortization.few_step import few_step_folder
from ..checkpoints.folder import read_config
from ..data_step.universal import universal_evaluations
from ..guidance import Amortized, Gradient, Guidance, Linearized, switch
from ..minimizers import WhitenedGradient
from ..operators.registry import TASKS, block_side
from ..samplers import DDIM, MGDM, FewStep, FewStepModel, PosteriorMean, TunedPIR, WienerPIR
from ..samplers.settings import UNBOUND, Settings

Quality = Literal["fast", "balanced", "best"]
FRONTS = "fronts.json"
_LATENT_STEPS = 5
# Tasks that use fronts measured on similar tasks, the nearest first.
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
    """Settings with their score and cost.

    Attributes:
        settings: Settings of the sampler.
        score: LPIPS, lower is better; None if not measured.
        forwards: Denoiser evaluations per sample.
        backwards: Backward passes through the denoiser per sample.
        model_forwards: Inference-model evaluations per sample.
        task: Task of the score; None for all tasks.
    """

    settings: Settings
    score: float | None
    forwards: float
    backwards: float
    model_forwards: float
    task: str | None = None

    @classmethod
    def counted(cls, settings: Settings) -> FrontEntry:
        """Return an entry without a score, its cost counted."""
        counts = settings.counts
        return cls(settings, None, counts.forwards, counts.backwards, counts.model_forwards)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FrontEntry:
        """Read an entry of ``fronts.json``."""
        counts = {name: float(values[name]) for name in ("forwards", "backwards", "model_forwards")}
        score = None if values["score"] is None else float(values["score"])
        return cls(Settings.from_dict(values["settings"]), score, **counts, task=values.get("task"))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``fronts.json``, in plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"settings": self.settings.to_dict()}


def _mgdm(num_steps: int, guidance: Guidance) -> Settings:
    return Settings(MGDM(UNBOUND, num_steps=num_steps, guidance=guidance))


def _model(steps: int = 0) -> Amortized:
    return Amortized(UNBOUND, steps, WhitenedGradient())


_DEFAULTS: dict[bool, tuple[Settings, ...]] = {
    False: (
        *(Settings(TunedPIR.universal(UNBOUND, count)) for count in universal_evaluations()),
        *(Settings(WienerPIR(UNBOUND, num_steps=steps)) for steps in (25, 100)),
    ),
    True: (
        _mgdm(25, _model()),
        _mgdm(50, _model()),
        _mgdm(100, switch(Gradient(1, WhitenedGradient()), _model(1), at=0.3)),
    ),
}
_DENOISING = tuple(Settings(DDIM(UNBOUND, num_steps=steps)) for steps in (4, 8, 25, 100))
BALANCED = _DEFAULTS[False][-2]
_MEAN = Settings(PosteriorMean(UNBOUND))
_LATENT: dict[bool, tuple[Settings, ...]] = {
    False: tuple(_mgdm(steps, Gradient(_LATENT_STEPS)) for steps in (25, 50, 100)),
    True: (
        _mgdm(25, Amortized(UNBOUND, _LATENT_STEPS)),
        _mgdm(50, Amortized(UNBOUND, _LATENT_STEPS)),
        _mgdm(100, switch(Gradient(_LATENT_STEPS), Amortized(UNBOUND, 1), at=0.3)),
    ),
}
_LINEAR: dict[bool, tuple[Settings, ...]] = {
    False: _DEFAULTS[False],
    True: (
        _mgdm(25, switch(_model(), Linearized(), at=0.5)),
        _mgdm(50, switch(_model(), Linearized(), at=0.5)),
        _mgdm(50, switch(_model(1), Linearized(), at=0.5)),
    ),
}
_LINEAR_TASKS = TASKS.keys() - {"hdr", "jpeg", "jpegQ", "phase-retrieval"}


def read_fronts(folder: str | Path, task: str | None) -> list[FrontEntry]:
    """Return the front of a model folder for a task, best last; empty if there is none.

    Raises:
        ValueError: The file does not have the format above.
    """
    file = Path(folder) / FRONTS
    if not file.is_file():
        return []
    try:
        entries = [FrontEntry.from_dict(values) for values in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{file} is no list of settings with score and costs: {error!r}") from error
    for known in (task, *_kin(str(task)), None):
        if own := [entry for entry in entries if entry.task == known]:
            scored = all(entry.score is not None for entry in own)
            return sorted(own, key=lambda entry: -float(entry.score or 0.0)) if scored else own
    return []


def _kin(task: str) -> tuple[str, ...]:
    """Return the tasks whose fronts a task may use, the nearest first."""
    if (side := block_side(task)) is not None:
        return ("sr2", "sr4") if side < 4 else ("sr4", "sr2")
    return ("jpeg",) if task.startswith("jpeg") else _KIN.get(task, ())


def few_step_front(evaluations: int) -> list[FrontEntry]:
    """Return the only entry for a few-step model."""
    sampler = FewStep(UNBOUND, cast(FewStepModel, UNBOUND), evaluations=evaluations)
    return [FrontEntry.counted(Settings(sampler))]


def front_for(
    folder: str | Path | None, amortized: bool, task: str | None, latent: bool = False
) -> list[FrontEntry]:
    """Return the front of a model, best last: measured, or the defaults above."""
    denoising = task == "denoise" and not amortized and not latent
    linear = task in _LINEAR_TASKS or block_side(str(task)) is not None
    model = few_step_folder(folder) if linear and not amortized and not denoising else None
    if folder is not None and (measured := read_fronts(folder, task)):
        scored = any(entry.score is not None for entry in measured)
        return measured if model is None or scored else _with_few_step(measured, model)
    described = amortized and folder is not None and (Path(folder) / "config.json").is_file()
    if described and (config := read_config(str(folder))).kind == "few-step":
        return few_step_front(int((config.window or {})["evaluations"]))
    if denoising:
        return [FrontEntry.counted(settings) for settings in _DENOISING]
    table = _LATENT if latent else _LINEAR if linear else _DEFAULTS
    front = [FrontEntry.counted(settings) for settings in table[amortized]]
    return front if model is None else _with_few_step(front, model)


def _with_few_step(front: Sequence[FrontEntry], model: Path) -> list[FrontEntry]:
    """Return a front with a few-step model as ``fast``, in place of a schedule of as many evaluations."""
    (own,) = few_step_front(int((read_config(model).window or {})["evaluations"]))
    rest = [e for e in front if not isinstance(e.settings.template, TunedPIR) or e.forwards != own.forwards]
    return [*rest[:-2], own, *rest[-2:]]


def chosen(
    front: Sequence[FrontEntry], quality: Quality | None = None, evaluations: int | None = None
) -> FrontEntry:
    """Return the entry of a front for a quality or a number of denoiser evaluations.

    Args:
        front: Settings, best last.
        quality: "fast", "balanced" and "best" are the last three entries of a front without scores. With
            scores they are the cheapest entry, the cheapest with three quarters of the improvement from the
            worst to the best score, and the last. Default "balanced".
        evaluations: Maximum number of denoiser evaluations per sample, instead of a quality; 1 for the
            posterior mean.

    Raises:
        ValueError: Both are given, or there are too few evaluations for a run.
    """
    if evaluations is None:
        return _of_quality(front, quality or "balanced")
    if quality is not None:
        raise ValueError("give a quality or a number of evaluations, not both: each sets the cost")
    settings = _of_quality(front, "balanced").settings
    if isinstance(settings.template, FewStep):
        if evaluations != (own := settings.num_steps):
            raise ValueError(f"the few-step model takes {own} evaluations: leave the number out")
        return FrontEntry.counted(settings)
    if evaluations == 1 and not settings.models:
        return FrontEntry.counted(_MEAN)
    tuned = [entry for entry in front if isinstance(entry.settings.template, TunedPIR | FewStep)]
    if exact := [entry for entry in tuned if entry.forwards == evaluations]:
        return exact[0]

    def forwards(steps: int) -> float:
        try:
            return settings.with_num_steps(steps).counts.forwards
        except ValueError:  # the sampler needs more steps
            return 0.0

    steps = max(int(evaluations * settings.num_steps / settings.counts.forwards), 1)
    while forwards(steps) > evaluations:
        steps -= 1
    while forwards(steps + 1) <= evaluations:  # also from too few steps for a run
        steps += 1
    if not 0 < forwards(steps) <= evaluations:
        raise ValueError(f"{evaluations} denoiser evaluations are too few for these settings: give more")
    return FrontEntry.counted(settings.with_num_steps(steps))


def _of_quality(front: Sequence[FrontEntry], quality: Quality) -> FrontEntry:
    if quality not in get_args(Quality):
        raise ValueError(f"quality must be one of {', '.join(get_args(Quality))}, got {quality!r}")

    def passes(entry: FrontEntry) -> float:
        return entry.forwards + 2 * entry.backwards + entry.model_forwards

    scores = [entry.score for entry in front if entry.score is not None]
    if not scores:
        return front[max(len(front) - 3 + get_args(Quality).index(quality), 0)]
    if quality == "best":
        return front[-1]
    if quality == "fast":
        return min(front, key=passes)
    enough = min(scores) + 0.25 * (max(scores) - min(scores))
    return min((entry for entry in front if entry.score is not None and entry.score <= enough), key=passes)
