"""Settings: a sampler as plain values and back, what it costs, and what version 0.1 stored."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor

import lavps
from lavps.cli.old_manifests import settings_from_windows
from lavps.data_step import Isotropic, Stationary
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, Switch, switch
from lavps.samplers import (
    DAPS,
    DDIM,
    DDNM,
    DPS,
    MGDM,
    MGPS,
    MMPS,
    UNBOUND,
    DiffPIR,
    FractionMidpoint,
    FusedPIR,
    MixedMidpoint,
    PiGDM,
    PreviousMidpoint,
    Sampler,
    Settings,
    Supervised,
    Unbound,
    UniformMidpoint,
    WienerPIR,
)
from support.problems import network_prior, pooling_problem

ADAM, WHITENED = lavps.Adam(), lavps.WhitenedGradient()
NETWORK = Unbound("a/model")
K = 9
ALL: dict[str, Sampler] = {
    "MGDM": MGDM(UNBOUND, num_steps=K),
    "MGDM, two gradients": MGDM(UNBOUND, num_steps=K, guidance=Gradient(2)),
    "MGDM, whitened": MGDM(UNBOUND, num_steps=K, guidance=Gradient(3, lavps.WhitenedGradient(0.5, True))),
    "MGDM, another Adam": MGDM(
        UNBOUND, num_steps=K, guidance=Gradient(3, lavps.Adam(0.1, (0.8, 0.9), 1e-6, False))
    ),
    "MGDM, unguided": MGDM(UNBOUND, num_steps=K, guidance=Gradient(0)),
    "MGDM, loop": MGDM(
        UNBOUND, num_steps=K, grid_power=1.5, repetitions=2, denoising_steps=3, eta=0.5, renoise="bridge"
    ),
    "MGDM, uniform": MGDM(UNBOUND, num_steps=K, midpoint=UniformMidpoint()),
    "MGDM, mixed": MGDM(UNBOUND, num_steps=K, midpoint=MixedMidpoint(0.3)),
    "MGDM, fraction": MGDM(UNBOUND, num_steps=K, midpoint=FractionMidpoint(0.6)),
    "linearized": MGDM(UNBOUND, num_steps=K, guidance=Linearized()),
    "linearized twice": MGDM(
        UNBOUND, num_steps=K, guidance=switch(Linearized(0.01, 5), Linearized(), at=0.5)
    ),
    "linearized, refined": MGDM(
        UNBOUND, num_steps=K, guidance=Amortized(Linearized(0.1), 1, WHITENED, safeguard_every=None)
    ),
    "linearized, safeguarded": MGDM(UNBOUND, num_steps=K, guidance=Amortized(Linearized(), 1)),
    "LAVPS": lavps.LAVPS(UNBOUND, UNBOUND, num_steps=K, r_switch=0.5),
    "LAVPS, named": lavps.LAVPS(UNBOUND, NETWORK, num_steps=K, r_switch=0.5),
    "LAVPS, everywhere": MGDM(UNBOUND, num_steps=K, guidance=Amortized(UNBOUND, steps=0)),
    "LAVPS, unguarded": MGDM(
        UNBOUND, num_steps=K, guidance=Amortized(UNBOUND, steps=0, safeguard_every=None)
    ),
    "LAVPS, every third": MGDM(UNBOUND, num_steps=K, guidance=Amortized(UNBOUND, 1, WHITENED, 3)),
    "LAVPS, denoising": MGDM(UNBOUND, num_steps=K, guidance=Amortized(UNBOUND, 0), denoising_steps=2),
    "LAVPS, nested": MGDM(
        UNBOUND,
        num_steps=K,
        repetitions=2,
        guidance=switch(Amortized(UNBOUND, 0), switch(Amortized(UNBOUND, 2), Linearized(), at=0.3), at=0.6),
    ),
    "MGPS": MGPS(UNBOUND, num_steps=K),
    "MGPS, other": MGPS(
        UNBOUND, num_steps=K, guidance=Gradient(1), grid_power=2.0, midpoint=PreviousMidpoint()
    ),
    "MGPS, amortized": MGPS(UNBOUND, num_steps=K, guidance=Amortized(UNBOUND, steps=0)),
    "MGPS, switched": MGPS(
        UNBOUND, num_steps=K, guidance=switch(Gradient(1), Amortized(UNBOUND, 1, WHITENED), at=0.5)
    ),
    "DPS": DPS(UNBOUND, num_steps=K),
    "DPS, other": DPS(UNBOUND, num_steps=K, grid_power=1.5, step_size=0.3, eta=0.0),
    "MMPS": MMPS(UNBOUND, num_steps=K),
    "MMPS, other": MMPS(UNBOUND, num_steps=K, solver_steps=6, eta=0.5),
    "PiGDM": PiGDM(UNBOUND, num_steps=K),
    "PiGDM, other": PiGDM(UNBOUND, num_steps=K, covariance=Stationary(0.1), eta=0.5),
    "DiffPIR": DiffPIR(UNBOUND, num_steps=K),
    "DiffPIR, other": DiffPIR(UNBOUND, num_steps=K, covariance=Isotropic(7.0), zeta=0.1, last_time=0.02),
    "WienerPIR": WienerPIR(UNBOUND, num_steps=K),
    "FusedPIR": FusedPIR(UNBOUND, num_steps=K),
    "DDNM": DDNM(UNBOUND, num_steps=K),
    "DDNM, other": DDNM(UNBOUND, num_steps=K, eta=0.5, solver_steps=10),
    "DAPS": DAPS(UNBOUND, num_steps=K),
    "DAPS, Langevin": DAPS(UNBOUND, num_steps=K, denoising_steps=2, langevin_steps=5),
    "DDIM": DDIM(UNBOUND, num_steps=K),
    "Supervised": Supervised(UNBOUND, num_steps=K),
    "Supervised, named": Supervised(NETWORK, num_steps=K, eta=0.0),
}
EVERY = pytest.mark.parametrize("name", ALL)


def bridge(context: lavps.Context) -> lavps.DiagonalGaussian:
    """A prediction that the safeguard always accepts."""
    return context.bridge


class Halved:
    """A conditional denoiser."""

    schedule = lavps.VPLinear()

    def denoise(self, x_t: Tensor, t: Tensor, problem: lavps.InverseProblem) -> Tensor:
        return 0.5 * x_t


def network_for(sampler: Sampler) -> object:
    return Halved() if isinstance(sampler, Supervised) else bridge


# --- plain values and back --------------------------------------------------------------------------------


@EVERY
def test_settings_survive_a_round_trip_through_json(name: str) -> None:
    settings = Settings(ALL[name])
    values = json.loads(json.dumps(settings.to_dict()))
    again = Settings.from_dict(values)
    assert again == settings
    assert hash(again) == hash(settings)
    assert again.template == ALL[name]
    assert again.to_dict() == values
    assert again.key == settings.key
    assert len(settings.key) == 12
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert "prior" not in values


def test_different_settings_have_different_keys() -> None:
    keys = {name: Settings(sampler).key for name, sampler in ALL.items()}
    assert len(set(keys.values())) == len(ALL)
    assert all(Settings(a) != Settings(b) for a, b in combinations(ALL.values(), 2))


@EVERY
def test_the_sampler_is_built_with_its_networks(name: str) -> None:
    settings, prior = Settings(ALL[name]), network_prior()
    model = network_for(ALL[name]) if settings.models else None
    sampler = settings.sampler(prior, model)
    assert type(sampler) is type(ALL[name])
    assert Settings(sampler).with_num_steps(K) == Settings(_unnamed(ALL[name]))
    assert sampler.sample(pooling_problem(1)).samples.isfinite().all()
    assert "Unbound" not in repr(sampler)


def _unnamed(sampler: Sampler) -> Sampler:
    """A bound sampler does not know the folder of its model."""
    text = json.dumps(Settings(sampler).to_dict()).replace(f'"{NETWORK.name}"', "null")
    return Settings.from_dict(json.loads(text)).template


def test_what_is_left_out_has_its_default() -> None:
    assert Settings.from_dict({"sampler": "MGDM"}) == Settings(MGDM(UNBOUND))
    assert Settings.from_dict({"sampler": "MGPS", "guidance": {"kind": "Gradient"}}) == Settings(
        MGPS(UNBOUND, guidance=Gradient())
    )
    guidance = {"kind": "Amortized", "model": "a/model", "minimizer": {"kind": "WhitenedGradient"}}
    assert Settings.from_dict({"sampler": "MGDM", "guidance": guidance}) == Settings(
        MGDM(UNBOUND, guidance=Amortized(NETWORK, minimizer=WHITENED))
    )


def test_the_networks_of_a_sampler_do_not_enter_its_settings() -> None:
    prior = network_prior()
    bound = MGDM(prior, num_steps=K, guidance=switch(Gradient(1), Amortized(bridge, 1), at=0.5))
    free = MGDM(UNBOUND, num_steps=K, guidance=switch(Gradient(1), Amortized(UNBOUND, 1), at=0.5))
    assert Settings(bound) == Settings(free)
    assert Settings(bound).sampler(prior, bridge) == bound
    assert Settings(Supervised(Halved())) == Settings(Supervised(UNBOUND))
    assert Settings(bound).models == [UNBOUND]
    assert Settings(ALL["LAVPS, named"]).models == [NETWORK]
    assert Settings(ALL["Supervised, named"]).models == [NETWORK]
    assert Settings(ALL["linearized, safeguarded"]).models == [], "a linearized step is no network"


def test_a_placeholder_cannot_be_run() -> None:
    with pytest.raises(TypeError, match=r"settings\.sampler\(prior, model\)"):
        MGDM(UNBOUND, num_steps=K).sample(pooling_problem(1))
    with pytest.raises(TypeError, match=r"settings\.sampler\(prior, model\)"):
        MGDM(network_prior(), num_steps=K, guidance=Amortized(UNBOUND)).sample(pooling_problem(1))


@EVERY
def test_a_missing_and_a_superfluous_model_are_refused(name: str) -> None:
    settings = Settings(ALL[name])
    if settings.models:
        with pytest.raises(ValueError, match="use a model, and none was given"):
            settings.sampler(network_prior())
    else:
        with pytest.raises(ValueError, match="use no model, and one was given"):
            settings.sampler(network_prior(), bridge)


def mgdm(**fields: Any) -> dict[str, Any]:
    return {"sampler": "MGDM", **fields}


def gradient(**fields: Any) -> dict[str, Any]:
    return mgdm(guidance={"kind": "Gradient", **fields})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "sampler must be one of MGDM, MGPS, .*, got None"),
        ({"sampler": "LAVPS"}, "sampler must be one of .*, got 'LAVPS'"),
        ({"sampler": ["MGDM"]}, r"sampler must be one of .*, got \['MGDM'\]"),
        (mgdm(speed=1), "MGDM has no field speed: it has guidance, num_steps"),
        (mgdm(prior="a/prior"), "MGDM has no field prior"),
        ({"sampler": "DPS", "guidance": {"kind": "Gradient"}}, "DPS has no field guidance"),
        (mgdm(num_steps="9"), "MGDM.num_steps cannot be '9'"),
        (mgdm(num_steps=9.5), "MGDM.num_steps cannot be 9.5"),
        (mgdm(num_steps=True), "MGDM.num_steps cannot be True"),
        (mgdm(num_steps=None), "MGDM.num_steps cannot be None"),
        (mgdm(num_steps=[9]), r"MGDM.num_steps cannot be \[9\]"),
        (mgdm(num_steps={"kind": "Adam"}), "MGDM.num_steps must be a plain value, got 'Adam'"),
        (mgdm(eta="1"), "MGDM.eta cannot be '1'"),
        (mgdm(eta=True), "MGDM.eta cannot be True"),
        (mgdm(renoise="backward"), "MGDM.renoise cannot be 'backward'"),
        (mgdm(renoise=[]), r"MGDM.renoise cannot be \[\]"),
        (mgdm(guidance="Gradient"), "MGDM.guidance cannot be 'Gradient'"),
        (mgdm(guidance=None), "MGDM.guidance cannot be None"),
        (mgdm(guidance={"steps": 3}), "MGDM.guidance must be one of Gradient, .*, got None"),
        (mgdm(guidance={"kind": "Newton"}), "MGDM.guidance must be one of Gradient, .*, got 'Newton'"),
        (mgdm(guidance={"kind": ["Gradient"]}), "MGDM.guidance must be one of Gradient"),
        (mgdm(guidance={"kind": "Adam"}), "MGDM.guidance must be one of Gradient, .*, got 'Adam'"),
        (mgdm(midpoint={"kind": "Gradient"}), "MGDM.midpoint must be one of Fraction.*, got 'Gradient'"),
        (mgdm(midpoint={"kind": "Adam"}), "MGDM.midpoint must be one of Fraction.*, got 'Adam'"),
        (gradient(rate=3), "Gradient has no field rate: it has steps, minimizer"),
        (gradient(steps="3"), "Gradient.steps cannot be '3'"),
        (gradient(steps=-1), "steps must not be negative, got -1"),
        (gradient(minimizer={"kind": "Linearized"}), "Gradient.minimizer must be one of Adam, Whitened"),
        (gradient(minimizer={"kind": "Adam", "learning_rate": [1]}), r"Adam.learning_rate cannot be \[1\]"),
        (gradient(minimizer={"kind": "Adam", "betas": [0.9]}), r"Adam.betas cannot be \[0.9\]"),
        (gradient(minimizer={"kind": "Adam", "betas": [0.9, "a"]}), "Adam.betas cannot be"),
        (gradient(minimizer={"kind": "Adam", "betas": 0.9}), "Adam.betas cannot be 0.9"),
        (gradient(minimizer={"kind": "Adam", "fit_std": 1}), "Adam.fit_std cannot be 1"),
        (mgdm(guidance={"kind": "Amortized"}), "Amortized cannot be built from .*'model'"),
        (mgdm(guidance={"kind": "Amortized", "model": 3}), "Amortized.model cannot be 3"),
        (
            mgdm(guidance={"kind": "Amortized", "model": {"kind": "Gradient"}}),
            "Amortized.model must be one of Linearized, got 'Gradient'",
        ),
        (
            mgdm(guidance={"kind": "Amortized", "model": None, "safeguard_every": False}),
            "Amortized.safeguard_every cannot be False",
        ),
        (
            mgdm(guidance={"kind": "Switch", "first": {"kind": "Gradient"}, "at": 0.5}),
            "Switch cannot be built from .*'then'",
        ),
        ({"sampler": "Supervised"}, "Supervised cannot be built from .*'denoiser'"),
        (
            {"sampler": "Supervised", "denoiser": {"kind": "Linearized"}},
            "Supervised.denoiser must be a plain",
        ),
    ],
)
def test_unknown_names_and_wrong_types_are_named(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.from_dict(values)


def test_what_holds_more_than_plain_values_cannot_be_stored() -> None:
    with pytest.raises(TypeError, match="cannot be stored as settings"):
        Settings(MGDM(UNBOUND, eta=torch.ones(()))).to_dict()


def test_another_number_of_steps_leaves_out_what_is_no_longer_reached() -> None:
    nested = switch(Gradient(1), switch(Gradient(2), Linearized(), at=0.05), at=0.5)
    settings = Settings(MGDM(UNBOUND, guidance=nested))
    assert settings.with_num_steps(50) == Settings(MGDM(UNBOUND, num_steps=50, guidance=nested))
    assert settings.with_num_steps(10) == Settings(
        MGDM(UNBOUND, num_steps=10, guidance=switch(Gradient(1), Gradient(2), at=0.5))
    )
    assert settings.with_num_steps(3) == Settings(MGDM(UNBOUND, num_steps=3, guidance=Gradient(1)))
    assert Settings(DPS(UNBOUND)).with_num_steps(7) == Settings(DPS(UNBOUND, num_steps=7))
    assert settings.with_num_steps(10).num_steps == 10


def test_the_guidance_of_every_step_is_listed() -> None:
    early, late = Gradient(1), Linearized()
    assert Settings(MGDM(UNBOUND, num_steps=6, guidance=switch(early, late, at=0.5))).guidance_by_step == [
        early, early, late, late,
    ]  # fmt: skip
    assert Settings(MGPS(UNBOUND, num_steps=6, guidance=switch(early, late, at=0.5))).guidance_by_step == [
        early, early, early, late, late,
    ]  # fmt: skip
    assert Settings(DPS(UNBOUND)).guidance_by_step == []


# --- costs ------------------------------------------------------------------------------------------------


@EVERY
def test_the_counts_are_those_of_a_run(name: str) -> None:
    settings = Settings(ALL[name])
    sampler = settings.sampler(network_prior(), network_for(ALL[name]) if settings.models else None)
    if name == "linearized, safeguarded":  # in place of a step that is always accepted
        sampler = replace(sampler, guidance=replace(sampler.guidance, model=bridge))
    trace, counts = sampler.sample(pooling_problem(1)).trace, settings.counts
    assert trace.acceptance != trace.acceptance or trace.acceptance == 1.0  # NaN if nothing is safeguarded
    assert (counts.forwards, counts.backwards) == (trace.forwards, trace.backwards)
    if name == "linearized, safeguarded":
        assert counts.model_forwards == 0
    else:
        assert counts.model_forwards == trace.model_forwards


def test_linearized_steps_and_curvatures_are_counted() -> None:
    def counted(guidance: Guidance) -> tuple[int, int]:
        counts = Settings(MGDM(UNBOUND, num_steps=12, guidance=guidance)).counts
        return counts.linearized_steps, counts.curvatures

    assert counted(Gradient(2)) == (0, 0)
    assert counted(Gradient(2, WHITENED)) == (0, 10)
    assert counted(Gradient(0, WHITENED)) == (0, 0)
    assert counted(Linearized()) == (10, 0)
    assert counted(switch(Gradient(1, WHITENED), Linearized(), at=0.5)) == (5, 5)
    assert counted(Amortized(Linearized(), 1, WHITENED)) == (10, 10)
    assert counted(Amortized(UNBOUND, 1, WHITENED)) == (0, 10)


# --- settings of version 0.1 ------------------------------------------------------------------------------

DAMPED = Linearized(data_variance=0.01)


def everywhere(steps: int, every: int | None = 1) -> Amortized:
    return Amortized(UNBOUND, steps, WHITENED, every)


def refined(start: Linearized, steps: int) -> Amortized:
    return Amortized(start, steps, WHITENED, safeguard_every=None)


def gradients(steps: int) -> Gradient:
    return Gradient(steps, WHITENED)


# Gradient steps before and in the window, further settings, whether there is a model, the guidance.
WINDOWS: list[tuple[int, int | None, dict[str, Any], bool, Guidance]] = [
    (1, None, {}, False, gradients(1)),
    (1, None, {}, True, everywhere(1)),
    (1, None, {"minimizer": "adam", "learning_rate": 0.1}, False, Gradient(1, lavps.Adam(0.1))),
    (1, None, {"minimizer": "adam"}, False, Gradient(1, ADAM)),
    (1, None, {"learning_rate": 0.5}, False, Gradient(1, lavps.WhitenedGradient(0.5))),
    (3, 1, {"r_switch": 0.9, "minimizer": "adam"}, True, lavps.LAVPS(UNBOUND, UNBOUND).guidance),
    (1, 10, {"r_switch": 0.8}, False, switch(gradients(1), gradients(10), at=0.2)),
    # The same number of gradient steps before and in the window: no switch.
    (2, None, {"r_switch": 0.8}, False, gradients(2)),
    (2, 2, {"r_switch": 0.8}, False, gradients(2)),
    # A window of r = 0 holds every step, a window of r = 1 none.
    (2, 0, {}, False, gradients(0)),
    (2, 0, {"r_switch": 1.0}, True, gradients(2)),
    (1, None, {"r_model": 1.0}, True, gradients(1)),
    (1, None, {"r_model": 0.0, "r_switch": 1.0}, True, everywhere(1)),
    (0, None, {"r_step": 0.0}, True, Linearized()),
    (0, None, {"r_step": 1.0}, True, everywhere(0)),
    (0, None, {"r_step": 1.0}, False, gradients(0)),
    (
        0, 1, {"r_switch": 0.7, "r_model": 0.0, "safeguard": False}, True,
        switch(everywhere(0, None), everywhere(1, None), at=0.3),
    ),
    (0, None, {"probe_every": 4, "r_step": 0.5}, True, switch(everywhere(0, 4), Linearized(), at=0.5)),
    # Without a model: damped linearized steps in the window of the model.
    (0, None, {"r_model": 0.0, "r_step": 0.5}, False, switch(DAMPED, Linearized(), at=0.5)),
    (1, 0, {"r_switch": 0.5, "r_step": 0.5}, False, switch(gradients(1), Linearized(), at=0.5)),
    # Linearized steps followed by gradients.
    (2, None, {"r_step": 0.5}, False, switch(gradients(2), refined(Linearized(), 2), at=0.5)),
    (2, None, {"r_step": 0.5}, True, switch(everywhere(2), refined(Linearized(), 2), at=0.5)),
    (
        1, 0, {"r_switch": 0.8, "r_model": 0.0, "r_step": 0.5}, False,
        switch(refined(DAMPED, 1), switch(refined(Linearized(), 1), Linearized(), at=0.2), at=0.5),
    ),
    # Windows that a small grid does not reach: K = 6 has steps at t = 5/6, ..., 2/6, K = 3 at t = 2/3.
    (1, 3, {"num_steps": 6, "r_switch": 0.7}, True, gradients(1)),
    (
        0, None, {"num_steps": 6, "r_model": 0.2, "r_step": 0.9}, True,
        switch(gradients(0), everywhere(0), at=0.8),
    ),
    (0, None, {"num_steps": 3, "r_model": 0.1, "r_step": 0.5}, True, everywhere(0)),
]  # fmt: skip


@pytest.mark.parametrize(("start", "end", "more", "amortized", "guidance"), WINDOWS, ids=range(len(WINDOWS)))
def test_windows_become_the_guidance_one_would_write(
    start: int, end: int | None, more: dict[str, Any], amortized: bool, guidance: Guidance
) -> None:
    values = {"gradient_steps_start": start, "gradient_steps_end": end, **more}
    expected = MGDM(UNBOUND, num_steps=more.get("num_steps", 50), guidance=guidance)
    assert settings_from_windows(values, amortized) == Settings(expected)
    values |= {"denoising_steps": 2, "renoise": "bridge"}
    changed = replace(expected, denoising_steps=2, renoise="bridge")
    assert settings_from_windows(values, amortized) == Settings(changed)


RATIOS = (0.0, 0.15, 0.5, 0.8, 1.0)


def window(t: float, r: float) -> bool:
    return t <= 1.0 - r + 1e-9


@pytest.mark.parametrize("num_steps", [3, 4, 10, 20])
@pytest.mark.parametrize("amortized", [True, False])
def test_every_combination_of_windows_gives_the_rules_of_version_0_1_at_every_step(
    num_steps: int, amortized: bool
) -> None:
    """Version 0.1 chose start and number of gradient steps anew at every step, by these rules."""
    for r_switch, r_model, r_step in product(RATIOS, (None, *RATIOS), (None, *RATIOS)):
        values = {
            "num_steps": num_steps, "gradient_steps_start": 2, "gradient_steps_end": 0, "r_switch": r_switch,
            "r_model": r_model, "r_step": r_step, "safeguard": amortized, "probe_every": 1,
        }  # fmt: skip
        sampler = settings_from_windows(values, amortized).template
        assert isinstance(sampler, MGDM)
        for t in sampler.guided_times:
            steps = 0 if window(t, r_switch) else 2
            start: object = None
            if r_step is not None and window(t, r_step):
                start = Linearized()
            elif amortized and window(t, r_switch if r_model is None else r_model):
                start = UNBOUND
            elif not amortized and r_step is not None and window(t, 1.0 if r_model is None else r_model):
                start = DAMPED
            part = sampler.guidance.part(t)
            where = f"{values} at t = {t}"
            minimizer = WHITENED if steps else lavps.Adam()  # without a step the default stands for all
            if start is None:
                assert part == Gradient(steps, minimizer), where
            elif isinstance(start, Linearized) and steps == 0:
                assert part == start, where
            else:
                every = 1 if start is UNBOUND else None
                assert part == Amortized(start, steps, minimizer, every), where
        parts = [sampler.guidance.part(t) for t in sampler.guided_times]
        assert isinstance(sampler.guidance, Switch) == (len(set(parts)) > 1), "no switch without need"


def test_settings_of_version_0_1_have_their_defaults() -> None:
    assert settings_from_windows({}, False) == Settings(MGDM(UNBOUND, num_steps=50, guidance=gradients(1)))


def test_unknown_settings_of_version_0_1_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no setting speed: known are num_steps"):
        settings_from_windows({"speed": 1}, False)
    with pytest.raises(ValueError, match="minimizer must be one of adam, whitened, got 'newton'"):
        settings_from_windows({"minimizer": "newton"}, False)
