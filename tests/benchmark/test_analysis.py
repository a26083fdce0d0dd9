"""The verdict on rows that are made up, so that it is known; and the report that shows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lavps.benchmark import Benchmark, analyze, fronts, write_report
from lavps.benchmark.figures import family_colours
from lavps.benchmark.records import append_rows
from lavps.guidance import Amortized
from lavps.samplers import Settings, Unbound
from support.benchmark_rows import COUNT, mgdm, write_rows
from support.benchmarks import Assets, gibbs


def lavps(k: int) -> Settings:
    return gibbs(k, Amortized(Unbound("model"), 1))


@pytest.fixture
def benchmark(assets: Assets, tmp_path: Path) -> Benchmark:
    """Two families; on the validation images MGDM's K=60 is dominated. A pass of the model costs .5."""
    benchmark = assets.begin(tmp_path, count=COUNT)
    (tmp_path / "prices.json").write_text(
        json.dumps({"inference: model": {"forward": 1.0, "backward": 2.0, "model": 0.5}})
    )
    for method, lpips, counts in (
        (mgdm(20), 0.10, (20, 20, 0)),  # costs 60
        (mgdm(40), 0.08, (40, 40, 0)),  # 120
        (mgdm(60), 0.09, (60, 60, 0)),  # 180, dominated
        (mgdm(80), 0.05, (80, 80, 0)),  # 240
        (lavps(10), 0.101, (10, 5, 20)),  # 30
        (lavps(20), 0.082, (10, 10, 20)),  # 40
        (lavps(30), 0.079, (50, 20, 20)),  # 100
    ):
        write_rows(benchmark.runs("validation"), method, lpips, counts)
        if method.key != mgdm(60).key:
            write_rows(benchmark.runs("test"), method, lpips, counts)
    return benchmark


def write_times(benchmark: Benchmark) -> None:
    timed = ((mgdm(20), 0.8), (mgdm(40), 1.6), (mgdm(80), 3.0), (lavps(10), 0.5), (lavps(20), 0.4))
    rows = [
        {"key": method.key, "turn": turn, "item": 0, "seconds": seconds * (1 + 0.01 * turn)}
        for turn in range(5)
        for method, seconds in timed
    ]
    append_rows(benchmark.path / "timing" / "turns.jsonl", rows)
    machine = {"threads": 1, "cores": 2, "processor": "x86_64", "torch": "2"}
    (benchmark.path / "timing" / "machine.json").write_text(json.dumps({"machine": machine}))


def test_fronts_are_found_on_the_validation_images(benchmark: Benchmark) -> None:
    found = fronts(benchmark)
    assert {family: [m.num_steps for m in methods] for family, methods in found.items()} == {
        "MGDM (Adam)": [20, 40, 80],
        "LAVPS": [10, 20, 30],
    }
    assert [m.num_steps for m in fronts(benchmark, 2)["MGDM (Adam)"]] == [20, 80]
    assert [m.num_steps for m in fronts(benchmark, 1)["MGDM (Adam)"]] == [80]


def test_equal_points_of_a_front_are_run_once(benchmark: Benchmark) -> None:
    folder, twin = benchmark.runs("validation"), gibbs(20, renoise="bridge")
    rows = folder.rows(mgdm(20).key)
    folder.describe(twin, {})
    append_rows(folder.path / f"{twin.key}.jsonl", [row | {"key": twin.key} for row in rows])
    assert len(fronts(benchmark)["MGDM (Adam)"]) == 3


def test_every_baseline_point_meets_the_cheapest_that_is_as_good(benchmark: Benchmark) -> None:
    write_times(benchmark)
    results = analyze(benchmark)
    found = {match["reference"]: match for match in results.matches}
    assert list(found) == [mgdm(k).key for k in (20, 40, 80)]
    cheap, middle, good = found.values()
    assert cheap["candidate"] == lavps(10).key  # worse by .001, which does not matter
    assert cheap["speed_up"] == pytest.approx(60 / 30)
    assert middle["candidate"] == lavps(20).key
    assert middle["speed_up"] == pytest.approx(120 / 40)
    assert middle["time_speed_up"]["ratio"] == pytest.approx(4.0)
    assert middle["test"]["mean_difference"] == pytest.approx(-0.002, abs=1e-4)
    assert middle["bootstrap"]["lower"] < -0.0019 < middle["bootstrap"]["upper"] + 3e-4
    assert middle["passes_corrected"]
    assert good["candidate"] is None
    strict = {m["reference"]: m["candidate"] for m in analyze(benchmark, margin=0.0).matches}
    assert strict[mgdm(20).key] == lavps(20).key
    assert strict[mgdm(40).key] == lavps(30).key
    other = analyze(benchmark, baseline="LAVPS").matches
    assert {match["family"] for match in other} == {"MGDM (Adam)"}


def test_a_pair_is_compared_on_the_images_that_both_have(benchmark: Benchmark) -> None:
    file = benchmark.runs("test").path / f"{lavps(20).key}.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:5]))
    without = {m["reference"]: m["candidate"] for m in analyze(benchmark).matches}
    assert without[mgdm(40).key] == lavps(30).key
    found = {match["reference"]: match for match in analyze(benchmark, fewest=5).matches}
    middle, cheap = found[mgdm(40).key], found[mgdm(20).key]
    assert (middle["candidate"], middle["images"], middle["test"]["n"]) == (lavps(20).key, 5, 5)
    assert cheap["images"] == len(lines)
    scores = [row["lpips"] for row in benchmark.runs("test").rows(mgdm(40).key)]
    assert middle["scores"][0] == pytest.approx(sum(scores[:5]) / 5)
    assert middle["scores"][0] != pytest.approx(sum(scores) / len(scores), abs=1e-6)
    table = write_report(benchmark).with_suffix(".md").read_text().splitlines()
    assert " 5 |" in next(line for line in table if "K=40" in line)


def test_the_report_is_made_from_the_results_alone(benchmark: Benchmark) -> None:
    write_times(benchmark)
    for method in (mgdm(80), lavps(30)):
        folder = benchmark.runs("test").path / "images" / method.key
        folder.mkdir(parents=True)
        for row in range(2):
            pixels = np.full((32, 32, 3), 40 * row, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{row:05d}.png")
    analyze(benchmark)
    page = write_report(benchmark).read_text()
    markdown = (benchmark.path / "report.md").read_text()
    for text in (page, markdown):
        assert "LAVPS is non-inferior (margin 0.003 LPIPS, level 0.05) to 2 of 3 points" in text
        for words in (
            "these points cost 2.00 to 3.00 times as much",
            "2.00x",
            "3.00x",
            "4.00x",
            "none is non-inferior",
            "K=80",
            mgdm(40).key,
        ):
            assert words in text
    for name in ("pareto", "pareto_time", "images"):
        with Image.open(benchmark.path / f"{name}.png") as figure:
            assert min(figure.size) > 300
        assert (benchmark.path / f"{name}.svg").read_text().count("<svg") == 1
        assert f"![{name}]({name}.png)" in markdown
    assert page.count("data:image/") == 3
    # One file, nothing fetched.
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_scores_of_distributions_are_in_the_table_where_they_are_known(benchmark: Benchmark) -> None:
    analyze(benchmark)
    lines = write_report(benchmark).with_suffix(".md").read_text().splitlines()
    [head] = {line for line in lines if "| CRPS | energy score | coverage (nominal) |" in line}
    column = head.split(" | ").index("CRPS")
    row = next(line for line in lines if line.count("|") == head.count("|") and mgdm(40).key in line)
    assert row.split(" | ")[column : column + 3] == ["-", "-", "-"]  # rows of one sample
    file = benchmark.runs("test").path / f"{mgdm(40).key}.jsonl"
    several = {"crps": 0.05, "energy_score": 0.07, "coverage": 0.5, "nominal_coverage": 0.6}
    rows = [json.loads(line) | several for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    analyze(benchmark)
    lines = write_report(benchmark).with_suffix(".md").read_text().splitlines()
    found = [line.split(" | ")[column : column + 3] for line in lines if mgdm(40).key in line]
    assert ["0.0500", "0.0700", "50.0% (60.0%)"] in found


def test_a_report_is_written_before_there_are_tests_or_times(benchmark: Benchmark) -> None:
    for file in benchmark.runs("test").path.glob("*.json*"):
        file.unlink()
    results = analyze(benchmark)
    assert results.matches == []
    page = write_report(benchmark).read_text()
    assert page.count("data:image/") == 1
    assert "Methods on the validation images" in page


def test_families_have_colours_in_a_fixed_order(benchmark: Benchmark) -> None:
    results = analyze(benchmark)
    families = [
        "Supervised",
        "MGPS (amortized)",
        "LAVPS",
        "DDIM",
        "MGDM (whitened gradient)",
        "MGDM (Adam)",
        "DPS",
        "MMPS",
    ]
    points = [{"family": family} for family in families]
    colours = family_colours(replace(results, points={"test": points}))
    assert list(colours) == [
        "MGDM (Adam)", "MGDM (whitened gradient)", "LAVPS", "MGPS (amortized)", "DPS", "MMPS", "DDIM",
        "Supervised",
    ]  # fmt: skip
    assert colours["MGDM (Adam)"] == "#000000"  # the baseline
    assert len(set(colours.values())) == len(families)
