"""Settings of manifests. Version 0.1 stored them flat, with windows t <= 1 - r instead of switches."""

from __future__ import annotations

__all__ = ["settings_from_windows", "stored_settings"]

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..guidance import Amortized, Gradient, Guidance, Linearized, MidpointModel, switch
from ..minimizers import Adam, Minimizer, WhitenedGradient
from ..samplers import MGDM, UNBOUND, Settings

_EARLY_VARIANCE = 0.01  # data variance of the linearized steps that stood in for a model


def stored_settings(values: Mapping[str, Any], amortized: bool) -> Settings:
    """Read the settings of a manifest.

    Args:
        values: Field ``settings`` of the manifest.
        amortized: Whether the manifest names an inference model.
    """
    return Settings.from_dict(values) if "sampler" in values else settings_from_windows(values, amortized)


def settings_from_windows(values: Mapping[str, Any], amortized: bool) -> Settings:
    """Convert flat settings of MGDM or LAVPS.

    Args:
        values: Field names and values of version 0.1's settings; what is left out has its default there.
        amortized: Whether an inference model was given beside them.
    """
    old: dict[str, Any] = {
        "num_steps": 50, "gradient_steps_start": 1, "gradient_steps_end": None, "r_switch": 0.0,
        "minimizer": "whitened", "learning_rate": None, "safeguard": True, "r_model": None, "probe_every": 1,
        "r_step": None, "denoising_steps": 1, "renoise": "forward",
    }  # fmt: skip
    if unknown := sorted(set(values) - set(old)):
        raise ValueError(f"there is no setting {', '.join(unknown)}: known are {', '.join(old)}")
    old |= values
    model: MidpointModel | None = UNBOUND if amortized else None
    r_model = old["r_switch"] if old["r_model"] is None else old["r_model"]
    every = old["probe_every"] if old["safeguard"] else None
    if not amortized and old["r_step"] is not None:
        model, every = Linearized(data_variance=_EARLY_VARIANCE), None
        r_model = 1.0 if old["r_model"] is None else old["r_model"]
    minimizer = _minimizer(old["minimizer"], old["learning_rate"])
    start = old["gradient_steps_start"]
    end = start if old["gradient_steps_end"] is None else old["gradient_steps_end"]

    def part(t: float) -> Guidance:
        steps = end if _within(t, old["r_switch"]) else start
        if old["r_step"] is not None and _within(t, old["r_step"]):
            return _started(Linearized(), steps, minimizer, None)
        if model is None or not _within(t, r_model):
            return Gradient(steps, minimizer)
        return _started(model, steps, minimizer, every)

    windows = (old["r_switch"], r_model, old["r_step"])
    bounds = sorted({round(1.0 - r, 9) for r in windows if r is not None and 0.0 < r < 1.0})
    guidance = part(0.5 * (bounds or [1.0])[0])
    for low, high in pairwise([*bounds, 1.0]):
        early = part(0.5 * (low + high))
        guidance = guidance if early == guidance.part(low) else switch(early, guidance, at=low)
    bare = MGDM(
        UNBOUND,
        num_steps=old["num_steps"],
        denoising_steps=old["denoising_steps"],
        renoise=old["renoise"],
    )
    return Settings(replace(bare, guidance=guidance.reached(bare.guided_times)))


def _within(t: float, r: float) -> bool:
    return t <= 1.0 - r + 1e-9


def _minimizer(name: str, rate: float | None) -> Minimizer:
    if name not in ("adam", "whitened"):
        raise ValueError(f"minimizer must be one of adam, whitened, got {name!r}")
    if name == "adam":
        return Adam() if rate is None else Adam(rate)
    return WhitenedGradient() if rate is None else WhitenedGradient(rate)


def _started(model: MidpointModel, steps: int, minimizer: Minimizer, every: int | None) -> Guidance:
    if isinstance(model, Linearized) and steps == 0 and every is None:
        return model
    return Amortized(model, steps, minimizer, every)
