"""What a benchmark finds is what lavps restore chooses between."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lavps
from lavps.benchmark import Benchmark, analyze
from lavps.cli import main
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.restoration.presets import FrontEntry, chosen, front_for
from lavps.samplers import UNBOUND, Settings, Unbound
from support.benchmark_rows import COUNT, mgdm, write_rows
from support.benchmarks import Assets, gibbs
from support.problems import network_prior

WHITENED = lavps.WhitenedGradient()
GRADIENTS_FIRST = switch(Gradient(1, WHITENED), Linearized(), at=0.5)
DAMPED_FIRST = switch(Linearized(data_variance=0.01), Linearized(), at=0.5)


@pytest.fixture
def benchmark(assets: Assets, tmp_path: Path) -> Benchmark:
    """Five settings of MGDM, two of them dominated, three of LAVPS, and two of samplers that are neither."""
    for name in ("prior", "inference"):
        shutil.copytree(assets.folder / name, tmp_path / name)
    copies = Assets(tmp_path)
    benchmark = Benchmark.create(tmp_path / "bench", "sr4", 0.05, copies.prior)
    assets.begin(tmp_path / "other", count=COUNT)
    shutil.copytree(tmp_path / "other" / "measurements", tmp_path / "bench" / "measurements")
    names = (f"inference: {copies.inference}", "conditional: elsewhere", "linearized")
    prices = {name: {"forward": 1.0, "backward": 2.0, "model": 0.5} for name in names}
    (benchmark.path / "prices.json").write_text(json.dumps(prices))
    model = Unbound(copies.inference)
    # A linearized initialization needs no safeguard: it knows every operator.
    refined = switch(Amortized(model, 0), Amortized(Linearized(), 1, WHITENED, None), at=0.5)
    for method, lpips, counts in (
        (mgdm(20), 0.10, (20, 20, 0)),
        (gibbs(30, denoising_steps=2, renoise="bridge"), 0.11, (30, 30, 0)),  # dominated
        (gibbs(40, Gradient(1, WHITENED)), 0.08, (40, 40, 0)),
        (gibbs(10, Amortized(model, 0)), 0.09, (15, 0, 8)),
        # Cheaper and better, for users who know their operator.
        (gibbs(10, Amortized(model, 0, safeguard_every=None)), 0.085, (10, 0, 8)),
        (gibbs(10, refined), 0.088, (15, 4, 4)),
        (gibbs(50, GRADIENTS_FIRST), 0.07, (70, 35, 0)),
        (Settings(lavps.DPS(UNBOUND, num_steps=9)), 0.01, (9, 9, 0)),
        (Settings(lavps.Supervised(Unbound("elsewhere"), num_steps=8)), 0.01, (9, 0, 0)),
        (gibbs(50, DAMPED_FIRST), 0.075, (50, 0, 0)),  # dominates MGDM's 40 whitened steps
    ):
        write_rows(benchmark.runs("validation"), method, lpips, counts)
    return benchmark


def test_the_best_settings_reach_the_model_folders(
    benchmark: Benchmark, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "fronts", str(benchmark.path)])
    assert end.value.code == 1
    assert "has no results yet" in capsys.readouterr().err
    analyze(benchmark)
    file = tmp_path / "prior" / "fronts.json"
    of_another = {"settings": {"sampler": "MGDM", "num_steps": 3}, "score": 0.3, "task": "denoise"}
    of_another |= {"forwards": 3, "backwards": 0, "model_forwards": 0}
    file.write_text(json.dumps([of_another, of_another | {"task": "sr4"}]))
    for _ in range(2):  # again changes nothing
        main(["bench", "fronts", str(benchmark.path)])
        assert f"3 settings are in {file}" in capsys.readouterr().out
        assert [entry["task"] for entry in json.loads(file.read_text())] == ["denoise", *["sr4"] * 3]
    front = front_for(tmp_path / "prior", False, "sr4")
    assert [entry.settings for entry in front] == [
        gibbs(20),
        gibbs(50, DAMPED_FIRST),
        gibbs(50, GRADIENTS_FIRST),
    ]
    assert [entry.score for entry in front] == pytest.approx([0.10, 0.075, 0.07], abs=1e-4)
    assert (front[0].forwards, front[0].backwards) == (20, 20)
    best = chosen(front, "best").settings.sampler(network_prior())
    assert isinstance(best, lavps.MGDM)
    assert best.guidance.part(0.4) == Linearized()
    assert best.guidance.part(0.6) == Gradient(1, WHITENED)
    warm, refined = front_for(tmp_path / "inference", True, "sr4")
    assert warm.settings == gibbs(10, Amortized(UNBOUND, 0))  # safeguarded, its folder is not named
    assert warm.forwards == 15
    assert refined.settings.guidance_by_step[-1] == Amortized(Linearized(), 1, WHITENED, None)
    assert front_for(tmp_path / "prior", False, "denoise")[0].settings.num_steps == 3


def test_a_written_front_is_read_as_it_is(benchmark: Benchmark, tmp_path: Path) -> None:
    analyze(benchmark)
    main(["bench", "fronts", str(benchmark.path)])
    for name, amortized in (("prior", False), ("inference", True)):
        file = tmp_path / name / "fronts.json"
        written = json.loads(file.read_text())
        assert len(written) == (2 if amortized else 3)
        front = front_for(file.parent, amortized, "sr4")
        assert [entry.to_dict() for entry in front] == written
        assert [FrontEntry.from_dict(json.loads(json.dumps(entry.to_dict()))) for entry in front] == front
        model = (lambda context: context.bridge) if amortized else None
        for entry in front:
            entry.settings.sampler(network_prior(), model)


def test_they_can_be_looked_at_first(benchmark: Benchmark, tmp_path: Path) -> None:
    analyze(benchmark)
    main(["bench", "fronts", str(benchmark.path), "--output", str(tmp_path / "found")])
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["inference.json", "prior.json"]
    assert not (tmp_path / "prior" / "fronts.json").exists()
