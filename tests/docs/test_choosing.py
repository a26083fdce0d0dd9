"""The costs on the page that helps to choose a sampler are those of the samplers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lavps
from lavps.evaluation import oracle_mixture, oracle_problem

ROOT = Path(__file__).parents[2]
ROWS = [line for line in (ROOT / "docs/howto/choosing.md").read_text().splitlines() if line.startswith("| ")]


def numbers(sampler: str) -> list[int]:
    """Numbers in the cost of the row of a sampler."""
    [row] = [row for row in ROWS if f"{{py:obj}}`{sampler}" in row]
    return [int(number) for number in re.findall(r"\d+", row.split("|")[5])]


@pytest.mark.parametrize(
    ("row", "sampler"),
    [
        ("WienerPIR(prior)", lavps.WienerPIR),
        ("TunedPIR.universal(prior, 8)", lambda prior: lavps.TunedPIR.universal(prior, 8)),
        ("MMPS(prior)", lavps.MMPS),
        ("MGDM <", lavps.MGDM),
    ],
)
def test_the_cost_of_a_sampler_is_that_of_its_defaults(row: str, sampler: type[lavps.MGDM]) -> None:
    prior = oracle_mixture()
    _, problem = oracle_problem(prior, "sr4", observations=1)
    trace = sampler(prior).sample(problem).trace
    stated = numbers(row)
    if trace.backwards:
        assert stated[0] == trace.forwards
        assert stated[1] == pytest.approx(trace.backwards, rel=0.02)
    else:
        assert trace.forwards in stated


def test_the_cost_of_lavps_is_that_of_the_papers_experiments() -> None:
    records = json.loads((ROOT / "benchmarks" / "paper.json").read_text())
    found = [
        r for r in records if r["family"] == "LAVPS" and r["task"] in ("sr4", "motion-blur", "centre-box")
    ]
    costs = [(r["forwards"], r["backwards"]) for r in found if r["backwards"] > 0]
    forwards, backwards = zip(*costs, strict=True)
    spans = [min(forwards), max(forwards), min(backwards), max(backwards)]
    assert numbers("LAVPS(prior, model)") == spans
