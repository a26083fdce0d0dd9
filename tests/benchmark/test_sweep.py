"""Sweeps: every method once, whoever dies in between; two objectives; a search that is resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark.conftest import Assets
from lavps.evaluation.benchmark import Benchmark, Method, Sweep
from lavps.evaluation.benchmark.protocol import conclude
from lavps.evaluation.benchmark.records import read_json
from lavps.evaluation.benchmark.spaces import Choice, search_space

pytest.importorskip("optuna")

GRID = [
    Method("mgdm", num_steps=6, gradient_steps_start=g, learning_rate=rate)
    for g in (1, 2)
    for rate in (0.01, 0.03)
]
# Another process with the same grid; the bench's folder and LPIPS's file are its arguments. Rows come one at
# a time, slowly enough to be killed among them.
WORKER = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from lavps.evaluation import LPIPS
from lavps.evaluation.benchmark import Benchmark, Method, Runner, Sweep

class Slow(Runner):
    def _batch(self, method, rows, advance):
        time.sleep(0.3)
        return super()._batch(method, rows, advance)

benchmark = Benchmark.open(Path(sys.argv[1]))
models, lpips = benchmark.models(), LPIPS.load(sys.argv[2])
given = benchmark.measurements("validation")
runner = Slow(benchmark.runs("validation"), given, models, lpips, batch_size=1, progress=False)
points = [(g, rate) for g in (1, 2) for rate in (0.01, 0.03)]
grid = [Method("mgdm", num_steps=6, gradient_steps_start=g, learning_rate=rate) for g, rate in points]
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
    warm = Method("lavps", num_steps=6, gradient_steps_start=1, model=assets.inference)
    sweep = Sweep(benchmark, runner, "pair")
    sweep.grid([GRID[0], warm])
    for method in (GRID[0], warm):
        rows = runner.run(method)
        lpips, cost = sweep.finished()[method.key]
        share = 0.0 if method.model is None else benchmark.known_prices(method).model
        counts = [r["forwards"] + 2 * r["backwards"] + share * r["model_forwards"] for r in rows]
        assert lpips == pytest.approx(sum(row["lpips"] for row in rows) / 2)
        assert cost == pytest.approx(sum(counts) / 2)
    assert share > 0
    price = read_json(tmp_path / "prices.json")
    sweep.grid([GRID[0], warm])
    assert read_json(tmp_path / "prices.json") == price  # measured once


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
    orphan = Method("mgdm", num_steps=6, learning_rate=0.07)
    trial.set_user_attr("key", orphan.key)
    trial.set_user_attr("method", orphan.settings())
    again = Sweep(benchmark, assets.runner(benchmark), "free")
    again.search("mgdm", None, 4, algorithm, space)
    states = [trial.state.name for trial in again._study.trials]
    assert states == ["COMPLETE"] * 4
    assert orphan.key in again.finished()


def test_a_method_that_diverges_fails_once(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path, count=2)
    wild = Method("mgdm", num_steps=6, gradient_steps_start=3, minimizer="whitened", learning_rate=1e30)
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
    results = conclude(benchmark)
    assert len(results.points["validation"]) == counts.count(4)
    assert len(results.points["screening"]) == counts.count(2)
    # A study that screens nothing finishes the others, from where they stopped.
    Sweep(benchmark, runner, "all").grid(GRID)
    whole = assets.begin(tmp_path / "whole")
    alone = assets.runner(whole, batch_size=2)
    for method in GRID:
        assert benchmark.runs("validation").rows(method.key) == alone.run(method)
