"""Search spaces of the samplers: the fields that a study tunes, at a given number of denoiser evaluations."""

from __future__ import annotations

from collections.abc import Callable

import optuna

from lavps.data_step import Isotropic
from lavps.guidance import Gradient, Linearized
from lavps.minimizers import WhitenedGradient
from lavps.samplers import (
    DAPS,
    DDNM,
    DPS,
    MGDM,
    MMPS,
    UNBOUND,
    DiffPIR,
    PiGDM,
    Sampler,
    Settings,
    Supervised,
    WienerPIR,
)

Space = Callable[[optuna.Trial, int], Sampler]


def _grid_power(trial: optuna.Trial) -> float:
    return round(trial.suggest_float("grid_power", 0.7, 3.0), 2)


def _last_time(trial: optuna.Trial) -> float:
    return round(trial.suggest_float("last", 0.01, 0.25, log=True), 3)


def _fraction(trial: optuna.Trial, name: str) -> float:
    return round(trial.suggest_float(name, 0.0, 1.0), 2)


def _diffpir(trial: optuna.Trial, evaluations: int) -> Sampler:
    strength = float(f"{trial.suggest_float('strength', 0.1, 30.0, log=True):.3g}")
    return DiffPIR(
        UNBOUND,
        num_steps=evaluations,
        covariance=Isotropic(strength),
        zeta=_fraction(trial, "zeta"),
        grid_power=_grid_power(trial),
        last_time=_last_time(trial),
    )


def _wienerpir(trial: optuna.Trial, evaluations: int) -> Sampler:
    return WienerPIR(
        UNBOUND,
        num_steps=evaluations,
        zeta=_fraction(trial, "zeta"),
        relaxation=round(trial.suggest_float("relaxation", 0.7, 2.0), 2),
        grid_power=_grid_power(trial),
        last_time=_last_time(trial),
    )


def _ddnm(trial: optuna.Trial, evaluations: int) -> Sampler:
    return DDNM(UNBOUND, num_steps=evaluations, eta=_fraction(trial, "eta"), grid_power=_grid_power(trial))


def _pigdm(trial: optuna.Trial, evaluations: int) -> Sampler:
    return PiGDM(UNBOUND, num_steps=evaluations, eta=_fraction(trial, "eta"), grid_power=_grid_power(trial))


def _mmps(trial: optuna.Trial, evaluations: int) -> Sampler:
    return MMPS(UNBOUND, num_steps=evaluations, eta=_fraction(trial, "eta"), grid_power=_grid_power(trial))


def _dps(trial: optuna.Trial, evaluations: int) -> Sampler:
    size = float(f"{trial.suggest_float('step_size', 0.1, 10.0, log=True):.3g}")
    return DPS(UNBOUND, num_steps=evaluations, step_size=size, grid_power=_grid_power(trial))


def _supervised(trial: optuna.Trial, evaluations: int) -> Sampler:
    return Supervised(
        UNBOUND, num_steps=evaluations, eta=_fraction(trial, "eta"), grid_power=_grid_power(trial)
    )


def _daps(trial: optuna.Trial, evaluations: int) -> Sampler:
    denoising = trial.suggest_int("denoising_steps", 1, 3)
    return DAPS(
        UNBOUND,
        num_steps=evaluations // denoising,
        denoising_steps=denoising,
        covariance=Isotropic(variance=float(f"{trial.suggest_float('variance', 0.01, 1.0, log=True):.3g}")),
        grid_power=_grid_power(trial),
        last_time=_last_time(trial),
    )


def _linearized(trial: optuna.Trial, evaluations: int) -> Sampler:
    variance = float(f"{trial.suggest_float('data_variance', 0.01, 1.0, log=True):.3g}")
    return MGDM(
        UNBOUND,
        num_steps=evaluations + 1,
        guidance=Linearized(data_variance=variance),
        grid_power=_grid_power(trial),
    )


def _whitened(trial: optuna.Trial, evaluations: int) -> Sampler:
    steps = trial.suggest_int("steps", 1, 3)
    size = round(trial.suggest_float("step_size", 0.5, 1.95), 2)
    return MGDM(
        UNBOUND,
        num_steps=(evaluations - 1) // (1 + steps) + 2,
        guidance=Gradient(steps, WhitenedGradient(size)),
        grid_power=_grid_power(trial),
    )


SPACES: dict[str, Space] = {
    "DiffPIR": _diffpir,
    "WienerPIR": _wienerpir,
    "DDNM+": _ddnm,
    "Pi-GDM": _pigdm,
    "MMPS": _mmps,
    "DPS": _dps,
    "supervised network": _supervised,
    "DAPS": _daps,
    "MGDM (linearized)": _linearized,
    "MGDM (whitened)": _whitened,
}
# Settings that are tried first: published or default ones.
FIRST: dict[str, list[Callable[[int], dict[str, float]]]] = {
    "DiffPIR": [
        lambda k: {"strength": 1.0, "zeta": 0.5, "grid_power": 1.0, "last": max(1.0 / k, 0.01)},
        lambda k: {"strength": 7.0, "zeta": 0.3, "grid_power": 2.0, "last": 0.03},
    ],
    "WienerPIR": [lambda k: {"zeta": 0.8, "relaxation": 1.0, "grid_power": 2.0, "last": 0.03}],
    "DDNM+": [lambda k: {"eta": 0.85, "grid_power": 1.0}],
    "Pi-GDM": [lambda k: {"eta": 1.0, "grid_power": 1.0}],
    "MMPS": [lambda k: {"eta": 1.0, "grid_power": 1.0}],
    "DPS": [lambda k: {"step_size": 1.0, "grid_power": 1.0}],
    "supervised network": [lambda k: {"eta": 1.0, "grid_power": 1.0}],
    "DAPS": [lambda k: {"denoising_steps": 2, "variance": 1.0, "grid_power": 2.0, "last": 0.01}],
    "MGDM (linearized)": [lambda k: {"data_variance": 0.25, "grid_power": 1.0}],
    "MGDM (whitened)": [lambda k: {"steps": 1, "step_size": 1.5, "grid_power": 1.0}],
}


def best(name: str, evaluations: int, trials: int, loss: Callable[[Settings], float]) -> Settings:
    """Return the settings of a sampler with the lowest loss.

    Args:
        name: Sampler, a key of ``SPACES``.
        evaluations: Number of denoiser evaluations.
        trials: Number of settings that are tried.
        loss: Loss of settings.
    """
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=evaluations))
    for point in FIRST[name]:
        study.enqueue_trial(point(evaluations))
    tried: list[tuple[float, Settings]] = []

    def objective(trial: optuna.Trial) -> float:
        settings = Settings(SPACES[name](trial, evaluations))
        tried.append((loss(settings), settings))
        return tried[-1][0]

    study.optimize(objective, n_trials=trials)
    return min(tried, key=lambda pair: pair[0])[1]
