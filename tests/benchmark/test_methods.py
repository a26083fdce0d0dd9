"""A method is its settings: one key for one computation, and grids that are what they say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

import lavps
from lavps.benchmark import baseline_grid, paper_grid, paper_subset
from lavps.benchmark.costs import known_relative_cost
from lavps.benchmark.methods import family, label, matches_group, model_name
from lavps.benchmark.spaces import Choice, search_space, searched_settings
from lavps.guidance import Amortized, Gradient, Guidance, Linearized, Switch, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.samplers import UNBOUND, FewStep, FewStepModel, Settings, Unbound
from lavps.variational import Context, DiagonalGaussian
from support.benchmarks import gibbs
from support.problems import network_prior

A, B = Unbound("a"), Unbound("b")
WHITENED = WhitenedGradient()


def warm(context: Context) -> DiagonalGaussian:
    return context.bridge


def test_a_method_survives_json_and_keeps_its_key() -> None:
    method = gibbs(50, switch(Gradient(1), Amortized(Unbound("zoo/sr4"), 3), at=0.2))
    again = Settings.from_dict(json.loads(json.dumps(method.to_dict())))
    assert again == method
    assert again.to_dict() == method.to_dict()
    assert again.key == method.key
    assert len(method.key) == 12
    assert model_name(again) == "zoo/sr4"
    with pytest.raises(ValueError, match="MGDM has no field momentum"):
        Settings.from_dict({"sampler": "MGDM", "momentum": 0.9})


def first_point(sampler: str, **changes: Any) -> dict[str, Any]:
    """The first point of a search space, with changes."""
    space = search_space(sampler)
    return {
        name: part.values[0] if isinstance(part, Choice) else part.low for name, part in space.items()
    } | changes


def searched(model: str | None = None, **changes: Any) -> Settings:
    sampler = "mgdm" if model is None else "lavps"
    return searched_settings(sampler, model, first_point(sampler, **changes))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Settings(lavps.MGDM(UNBOUND)), Settings.from_dict({"sampler": "MGDM"})),
        (gibbs(100), gibbs(100, Gradient(1, Adam(0.03)), eta=1.0, renoise="forward")),
        (Settings(lavps.MGDM(UNBOUND)), Settings(lavps.MGDM(network_prior()))),
        (gibbs(100, Gradient(0)), gibbs(100, Gradient(0, WhitenedGradient(0.5)))),
        (gibbs(100, Amortized(A, 0)), gibbs(100, Amortized(A, 0, WhitenedGradient(0.5)))),
        (
            gibbs(100, switch(Gradient(0, WHITENED), Amortized(A, 1), at=0.5)),
            gibbs(100, switch(Gradient(0), Amortized(A, 1), at=0.5)),
        ),
        (
            searched(gradient_steps_start=1, gradient_steps_end=1, end_from=0.3),  # there is no switch
            searched(gradient_steps_start=1, gradient_steps_end=1, end_from=0.1),
        ),
        (searched(whitened_rate=0.3), searched(whitened_rate=1.3)),
        (
            searched("a", gradient_steps_start=0, gradient_steps_end=0, adam_rate=0.01),
            searched("a", gradient_steps_start=0, gradient_steps_end=0, minimizer="whitened"),
        ),
        (
            Settings(lavps.MGPS(UNBOUND)),
            Settings(lavps.MGPS(UNBOUND, guidance=Gradient(3, WhitenedGradient(1.0)))),
        ),
    ],
)
def test_what_a_sampler_does_not_look_at_is_not_in_its_key(one: Settings, other: Settings) -> None:
    assert one.key == other.key
    assert one.to_dict() == other.to_dict()


def test_what_it_looks_at_is() -> None:
    def lavps_method(
        first: Guidance | None = None, late: Guidance | None = None, at: float = 0.5, **options: Any
    ) -> Settings:
        guidance = switch(first or Gradient(1), late or Amortized(A, 3), at=at)
        return gibbs(**{"num_steps": 100} | options, guidance=guidance)

    methods = [
        lavps_method(),
        lavps_method(num_steps=50),
        lavps_method(Gradient(2)),
        lavps_method(Gradient(1, WHITENED)),
        lavps_method(Gradient(1, Adam(0.01))),
        lavps_method(Amortized(A, 1)),
        lavps_method(Linearized(data_variance=0.01)),
        lavps_method(late=Amortized(A, 0)),
        lavps_method(late=Amortized(A, 3, WHITENED)),
        lavps_method(late=Amortized(A, 3, Adam(0.01))),
        lavps_method(late=Amortized(A, 3, safeguard_every=4)),
        lavps_method(late=Amortized(A, 3, safeguard_every=None)),
        lavps_method(late=switch(Amortized(A, 3), Linearized(), at=0.3)),
        lavps_method(at=0.3),
        lavps_method(denoising_steps=5),
        lavps_method(renoise="bridge"),
        lavps_method(repetitions=2),
        lavps_method(late=Amortized(B, 3)),
    ]
    assert len({method.key for method in methods}) == len(methods)
    assert len({(family(method), label(method)) for method in methods}) == len(methods) - 1  # all but "b"


def test_groups_are_named_by_words_of_family_and_label() -> None:
    method = gibbs(100, switch(Gradient(1), Gradient(3), at=0.3))
    assert matches_group(method, "MGDM")
    assert matches_group(method, "MGDM (Adam)")
    assert matches_group(method, "MGDM (Adam), K=100")
    assert not matches_group(method, "MGDM (whitened gradient)")
    assert not matches_group(method, "MGDM (Adam), K=10")
    assert not matches_group(method, "LAVPS")
    then_linearized = gibbs(100, switch(Gradient(1), Linearized(), at=0.3))
    assert matches_group(then_linearized, "MGDM (Adam, then linearized)")
    assert not matches_group(then_linearized, "MGDM (Adam)")


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (gibbs(9), "MGDM (Adam)"),
        (gibbs(9, Gradient(2, WHITENED)), "MGDM (whitened gradient)"),
        (gibbs(9, Gradient(0)), "MGDM (unguided)"),
        (gibbs(9, switch(Gradient(1), Gradient(0), at=0.5)), "MGDM (Adam)"),
        (gibbs(9, Linearized()), "MGDM (linearized)"),
        (gibbs(9, switch(Linearized(0.01), Linearized(), at=0.5)), "MGDM (linearized)"),
        (gibbs(9, Amortized(Linearized(), 1)), "MGDM (linearized)"),
        (
            gibbs(9, switch(Gradient(1, WHITENED), Linearized(), at=0.5)),
            "MGDM (whitened gradient, then linearized)",
        ),
        (gibbs(9, Amortized(A, 0)), "LAVPS"),
        (gibbs(9, switch(Amortized(A, 0), Linearized(), at=0.5)), "LAVPS"),
        (Settings(lavps.MGPS(UNBOUND)), "MGPS"),
        (Settings(lavps.MGPS(UNBOUND, guidance=Amortized(A, 0))), "MGPS (amortized)"),
        (Settings(lavps.DPS(UNBOUND)), "DPS"),
        (Settings(lavps.MMPS(UNBOUND)), "MMPS"),
        (Settings(lavps.Supervised(A)), "Supervised"),
    ],
)
def test_a_family_is_named_after_the_guidance(method: Settings, name: str) -> None:
    assert family(method) == name


def test_linearized_guidance_is_a_method_without_a_model() -> None:
    method = gibbs(4, Linearized())
    assert (method.models, model_name(method)) == ([], None)
    assert method.sampler(network_prior()).guidance == Linearized()
    damped = gibbs(4, switch(Linearized(data_variance=0.01), Linearized(), at=0.5))
    assert (family(damped), damped.key == method.key) == ("MGDM (linearized)", False)
    assert label(damped) == "K=4, damped for t > 0.5"


def test_methods_build_the_samplers_they_describe() -> None:
    prior, options = network_prior(), {"num_steps": 25, "denoising_steps": 5, "renoise": "bridge"}
    method = gibbs(
        guidance=switch(
            Gradient(1, WhitenedGradient(0.5)), Amortized(A, 2, WhitenedGradient(0.5), None), at=0.3
        ),
        **options,
    )
    assert method.sampler(prior, warm) == lavps.LAVPS(
        prior, warm, gradient_steps_start=1, gradient_steps_end=2, r_switch=0.7,
        minimizer=lavps.WhitenedGradient(0.5), safeguard_every=None, **options,
    )  # fmt: skip
    for sampler in (
        lavps.MGDM(prior, guidance=Gradient(3, Adam(0.01))),
        lavps.DPS(prior, num_steps=30, step_size=0.3, eta=0.5),
        lavps.MMPS(prior, num_steps=100, solver_steps=1),
        lavps.MGPS(prior, guidance=Gradient(2, WHITENED), num_steps=7),
    ):
        assert Settings(sampler).sampler(prior) == sampler
    mgps = lavps.MGPS(prior, guidance=Amortized(warm, 2, WHITENED, safeguard_every=None))
    assert Settings(mgps).sampler(prior, warm) == mgps
    with pytest.raises(ValueError, match="use a model, and none was given"):
        method.sampler(prior)
    with pytest.raises(ValueError, match="use no model, and one was given"):
        gibbs(9).sampler(prior, warm)
    with pytest.raises(ValueError, match="a method of a benchmark has one model"):
        model_name(gibbs(9, switch(Amortized(A, 0), Amortized(B, 0), at=0.5)))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": "DDPM"}, "sampler must be one of"),
        ({"sampler": "mgdm", "gradient_steps_start": 1}, "sampler must be one of"),
        (
            {"sampler": "MGDM", "guidance": {"kind": "Gradient", "minimizer": {"kind": "SGD"}}},
            "minimizer must be one of",
        ),
        ({"sampler": "MGDM", "guidance": {"kind": "Amortized"}}, "Amortized cannot be built"),
        ({"sampler": "DPS", "model": "x"}, "DPS has no field model"),
    ],
)
def test_what_cannot_be_run_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.from_dict(settings)


def test_a_grid_of_lavps_needs_a_model_and_one_of_mgdm_has_none() -> None:
    for make in (paper_grid, paper_subset):
        with pytest.raises(ValueError, match="lavps needs a model"):
            make("lavps")
        with pytest.raises(ValueError, match="mgdm has no model"):
            make("mgdm", "x")


def windowed(method: Settings) -> tuple[Gradient, Amortized, float]:
    """The two parts of a point of the paper's grid, and when it switches."""
    guidance = method.template.guidance
    assert isinstance(guidance, Switch)
    assert isinstance(guidance.first, Gradient)
    assert isinstance(guidance.then, Amortized)
    return guidance.first, guidance.then, guidance.at


def test_the_papers_grid_has_its_96_points() -> None:
    grid = paper_grid("lavps", "x")
    assert len({method.key for method in grid}) == 96
    assert {method.num_steps for method in grid} == {100}
    assert {family(method) for method in grid} == {"LAVPS"}
    assert {windowed(method)[1].steps for method in grid} == {0, 1, 3, 10}
    assert {windowed(method)[2] for method in grid} == {0.1, 0.2, 0.3}
    # Zero-shot, a window in which nothing changes is none.
    assert len({method.key for method in paper_grid("mgdm")}) == len(paper_grid("mgdm")) == 80


def test_the_subset_is_spread_over_the_grid() -> None:
    subset, grid = paper_subset("lavps", "x"), paper_grid("lavps", "x")
    assert {method.key for method in subset} < {method.key for method in grid}
    assert len(subset) == 32
    points = []
    for method in subset:
        first, late, at = windowed(method)
        points.append((first.steps, late.steps, first.minimizer, method.template.denoising_steps, at))
    assert len({point[:4] for point in points}) == 32
    for axis in range(4):
        pairs = Counter((point[axis], point[4]) for point in points)
        assert len(pairs) == 3 * len({point[axis] for point in points})
        assert max(pairs.values()) - min(pairs.values()) <= 2


def test_baselines_have_small_grids_and_the_search_stays_in_its_space() -> None:
    assert {family(method) for method in baseline_grid("dps")} == {"DPS"}
    plain = [(sampler, None) for sampler in ("mmps", "mgps", "pigdm", "ddnm", "diffpir", "wienerpir", "daps")]
    for sampler, model in (*plain, ("mgps", "x"), ("supervised", "x")):
        methods = baseline_grid(sampler, model)
        assert 1 < len(methods) == len({method.key for method in methods})
        assert {model_name(method) for method in methods} == {model}
    with pytest.raises(ValueError, match="paper_grid"):
        baseline_grid("mgdm")
    space = search_space("lavps")
    assert isinstance(space["num_steps"], Choice)
    assert space["num_steps"].values == (12, 25, 50, 100)
    assert "safeguard_every" not in search_space("mgdm")
    found = searched("x", gradient_steps_end=1)
    assert found.template.guidance.minimizer == Adam(0.003)
    found = searched("x", gradient_steps_end=1, minimizer="whitened")
    assert found.template.guidance.minimizer == WhitenedGradient(0.25)
    assert searched(adam_rate=0.0123456, gradient_steps_end=1).template.guidance.minimizer == Adam(0.0123)
    with pytest.raises(ValueError, match="covers mgdm and lavps"):
        search_space("dps")
    with pytest.raises(ValueError, match="lavps needs a model"):
        searched_settings("lavps", None, first_point("lavps"))


def corners(sampler: str, num_steps: int) -> list[dict[str, Any]]:
    """Every choice of a search space with this K, of numbers of gradient steps and of rates the extremes."""
    space = search_space(sampler) | {"num_steps": Choice((num_steps,))}
    axes = {}
    for name, part in space.items():
        values = part.values if isinstance(part, Choice) else (part.low, part.high)
        axes[name] = (values[0], values[-1]) if name.startswith("gradient_steps") else values
    axes["adam_rate"] = axes["adam_rate"][:1]
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


def wanted(model: Unbound | None, point: Mapping[str, Any], t: float) -> Guidance:
    """The guidance that a point of the search space describes at a time."""
    adam = point["minimizer"] == "adam"
    minimizer = Adam(point["adam_rate"]) if adam else WhitenedGradient(point["whitened_rate"])
    late = t <= point["end_from"]
    steps = point["gradient_steps_end" if late else "gradient_steps_start"]
    minimizer = minimizer if steps else Adam()
    if t <= point.get("linearized_from", 0.0):
        return Linearized()
    if model is None or not (late or point["model_everywhere"]):
        return Gradient(steps, minimizer)
    return Amortized(model, steps, minimizer, point["safeguard_every"])


@pytest.mark.parametrize(("sampler", "model"), [("mgdm", None), ("lavps", A)])
@pytest.mark.parametrize("num_steps", [12, 50])
def test_every_corner_of_the_search_space_is_a_method(
    sampler: str, model: Unbound | None, num_steps: int
) -> None:
    points = corners(sampler, num_steps)
    times = gibbs(num_steps).template.guided_times
    assert min(times) > 0.1 or num_steps > 12  # some switch times lie below the smallest grid
    for point in points:
        method = searched_settings(sampler, None if model is None else "a", point)
        assert method.guidance_by_step == [wanted(model, point, t) for t in times], point
        assert Settings.from_dict(method.to_dict()) == method
        assert label(method).startswith(f"K={num_steps}, ")
    if model is not None:
        both = {(point["linearized_from"] > point["end_from"]) for point in points}
        assert both == {True, False}


def test_evaluations_of_a_few_step_model_cost_those_of_the_prior(tmp_path: Path) -> None:
    method = Settings(FewStep(UNBOUND, cast(FewStepModel, A)))
    prices = known_relative_cost(tmp_path / "prices.json", method)
    assert prices is not None
    assert prices.cost([{"forwards": 4, "backwards": 0, "model_forwards": 0}]) == 4


def test_linearized_steps_are_counted_and_priced(tmp_path: Path) -> None:
    method = gibbs(10, switch(Amortized(A, 0), Linearized(), at=0.5))
    without = gibbs(10, Amortized(A, 0))
    assert method.linearized_steps == method.counts.linearized_steps == 4  # k = 5, 4, 3, 2
    assert method.counts.model_forwards == 4  # k = 9, 8, 7, 6
    assert without.linearized_steps == 0
    repeated = Settings(replace(method.template, repetitions=3))
    assert (repeated.linearized_steps, repeated.counts.model_forwards) == (12, 12)
    file, rows = tmp_path / "prices.json", [{"forwards": 9, "backwards": 0, "model_forwards": 4}]
    file.write_text(json.dumps({"inference: a": {"model": 0.5}}))
    assert known_relative_cost(file, method) is None
    assert known_relative_cost(file, without) is not None
    file.write_text(json.dumps({"inference: a": {"model": 0.5}, "linearized": {"model": 0.25}}))

    def cost(method: Settings, rows: list[dict[str, int]]) -> float:
        prices = known_relative_cost(file, method)
        assert prices is not None
        return prices.cost(rows)

    assert (cost(method, rows), cost(without, rows)) == (9 + 2 + 1, 9 + 2)
    rows = [{"forwards": 9, "backwards": 0, "model_forwards": 0}]
    damped = gibbs(10, switch(Linearized(data_variance=0.01), Linearized(), at=0.5))
    assert damped.counts.model_forwards == 0
    assert cost(damped, rows) == 9 + 8 * 0.25
    assert cost(gibbs(10), rows) == 9
