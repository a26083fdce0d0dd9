"""Fronts of settings: their costs are what a run spends, and a budget takes the best that fits."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import lavps
from lavps.cli.options import parse_duration
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, linearized, switch
from lavps.operators.registry import family_from
from lavps.priors import CountingPrior
from lavps.restoration import Restorer
from lavps.restoration.pacing import PassTimes, within_budget
from lavps.restoration.presets import BALANCED, FrontEntry, Quality, chosen, front_for
from lavps.samplers import UNBOUND, Settings
from lavps.samplers.settings import EvaluationCounts
from support.problems import network_prior, pooling_problem
from support.restoring import write_prior

WHITENED = lavps.WhitenedGradient()


def gibbs(num_steps: int, guidance: Guidance | None = None, **options: Any) -> Settings:
    guidance = Gradient(1, WHITENED) if guidance is None else guidance
    return Settings(lavps.MGDM(UNBOUND, num_steps=num_steps, guidance=guidance, **options))


def model(steps: int = 0, every: int | None = 1) -> Amortized:
    return Amortized(UNBOUND, steps, WHITENED, every)


DAMPED = Linearized(data_variance=0.01)
ALL = [
    gibbs(6, Gradient(2, WHITENED)),
    gibbs(8, Gradient(0)),
    gibbs(10, switch(Gradient(1, WHITENED), Gradient(2, WHITENED), at=0.3)),
    gibbs(6, denoising_steps=2, renoise="bridge"),
    gibbs(6, Gradient(0), denoising_steps=3),
    gibbs(9, switch(Gradient(1, WHITENED), Linearized(), at=0.6)),
    gibbs(9, switch(Gradient(0), Linearized(), at=0.6)),
    gibbs(9, switch(DAMPED, Linearized(), at=0.6)),
    gibbs(9, Amortized(Linearized(), 1, WHITENED, None)),
    gibbs(10, switch(Gradient(1), Gradient(0), at=0.5)),
    gibbs(7, Gradient(1, WHITENED), repetitions=2),
    gibbs(6, model(2)),
    gibbs(8, model()),
    gibbs(8, model(every=None)),
    gibbs(10, switch(Gradient(1, WHITENED), model(2), at=0.3)),
    gibbs(6, model(1), denoising_steps=2, renoise="bridge"),
    gibbs(6, model(), denoising_steps=3),
    gibbs(12, switch(model(every=3), model(1, 3), at=0.4)),
    gibbs(9, switch(Gradient(1, WHITENED), model(1, 2), at=0.5)),
    gibbs(9, switch(model(), Linearized(), at=0.6)),
    gibbs(9, switch(model(1), Linearized(), at=0.6)),
    gibbs(10, switch(model(1), Amortized(UNBOUND, 0), at=0.5)),
    gibbs(9, model(1), repetitions=2),
    Settings(lavps.MGPS(UNBOUND, num_steps=6, guidance=Gradient(2, WHITENED))),
    Settings(lavps.MGPS(UNBOUND, num_steps=6, guidance=model(1))),
    Settings(lavps.DPS(UNBOUND, num_steps=5)),
    Settings(lavps.WienerPIR(UNBOUND, num_steps=5)),
    Settings(lavps.DAPS(UNBOUND, num_steps=5, denoising_steps=3)),
]


@pytest.mark.parametrize("settings", ALL, ids=repr)
def test_the_cost_is_what_a_run_spends(settings: Settings) -> None:
    calls = []

    def bridge(context: lavps.Context) -> lavps.DiagonalGaussian:
        calls.append(context)
        return context.bridge  # the safeguard always accepts this prediction

    sampler = settings.sampler(network_prior(), bridge if settings.models else None)
    trace, counts = sampler.sample(pooling_problem(1)).trace, settings.counts
    assert (trace.forwards, trace.backwards, trace.model_forwards) == (
        counts.forwards,
        counts.backwards,
        counts.model_forwards,
    )
    assert trace.model_forwards == len(calls)


@pytest.mark.filterwarnings("error")
def test_a_safeguarded_linearized_step_is_counted_as_accepted() -> None:
    counts = gibbs(9, Amortized(Linearized(), 1, WHITENED)).counts
    assert counts == EvaluationCounts(
        forwards=1 + 3 * 7, backwards=7, model_forwards=0, linearized_steps=7, curvatures=7
    )


@pytest.mark.parametrize("settings", ALL, ids=repr)
def test_solutions_and_curvatures_are_counted(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    solved, curved = [], []
    solve, curvature = linearized._solve, lavps.InverseProblem.curvature
    monkeypatch.setattr(linearized, "_solve", lambda *of: (solved.append(of), solve(*of))[1])

    def counted(problem: lavps.InverseProblem, x: torch.Tensor) -> torch.Tensor:
        curved.append(x)
        return curvature(problem, x)

    monkeypatch.setattr(lavps.InverseProblem, "curvature", counted)
    sampler = settings.sampler(network_prior(), (lambda c: c.bridge) if settings.models else None)
    sampler.sample(pooling_problem(1))
    found = (len(solved), len(curved))  # before the counts, which are found by running too
    assert (settings.counts.linearized_steps, settings.counts.curvatures) == found


def test_settings_are_plain_values() -> None:
    settings = gibbs(7, Gradient(1, lavps.Adam(0.1)))
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert settings.sampler(network_prior()).guidance.minimizer == lavps.Adam(0.1)
    assert isinstance(BALANCED.sampler(network_prior()), lavps.WienerPIR)
    with pytest.raises(ValueError, match="MGDM has no field speed: it has guidance, num_steps"):
        Settings.from_dict({"sampler": "MGDM", "speed": 1})
    with pytest.raises(ValueError, match=r"minimizer must be one of .*Adam, WhitenedGradient"):
        Settings.from_dict(
            {"sampler": "MGDM", "guidance": {"kind": "Gradient", "minimizer": {"kind": "Newton"}}}
        )


def parts(entry: FrontEntry) -> list[Guidance]:
    return entry.settings.guidance_by_step


@pytest.mark.parametrize("task", ["sr4", "inpaint", "jpeg", "camera.py:operator", None])
def test_defaults_rise_in_cost_with_quality(task: str | None, tmp_path: Path) -> None:
    for amortized in (False, True):
        front = front_for(tmp_path, amortized, task)
        entries = [chosen(front, quality) for quality in ("fast", "balanced", "best")]
        assert entries == front[-3:]
        costs = [entry.forwards + 2 * entry.backwards + entry.model_forwards for entry in entries]
        assert costs == sorted(costs)
        models = [part for entry in front for part in parts(entry) if isinstance(part, Amortized)]
        assert bool(models) == amortized
        assert all(part.safeguard_every is not None for part in models)
        # With a model: linearized steps where the operator is known to be linear, and not under a decoder.
        for entry in front if amortized else ():
            times = entry.settings.template.guided_times
            late = [t for t, part in zip(times, parts(entry), strict=True) if part == Linearized()]
            assert late == ([t for t in times if t <= 0.5] if task in ("sr4", "inpaint") else [])
        for entry in front_for(tmp_path, amortized, task, True):
            assert not any(isinstance(part, Linearized) for part in parts(entry))
            assert all(part.minimizer == lavps.Adam() for part in parts(entry))
        assert front[1].backwards == 0


@pytest.mark.parametrize("amortized", [False, True])
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("task", ["sr4", "jpeg"])
@pytest.mark.parametrize("evaluations", [11, 40, 103])
def test_a_number_of_evaluations_is_used_and_not_exceeded(
    amortized: bool, latent: bool, task: str, evaluations: int
) -> None:
    entry = chosen(front_for(None, amortized, task, latent), evaluations=evaluations)
    trace = entry.settings.sampler(network_prior(), (lambda c: c.bridge) if entry.settings.models else None)
    spent = trace.sample(pooling_problem(1)).trace.forwards
    assert spent == entry.forwards
    assert 0.4 * evaluations < spent <= evaluations
    if not amortized and not latent:
        assert spent == evaluations


def test_schedules_for_any_task_are_chosen_by_their_number_of_evaluations() -> None:
    front = front_for(None, False, "sr4")
    for evaluations in (4, 8):
        universal = Settings(lavps.TunedPIR.universal(UNBOUND, evaluations))
        assert chosen(front, evaluations=evaluations).settings == universal
    assert chosen(front, "fast") == chosen(front, evaluations=8)
    assert within_budget(front, [entry.forwards for entry in front], 5.0) == (0, True)


def test_a_loaded_prior_has_the_front_of_its_folder(tmp_path: Path) -> None:
    folder = write_prior(tmp_path / "prior")
    prior = lavps.load_prior(folder)
    expected = chosen(front_for(folder, False, None)).settings
    for given in (prior, CountingPrior(prior)):
        assert Restorer(given).settings == expected != BALANCED
    y, operator = torch.zeros(1, 3, 4, 4), lavps.operators.AveragePool(2)
    ours, again = (lavps.restore(y, operator, given, 0.1) for given in (prior, folder))
    assert torch.equal(ours.samples, again.samples)


def test_evaluations_and_a_quality_are_refused_together_and_too_few_too() -> None:
    assert chosen(front_for(None, False, "sr4"), evaluations=1).forwards == 1
    with pytest.raises(ValueError, match="not both"):
        chosen(front_for(None, False, "sr4"), "fast", 8)
    for evaluations in (0, 1):
        with pytest.raises(ValueError, match="too few"):
            chosen(front_for(None, True, "sr4"), evaluations=evaluations)


@pytest.mark.parametrize("amortized", [False, True])
@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("task", ["sr4", "jpeg"])
def test_a_front_on_disk_is_the_front(tmp_path: Path, amortized: bool, latent: bool, task: str) -> None:
    scored = [
        replace(entry, score=1 / (2 + place), task=task)
        for place, entry in enumerate(front_for(tmp_path, amortized, task, latent))
    ]
    written = [entry.to_dict() for entry in scored]
    (tmp_path / "fronts.json").write_text(json.dumps(written))
    read = front_for(tmp_path, amortized, task)
    assert read == scored
    assert [entry.to_dict() for entry in read] == written


def test_a_measured_front_is_asked_for_its_task(tmp_path: Path) -> None:
    def entry(k: int, score: float, **more: object) -> dict[str, object]:
        counts = {"forwards": k, "backwards": 0, "model_forwards": 0}
        return {"settings": {"sampler": "MGDM", "num_steps": k}, "score": score, **counts, **more}

    entries = [entry(90, 0.1), entry(10, 0.5), entry(30, 0.19), entry(5, 0.2, task="sr4")]
    (tmp_path / "fronts.json").write_text(json.dumps(entries))
    front = front_for(tmp_path, False, "denoise")
    steps = [chosen(front, quality).settings.num_steps for quality in ("fast", "balanced", "best")]
    assert steps == [10, 30, 90]
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "sr4")] == [5]
    assert FrontEntry.from_dict(json.loads(json.dumps(front[0].to_dict()))) == front[0]
    masked = entry(7, 0.3, task="centre-box")
    (tmp_path / "fronts.json").write_text(json.dumps([*entries, masked]))
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "inpaint")] == [7]
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "deblur")] == steps
    assert {e.task for task in ("sr2", "sr8") for e in front_for(tmp_path, False, task)} == {"sr4"}
    (tmp_path / "fronts.json").write_text(json.dumps([*entries, entry(6, 0.2, task="jpeg")]))
    assert [e.settings.num_steps for e in front_for(tmp_path, False, "jpeg10")] == [6]
    ordered = [replace(e, score=None, task="jpeg").to_dict() for e in front_for(None, False, None)]
    (tmp_path / "fronts.json").write_text(json.dumps([*entries, *ordered]))
    unscored = [chosen(front_for(tmp_path, False, "jpeg"), q).forwards for q in ("fast", "balanced", "best")]
    assert unscored == [8, 25, 100]
    (tmp_path / "fronts.json").write_text('[{"settings": {}}]')
    with pytest.raises(ValueError, match=r"fronts\.json is no list of settings"):
        front_for(tmp_path, False, None)
    (tmp_path / "fronts.json").write_text(json.dumps([entry(5, 0.2) | {"settings": {"num_steps": 5}}]))
    with pytest.raises(ValueError, match=r"fronts\.json is no list of settings.*sampler must be one of"):
        front_for(tmp_path, False, None)


@pytest.mark.parametrize(("operator", "spent"), [(lavps.operators.AveragePool(2), 3), (lambda x: x, 8)])
def test_the_library_takes_the_presets_of_the_operators_task(
    operator: Any, spent: int, tmp_path: Path
) -> None:
    entry = FrontEntry.counted(Settings(lavps.DiffPIR(UNBOUND, num_steps=3)))
    write_prior(tmp_path)
    (tmp_path / "fronts.json").write_text(json.dumps([replace(entry, score=0.1, task="sr4").to_dict()]))
    prior = lavps.load_prior(tmp_path)
    y = operator(torch.zeros(1, *prior.image_shape))
    assert lavps.restore(y, operator, prior, noise=0.1, quality="fast").trace.forwards == spent


@pytest.mark.parametrize(("quality", "steps"), [("fast", 8), ("balanced", 25), ("best", 100)])
def test_denoising_starts_at_the_noisy_image(quality: Quality, steps: int) -> None:
    folder = Path(__file__).parents[2] / "zoo" / "photos64"
    expected = Settings(lavps.DDIM(UNBOUND, num_steps=steps))
    for prior in (None, folder):  # also where there is a few-step model
        assert chosen(front_for(prior, False, "denoise"), quality).settings == expected
    assert chosen(front_for(folder, False, "denoise"), evaluations=12).settings.num_steps == 12
    for amortized, latent in ((True, False), (False, True)):
        front = front_for(None, amortized, "denoise", latent)
        assert not any(isinstance(entry.settings.template, lavps.DDIM) for entry in front)


@pytest.mark.parametrize("task", ["sr2", "sr8", "jpeg10"])
def test_photos64_has_presets_where_the_schedule_for_any_task_is_behind(task: str) -> None:
    folder = Path(__file__).parents[2] / "zoo" / "photos64"
    prior = lavps.load_prior(folder)
    names = (task, "centre-box", "hdr", "denoise")
    fast = [chosen(front_for(folder, False, name), "fast").settings for name in names]
    kinds = [type(settings.template) for settings in fast]
    linear = lavps.WienerPIR if task == "jpeg10" else lavps.FewStep
    assert kinds == [linear, lavps.FewStep, lavps.TunedPIR, lavps.DDIM]
    own, others = (
        chosen(front_for(folder, False, name), evaluations=8).settings for name in (task, "centre-box")
    )
    if task == "jpeg10":
        own = fast[0]
    assert own != others == chosen(front_for(None, False, task), "fast").settings
    operator = family_from(task, prior.image_shape).draw([0], prior.image_shape, 0)
    problem = lavps.InverseProblem.simulate(torch.zeros(1, *prior.image_shape), operator, 0.05)
    posterior = own.sampler(prior).sample(problem)
    assert posterior.trace.forwards == 8
    assert float(posterior.chi_square) < 2


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
    front = [FrontEntry(gibbs(k), 1 / k, k, k / 2, 0) for k in (10, 20, 40)]
    seconds = [PassTimes(forward=0.1, backward=0.2).predict(entry) for entry in front]
    assert seconds == pytest.approx([2, 4, 8])
    assert within_budget(front, seconds, 5.0) == (1, True)
    assert within_budget(front, seconds, 100.0) == (2, True)
    assert within_budget(front, seconds, 1.0) == (0, False)


@pytest.mark.parametrize(
    ("guidance", "curvatures", "steps"),
    [
        (Gradient(1, WHITENED), 8, 0),  # k = 9, ..., 2
        (Gradient(2, WHITENED), 8, 0),  # one curvature per inner problem
        (Gradient(2), 0, 0),  # Adam needs none
        (switch(Gradient(1, WHITENED), Gradient(1), at=0.5), 4, 0),
        (switch(Gradient(1, WHITENED), Linearized(), at=0.5), 4, 4),
        (switch(DAMPED, Linearized(), at=0.5), 0, 8),
        (switch(model(), Linearized(), at=0.5), 0, 4),
        (switch(model(1), Linearized(), at=0.2), 7, 1),
        (Amortized(Linearized(), 1, WHITENED), 8, 8),
    ],
)
def test_predicted_seconds_price_every_kind_of_work(guidance: Guidance, curvatures: int, steps: int) -> None:
    entry = FrontEntry.counted(gibbs(10, guidance))
    assert entry.settings.counts.data_steps == 0
    pace = PassTimes(forward=0.1, backward=0.2, model=0.03, curvature=0.7, step=0.05)
    passes = 0.1 * entry.forwards + 0.2 * entry.backwards + 0.03 * entry.model_forwards
    assert pace.predict(entry) == pytest.approx(passes + curvatures * 0.7 + steps * 0.05)
    # What was measured on images replaces the counted passes, and nothing else.
    measured = replace(entry, forwards=50, backwards=7, model_forwards=3)
    assert pace.predict(measured) == pytest.approx(5 + 1.4 + 0.09 + curvatures * 0.7 + steps * 0.05)
    assert pace.times(3.0).predict(entry) == pytest.approx(3 * pace.predict(entry))


def test_predicted_seconds_price_data_steps() -> None:
    entry = FrontEntry.counted(Settings(lavps.WienerPIR(UNBOUND, num_steps=7)))
    pace = PassTimes(forward=0.1, backward=0.2, step=0.05, data_step=0.02)
    assert pace.predict(entry) == pytest.approx(7 * 0.12)


def test_the_pace_times_every_pass() -> None:
    calls: list[str] = []

    def predicted(context: lavps.Context) -> lavps.DiagonalGaussian:
        calls.append("model")
        return context.bridge

    pace = PassTimes.measure(network_prior(), pooling_problem(2), predicted, patience=0.01)
    assert pace.forward > 0
    assert pace.backward >= 0
    assert pace.model > 0
    assert pace.step > 0
    assert pace.data_step > 0
    assert calls
    assert PassTimes.measure(network_prior(), pooling_problem(2), patience=0.0001).model == 0.0
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("operator", [lavps.operators.AveragePool(4), lavps.operators.HDRClip(2.0)], ids=repr)
def test_the_predicted_seconds_are_near_the_real_ones(operator: lavps.operators.Operator) -> None:
    """On a network large enough that its passes are the work; generous, since others may use the machine."""
    prior = lavps.load_prior(Path(__file__).parents[1].parent / "zoo" / "synthfaces64")
    problem = lavps.InverseProblem.simulate(torch.zeros(1, 3, 64, 64), operator, lavps.GaussianNoise(0.05))
    restorer = Restorer(prior, BALANCED.with_num_steps(8))
    predicted = restorer.pace(problem).predict(FrontEntry.counted(restorer.settings))
    real = restorer.restore(problem).trace.seconds
    assert predicted / 4 < real < 4 * predicted, (predicted, real)
