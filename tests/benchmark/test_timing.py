"""Times: methods take turns, ratios of medians have intervals, an interrupted run goes on."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from lavps.benchmark import Timer
from lavps.benchmark.records import read_rows
from lavps.benchmark.timing import speed_up, summarize
from lavps.samplers import DPS, UNBOUND, Settings
from support.benchmarks import Assets, gibbs

METHODS = [gibbs(5), Settings(DPS(UNBOUND, num_steps=3))]


def timer(assets: Assets, path: Path) -> Timer:
    benchmark = assets.begin(path, count=3)
    return Timer(path / "timing", benchmark.measurements("test"), benchmark.models(), progress=False)


def test_methods_take_turns_on_the_same_images(assets: Assets, tmp_path: Path) -> None:
    timing = timer(assets, tmp_path)
    rows = timing.run(METHODS, 4)
    keys = [method.key for method in METHODS]
    assert [row["key"] for row in rows] == keys * 4
    items = list(timing.measurements.items)
    assert [row["item"] for row in rows[::2]] == [row["item"] for row in rows[1::2]] == [*items, items[0]]
    assert all(row["seconds"] > 0 for row in rows)
    assert {(row["forwards"], row["backwards"]) for row in rows if row["key"] == keys[1]} == {(3, 3)}
    summary = summarize(rows, keys[0])
    assert summary.lower <= summary.median <= summary.upper
    assert summary.turns == 4


def test_an_interrupted_timing_goes_on_and_other_methods_begin_anew(assets: Assets, tmp_path: Path) -> None:
    timing = timer(assets, tmp_path)
    timing.run(METHODS, 2)
    file = tmp_path / "timing" / "turns.jsonl"
    before = read_rows(file)
    with file.open("a") as opened:
        opened.write('{"key": "torn')
    rows = timing.run(METHODS, 3)
    assert rows[:4] == before
    assert [row["turn"] for row in rows] == [0, 0, 1, 1, 2, 2]
    assert timing.run(METHODS, 3) == rows
    assert {row["key"] for row in timing.run(METHODS[:1], 1)} == {METHODS[0].key}


def test_a_speed_up_is_found_in_spite_of_a_busy_machine() -> None:
    draw = random.Random(0)
    rows = []
    for turn in range(60):
        load = math.exp(draw.gauss(0.0, 0.5))  # slows both methods of a turn
        for key, base in (("slow", 3.0), ("fast", 1.0)):
            rows.append({"key": key, "turn": turn, "seconds": base * load * math.exp(draw.gauss(0, 0.02))})
    found = speed_up(rows, "slow", "fast")
    assert found.ratio == pytest.approx(3.0, rel=0.05)
    assert found.lower < 3.0 < found.upper
    assert found.upper / found.lower < 1.3
    assert speed_up(rows, "fast", "slow").ratio == pytest.approx(1 / found.ratio)
    with pytest.raises(KeyError, match="was not timed"):
        speed_up(rows, "slow", "unknown")
