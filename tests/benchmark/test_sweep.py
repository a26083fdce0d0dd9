"""Sweeps: every method once, whoever dies in between; two objectives; a search that is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lavps.benchmark import Benchmark, Sweep
from lavps.benchmark.analysis import analyze
from lavps.benchmark.methods import model_name
from lavps.benchmark.records import read_json
from lavps.benchmark.spaces import Choice, search_space
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.minimizers import Adam, WhitenedGradient
from lavps.samplers import Unbound
from support.benchmarks import Assets, gibbs

pytest.importorskip("optuna")

GRID = [gibbs(6, Gradient(g, Adam(rate))) for g in (1, 2) for rate in (0.01, 0.03)]
# Another process with the same grid; the bench's folder and LPIPS's file are its arguments. Rows come one at
# a time, slowly enough to be killed among them.
WORKER = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from lavps.evaluation import LPIPS
from lavps.benchmark import Benchmark, Runner, Sweep
from lavps.guidance import Gradient
from lavps.minimizers import Adam
from lavps.samplers import MGDM, UNBOUND, Settings

class Slow(Runner):
    def _batch(self, method, rows, advance):
        time.sleep(0.3)
        return super()._batch(method, rows, advance)

benchmark = Benchmark.open(Path(sys.argv[1]))
models, lpips = benchmark.models(), LPIPS.load(sys.argv[2])
given = benchmark.measurements("validation")
runner = Slow(benchmark.runs("validation"), given, models, lpips, batch_size=1, progress=False)
points = [(g, rate) for g in (1, 2) for rate in (0.01, 0.03)]
grid = [Settings(MGDM(UNBOUND, num_steps=6, guidance=Gradient(g, Adam(rate)))) for g, rate in points]
Sweep(benchmark, runner, "grid").grid(grid)
"""


def start(assets: Assets, benchmark: Benchmark) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(benchmark.path), str(assets.lpips)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def wait_for_rows(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    while sum(len(file.read_text().splitlines()) for file in folder.glob("*.jsonl")) < count:
        assert process.poll() is None, "the worker ended before it wrote its rows"
        time.sleep(0.05)


def test_a_sweep_survives_kill_and_shares_its_work(assets: Assets, tmp_path: Path) -> None:
    whole = assets.begin(tmp_path / "whole")
    Sweep(whole, assets.runner(whole, batch_size=1), "grid").grid(GRID)

    benchmark = assets.begin(tmp_path / "killed")
    killed = start(assets, benchmark)
    wait_for_rows(benchmark.path / "validation", 5, killed)  # in the middle of the second method
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    first = next(m.key for m in GRID if len(benchmark.runs("validation").rows(m.key)) == 4)
    stamp = (benchmark.path / "validation" / f"{first}.jsonl").stat().st_mtime_ns

    helper = start(assets, benchmark)
    wait_for_rows(benchmark.path / "validation", 6, helper)
    sweep = Sweep(benchmark, assets.runner(benchmark, batch_size=1), "grid")
    sweep.grid(GRID)  # beside the helper; returns when all is done, by either
    assert helper.wait(timeout=60) == 0
    assert sweep.finished().keys() == {method.key for method in GRID}
    assert len(sweep._study.trials) == len(GRID)  # nothing was recorded twice
    assert (benchmark.path / "validation" / f"{first}.jsonl").stat().st_mtime_ns == stamp
    for method in GRID:
        assert benchmark.runs("validation").rows(method.key) == whole.runs("validation").rows(method.key)


def test_the_objectives_are_mean_lpips_and_cost(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path, count=2)
    runner = assets.runner(benchmark)
    warm = gibbs(6, Amortized(Unbound(assets.inference), 1))
    sweep = Sweep(benchmark, runner, "pair")
    sweep.grid([GRID[0], warm])
    for method in (GRID[0], warm):
        rows = runner.run(method)
        lpips, cost = sweep.finished()[method.key]
        share = 0.0 if model_name(method) is None else benchmark.known_prices(method).model
        counts = [r["forwards"] + 2 * r["backwards"] + share * r["model_forwards"] for r in rows]
        assert lpips == pytest.approx(sum(row["lpips"] for row in rows) / 2)
        assert cost == pytest.approx(sum(counts) / 2)
    assert share > 0
    price = read_json(tmp_path / "prices.json")
    sweep.grid([GRID[0], warm])
    assert read_json(tmp_path / "prices.json") == price  # measured once


def test_linearized_steps_have_a_price_of_their_own(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path, count=2)
    runner, model = assets.runner(benchmark), Unbound(assets.inference)
    late = switch(Amortized(model, 0), Linearized(), at=0.5)  # k = 9, ..., 6 and 5, ..., 2
    alone = switch(Linearized(data_variance=0.01), Linearized(), at=0.5)
    refined = Amortized(Linearized(), 1, safeguard_every=None)
    methods = [gibbs(10, guidance) for guidance in (late, alone, refined)]
    sweep = Sweep(benchmark, runner, "linearized")
    sweep.grid(methods)
    prices = read_json(tmp_path / "prices.json")
    assert sorted(prices) == [f"inference: {assets.inference}", "linearized"]
    model_price, price = (prices[name]["model"] for name in sorted(prices))
    assert min(model_price, price) > 0
    for method, model_forwards, linearized in zip(methods, (4, 0, 0), (4, 8, 8), strict=True):
        rows = runner.run(method)
        assert {row["model_forwards"] for row in rows} == {model_forwards}
        passes = sum(row["forwards"] + 2 * row["backwards"] for row in rows) / 2
        expected = passes + model_forwards * model_price + linearized * price
        assert sweep.finished()[method.key][1] == pytest.approx(expected)


@pytest.mark.parametrize("algorithm", ["tpe", "nsga2"])
def test_a_search_stops_at_its_number_of_trials_and_goes_on_from_there(
    assets: Assets, tmp_path: Path, algorithm: str
) -> None:
    space = search_space("mgdm") | {"num_steps": Choice((6, 7))}
    benchmark = assets.begin(tmp_path, count=2)
    sweep = Sweep(benchmark, assets.runner(benchmark), "free")
    sweep.search("mgdm", None, 2, algorithm, space)
    assert len(sweep._study.trials) == 2
    # One that was asked for by a process that then died.
    trial = sweep._study.ask()
    orphan = gibbs(6, Gradient(1, Adam(0.07)))
    trial.set_user_attr("key", orphan.key)
    trial.set_user_attr("method", orphan.to_dict())
    again = Sweep(benchmark, assets.runner(benchmark), "free")
    again.search("mgdm", None, 4, algorithm, space)
    states = [trial.state.name for trial in again._study.trials]
    assert states == ["COMPLETE"] * 4
    assert orphan.key in again.finished()


def test_a_method_that_diverges_fails_once(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path, count=2)
    wild = gibbs(6, Gradient(3, WhitenedGradient(1e30)))
    sweep = Sweep(benchmark, assets.runner(benchmark), "wild")
    sweep.grid([wild, GRID[0]])
    assert sweep.finished().keys() == {GRID[0].key}
    assert "is not finite" in benchmark.runs("validation").failure(wild.key)
    assert [trial.state.name for trial in sweep._study.trials] == ["FAIL", "COMPLETE"]
    sweep.grid([wild, GRID[0]])
    assert len(sweep._study.trials) == 2


def test_only_what_is_not_clearly_behind_is_run_on_all_images(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path)
    runner = assets.runner(benchmark, batch_size=2)
    sweep = Sweep(benchmark, runner, "grid", screen=2, slack=0.0)
    sweep.grid(GRID)
    tried = {method.key: sweep.finished()[method.key] for method in GRID}
    for method in GRID:
        score, cost = tried[method.key]
        on_front = all(score <= other for other, price in tried.values() if price <= cost)
        assert len(benchmark.runs("validation").rows(method.key)) == (4 if on_front else 2)
    counts = [len(benchmark.runs("validation").rows(method.key)) for method in GRID]
    assert {2, 4} == set(counts)
    results = analyze(benchmark)
    assert len(results.points["validation"]) == counts.count(4)
    assert len(results.points["screening"]) == counts.count(2)
    # A study that screens nothing finishes the others, from where they stopped.
    Sweep(benchmark, runner, "all").grid(GRID)
    whole = assets.begin(tmp_path / "whole")
    alone = assets.runner(whole, batch_size=2)
    for method in GRID:
        assert benchmark.runs("validation").rows(method.key) == alone.run(method)
