"""A method is its settings: one key for one computation, and grids that are what they say."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import lavps
from lavps.evaluation.benchmark import Method, paper_grid, paper_subset, rival_grid
from lavps.evaluation.benchmark.costs import known_prices
from lavps.evaluation.benchmark.spaces import Choice, search_space, searched_method
from lavps.variational import Context, DiagonalGaussian
from problems import network_prior


def warm(context: Context) -> DiagonalGaussian:
    return context.bridge


def test_a_method_survives_json_and_keeps_its_key() -> None:
    method = Method("lavps", num_steps=50, gradient_steps_end=3, r_switch=0.8, model="zoo/sr4")
    again = Method.from_settings(json.loads(json.dumps(method.settings())))
    assert again.settings() == method.settings()
    assert again.key == method.key
    assert len(method.key) == 12
    with pytest.raises(ValueError, match="a method has no momentum"):
        Method.from_settings({"sampler": "mgdm", "momentum": 0.9})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Method("mgdm"), Method("mgdm", safeguard=False, step_size=7.0, solver_steps=9)),
        (Method("mgdm"), Method("mgdm", learning_rate=0.03, gradient_steps_end=1)),
        (Method("mgdm", r_switch=0.7), Method("mgdm", r_switch=0.9)),  # no window without G_end
        (Method("lavps", model="a"), Method("lavps", model="a", r_model=0.0)),
        (
            Method("lavps", model="a", gradient_steps_start=0),
            Method("lavps", model="a", gradient_steps_start=0, minimizer="whitened", learning_rate=0.5),
        ),
        (
            Method("lavps", model="a", safeguard=False),
            Method("lavps", model="a", safeguard=False, probe_every=4),
        ),
        (Method("dps"), Method("dps", gradient_steps_start=3, minimizer="whitened")),
        (Method("mgps", minimizer="whitened"), Method("mgps", minimizer="whitened", learning_rate=1.0)),
    ],
)
def test_what_a_sampler_does_not_look_at_is_not_in_its_key(one: Method, other: Method) -> None:
    assert one.key == other.key


def test_what_it_looks_at_is() -> None:
    base = {"sampler": "lavps", "model": "a", "gradient_steps_end": 3}
    changes: list[dict[str, object]] = [
        {}, {"num_steps": 50}, {"gradient_steps_start": 2}, {"gradient_steps_end": 0}, {"r_switch": 0.5},
        {"minimizer": "whitened"}, {"learning_rate": 0.01}, {"denoising_steps": 5}, {"renoise": "bridge"},
        {"safeguard": False}, {"r_model": 0.3}, {"probe_every": 4}, {"r_step": 0.5}, {"model": "b"},
    ]  # fmt: skip
    methods = [Method.from_settings(base | change) for change in changes]
    assert len({method.key for method in methods}) == len(methods)
    assert len({(method.family, method.label) for method in methods}) == len(methods) - 1  # all but "b"


def test_groups_are_named_by_words_of_family_and_label() -> None:
    method = Method("mgdm", num_steps=100, gradient_steps_end=3, r_switch=0.7)
    assert method.is_of("MGDM")
    assert method.is_of("MGDM, Adam")
    assert method.is_of("MGDM, Adam, K=100")
    assert not method.is_of("MGDM, whitened")
    assert not method.is_of("MGDM, Adam, K=10")
    assert not method.is_of("LAVPS")


def test_the_step_without_training_is_a_model_by_name() -> None:
    method = Method("lavps", model="likelihood-step", num_steps=4, gradient_steps_start=0)
    assert method.family == "Likelihood step"
    assert isinstance(method.build(network_prior(), lavps.LikelihoodStep()), lavps.LAVPS)
    gentle = replace(method, model="gentle-step", r_step=0.5)
    assert (gentle.family, gentle.key == method.key) == ("Likelihood step", False)
    assert "gentle steps, likelihood step 50%" in gentle.label


def test_methods_build_the_samplers_they_describe() -> None:
    prior = network_prior()
    method = Method(
        "lavps", num_steps=25, gradient_steps_start=0, gradient_steps_end=2, r_switch=0.7, learning_rate=0.5,
        minimizer="whitened", denoising_steps=5, renoise="bridge", safeguard=False, model="x",
    )  # fmt: skip
    assert method.build(prior, warm) == lavps.LAVPS(
        prior, warm, num_steps=25, gradient_steps_start=0, gradient_steps_end=2, r_switch=0.7,
        minimizer=lavps.WhitenedGradient(0.5), denoising_steps=5, renoise="bridge", safeguard=False,
    )  # fmt: skip
    mgdm = Method("mgdm", gradient_steps_start=3, learning_rate=0.01).build(prior)
    assert mgdm == lavps.MGDM(prior, gradient_steps_end=3, minimizer=lavps.Adam(0.01))
    dps = Method("dps", num_steps=30, step_size=0.3, eta=0.5).build(prior)
    assert dps == lavps.DPS(prior, num_steps=30, step_size=0.3, eta=0.5)
    mmps = Method("mmps", solver_steps=1).build(prior)
    assert mmps == lavps.MMPS(prior, num_steps=100, solver_steps=1)
    mgps = Method("mgps", gradient_steps_start=2, minimizer="whitened", model="x", safeguard=False)
    assert mgps.build(prior, warm) == lavps.MGPS(prior, gradient_steps=2, model=warm, safeguard=False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": "ddpm"}, "sampler must be one of"),
        ({"sampler": "mgdm", "minimizer": "sgd"}, "minimizer must be one of"),
        ({"sampler": "lavps"}, "lavps needs a model"),
        ({"sampler": "dps", "model": "x"}, "dps has no use for a model"),
    ],
)
def test_what_cannot_be_run_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Method.from_settings(settings)


def test_the_papers_grid_has_its_96_points() -> None:
    grid = paper_grid("lavps", "x")
    assert len({method.key for method in grid}) == 96
    assert {method.num_steps for method in grid} == {100}
    assert {method.family for method in grid} == {"LAVPS"}
    assert {method.settings()["gradient_steps_end"] for method in grid} == {0, 1, 3, 10}
    # Zero-shot, a window in which nothing changes is none.
    assert len({method.key for method in paper_grid("mgdm")}) == len(paper_grid("mgdm")) == 80


def test_the_subset_is_spread_over_the_grid() -> None:
    subset, grid = paper_subset("lavps", "x"), paper_grid("lavps", "x")
    assert {method.key for method in subset} < {method.key for method in grid}
    assert len(subset) == 32
    others = {(m.gradient_steps_start, m.end, m.rate, m.denoising_steps) for m in subset}
    assert len(others) == 32
    for name in ("gradient_steps_start", "gradient_steps_end", "learning_rate", "denoising_steps"):
        pairs = Counter((getattr(m, name), m.r_switch) for m in subset)
        levels = len({getattr(m, name) for m in subset})
        assert len(pairs) == 3 * levels
        assert max(pairs.values()) - min(pairs.values()) <= 2


def test_rivals_have_small_grids_and_the_search_stays_in_its_space() -> None:
    assert {m.sampler for m in rival_grid("dps")} == {"dps"}
    for sampler, model in (("mmps", None), ("mgps", None), ("supervised", "x")):
        methods = rival_grid(sampler, model)
        assert 1 < len(methods) == len({method.key for method in methods})
    with pytest.raises(ValueError, match="paper_grid"):
        rival_grid("mgdm")
    space = search_space("lavps")
    assert isinstance(space["num_steps"], Choice)
    assert space["num_steps"].values == (12, 25, 50, 100)
    assert "safeguard" not in search_space("mgdm")
    found = {name: part.values[0] if isinstance(part, Choice) else part.low for name, part in space.items()}
    assert searched_method("lavps", "x", found).rate == 0.003
    assert searched_method("lavps", "x", found | {"minimizer": "whitened"}).rate == 0.25
    with pytest.raises(ValueError, match="made for mgdm and lavps"):
        search_space("dps")


def test_likelihood_steps_are_counted_and_priced(tmp_path: Path) -> None:
    method = Method("lavps", model="a", num_steps=10, gradient_steps_start=0, r_step=0.5)
    assert method.likelihood_steps == 4  # k = 5, 4, 3, 2
    assert replace(method, r_step=None).likelihood_steps == 0
    file, rows = tmp_path / "prices.json", [{"forwards": 9, "backwards": 0, "model_forwards": 4}]
    file.write_text(json.dumps({"inference: a": {"model": 0.5}}))
    assert known_prices(file, method) is None
    file.write_text(
        json.dumps({"inference: a": {"model": 0.5}, "inference: likelihood-step": {"model": 0.25}})
    )
    prices, without = known_prices(file, method), known_prices(file, replace(method, r_step=None))
    assert prices is not None
    assert without is not None
    assert (prices.cost(rows), without.cost(rows)) == (9 + 2 + 1, 9 + 2)
    gentle = known_prices(file, replace(method, model="gentle-step"))  # one computation
    assert gentle is not None
    assert gentle.cost(rows) == 9 + 1 + 1
