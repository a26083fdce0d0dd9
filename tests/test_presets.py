"""Fronts of settings: their costs are what a run spends, and a budget takes the best that fits."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

import lavps
from lavps.restoration import Restorer
from lavps.restoration.pacing import Pace, parse_duration, within_budget
from lavps.restoration.presets import FrontEntry, Settings, front_for, of_quality
from problems import network_prior, pooling_problem

ALL = [
    Settings(num_steps=6, gradient_steps_start=2),
    Settings(num_steps=8, gradient_steps_start=0),
    Settings(num_steps=8, gradient_steps_start=0, safeguard=False),
    Settings(num_steps=10, gradient_steps_start=1, gradient_steps_end=2, r_switch=0.7),
    Settings(num_steps=6, gradient_steps_start=1, denoising_steps=2, renoise="bridge"),
    Settings(num_steps=6, gradient_steps_start=0, denoising_steps=3),
    Settings(
        num_steps=12, gradient_steps_start=0, gradient_steps_end=1, r_switch=0.6, r_model=0.0, probe_every=3
    ),
    Settings(num_steps=9, gradient_steps_start=1, r_model=0.5, probe_every=2),
    Settings(num_steps=9, gradient_steps_start=0, r_step=0.4),
    Settings(num_steps=9, gradient_steps_start=0, r_model=0.0, r_step=0.4),
    Settings(num_steps=9, gradient_steps_start=1, gradient_steps_end=0, r_switch=0.4, r_step=0.4),
    Settings(num_steps=10, gradient_steps_start=1, gradient_steps_end=0, r_switch=0.5, minimizer="adam"),
]


@pytest.mark.parametrize("amortized", [False, True])
@pytest.mark.parametrize("settings", ALL, ids=repr)
def test_the_cost_is_what_a_run_spends(settings: Settings, amortized: bool) -> None:
    # A model that predicts the bridge itself: the safeguard keeps it always.
    sampler = settings.sampler(network_prior(), (lambda context: context.bridge) if amortized else None)
    trace = sampler.sample(pooling_problem(1)).trace
    assert (trace.forwards, trace.backwards, trace.model_forwards) == settings.cost(amortized)


def test_settings_are_plain_values() -> None:
    settings = Settings(num_steps=7, minimizer="adam", learning_rate=0.1)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.sampler(network_prior()).minimizer == lavps.Adam(0.1)
    assert Settings().sampler(network_prior()).minimizer == lavps.WhitenedGradient()
    with pytest.raises(ValueError, match="no setting speed: known are num_steps"):
        Settings.from_dict({"speed": 1})
    with pytest.raises(ValueError, match="adam, whitened"):
        Settings(minimizer="newton")  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["sr4", "inpaint", "jpeg", "camera.py:operator", None])
def test_defaults_rise_in_cost_with_quality(task: str | None, tmp_path: Path) -> None:
    for amortized in (False, True):
        front = front_for(tmp_path, amortized, task)
        entries = [of_quality(front, quality) for quality in ("fast", "balanced", "best")]
        assert entries == front
        costs = [entry.forwards + 2 * entry.backwards + entry.model_forwards for entry in entries]
        assert costs == sorted(costs)
        assert all(settings.settings.safeguard for settings in front)
        # Likelihood steps where the operator is known to be linear, and not under a decoder.
        assert {entry.settings.r_step for entry in front} == {0.5 if task in ("sr4", "inpaint") else None}
        assert {entry.settings.r_step for entry in front_for(tmp_path, amortized, task, True)} == {None}
    assert front[1].backwards == 0  # LAVPS takes no gradient


def test_a_measured_front_is_asked_for_its_task(tmp_path: Path) -> None:
    def entry(k: int, score: float, **more: object) -> dict[str, object]:
        counts = {"forwards": k, "backwards": 0, "model_forwards": 0}
        return {"settings": {"num_steps": k}, "score": score, **counts, **more}

    entries = [entry(90, 0.1), entry(10, 0.5), entry(30, 0.19), entry(5, 0.2, task="sr4")]
    (tmp_path / "fronts.json").write_text(json.dumps(entries))
    front = front_for(tmp_path, False, "denoise")
    steps = [of_quality(front, quality).settings.num_steps for quality in ("fast", "balanced", "best")]
    assert steps == [10, 30, 90]
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "sr4")] == [5]
    assert FrontEntry.from_dict(json.loads(json.dumps(front[0].to_dict()))) == front[0]
    masked = entry(7, 0.3, task="centre-box")
    (tmp_path / "fronts.json").write_text(json.dumps([*entries, masked]))
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "inpaint")] == [7]
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "deblur")] == steps
    (tmp_path / "fronts.json").write_text('[{"settings": {}}]')
    with pytest.raises(ValueError, match=r"fronts\.json is no list of settings"):
        front_for(tmp_path, False, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("500ms", 0.5), ("2min", 120), ("1.5 h", 5400), ("3", 3)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "fast", "5 parsecs", "0s", "-1s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="5s, 500ms or 2min"):
        parse_duration(text)


def test_a_budget_takes_the_best_that_fits_or_the_cheapest() -> None:
    front = [FrontEntry(Settings(num_steps=k), 1 / k, k, k / 2, 0) for k in (10, 20, 40)]
    seconds = [Pace(forward=0.1, backward=0.2).predict(entry) for entry in front]
    assert seconds == pytest.approx([2, 4, 8])
    halves = FrontEntry(Settings(num_steps=10, r_step=0.5), 0.1, 10, 0, 0)  # t = .2, .3, .4, .5
    assert Pace(forward=0.1, backward=0.2, step=0.05).predict(halves) == pytest.approx(1 + 4 * 0.05)
    gentle = FrontEntry.of(Settings(num_steps=10, gradient_steps_start=0, r_model=0.0, r_step=0.5), False)
    assert gentle.model_forwards == 4  # t = .6, .7, .8, .9, each priced as a likelihood step
    assert Pace(0.1, 0.2, step=0.05).predict(gentle) == pytest.approx(0.1 * gentle.forwards + 8 * 0.05)
    assert within_budget(front, seconds, 5.0) == (1, True)
    assert within_budget(front, seconds, 100.0) == (2, True)
    assert within_budget(front, seconds, 1.0) == (0, False)


def test_the_pace_times_every_pass() -> None:
    calls: list[str] = []

    def model(context: lavps.Context) -> lavps.DiagonalGaussian:
        calls.append("model")
        return context.bridge

    pace = Pace.measure(network_prior(), pooling_problem(2), model, patience=0.01)
    assert pace.forward > 0
    assert pace.backward >= 0
    assert pace.model > 0
    assert pace.step > 0
    assert calls
    assert Pace.measure(network_prior(), pooling_problem(2), patience=0.0001).model == 0.0
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("operator", [lavps.operators.AveragePool(4), lavps.operators.HDRClip(2.0)], ids=repr)
def test_the_predicted_seconds_are_near_the_real_ones(operator: lavps.operators.Operator) -> None:
    """On a network large enough that its passes are the work; generous, since others may use the machine."""
    prior = lavps.load_prior(Path(__file__).parent.parent / "zoo" / "faces64")
    problem = lavps.InverseProblem.simulate(torch.zeros(1, 3, 64, 64), operator, lavps.GaussianNoise(0.05))
    restorer = Restorer(prior, Settings(num_steps=8))
    predicted = restorer.pace(problem).predict(FrontEntry.of(restorer.settings, False))
    real = restorer.restore(problem).trace.seconds
    assert predicted / 4 < real < 4 * predicted, (predicted, real)
