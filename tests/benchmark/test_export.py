"""What a benchmark finds is what lavps restore chooses between."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.conftest import Assets
from benchmark.test_protocol import COUNT, mgdm, write_rows
from lavps.cli import main
from lavps.evaluation.benchmark import Benchmark, Method, conclude
from lavps.initializers import LikelihoodStep, ZeroShot
from lavps.restoration.presets import Settings, front_for, of_quality
from problems import network_prior


@pytest.fixture
def benchmark(assets: Assets, tmp_path: Path) -> Benchmark:
    """Three settings of MGDM, one of them dominated, one of LAVPS, and one of a sampler that is neither."""
    for name in ("prior", "inference"):
        shutil.copytree(assets.folder / name, tmp_path / name)
    copies = Assets(tmp_path)
    benchmark = Benchmark.create(tmp_path / "bench", "sr4", 0.05, copies.prior)
    assets.begin(tmp_path / "other", count=COUNT)
    shutil.copytree(tmp_path / "other" / "measurements", tmp_path / "bench" / "measurements")
    names = (copies.inference, "likelihood-step", "gentle-step")
    prices = {f"inference: {name}": {"forward": 1.0, "backward": 2.0, "model": 0.5} for name in names}
    (benchmark.path / "prices.json").write_text(json.dumps(prices))
    warm = Method("lavps", num_steps=10, gradient_steps_start=0, minimizer="whitened", model=copies.inference)
    zero = {"gradient_steps_end": 0, "r_switch": 0.5, "r_model": 1.0, "r_step": 0.5, "safeguard": False}
    steps = Method("lavps", num_steps=50, minimizer="whitened", model="likelihood-step", **zero)
    gentle = Method(
        "lavps", num_steps=50, gradient_steps_start=0, safeguard=False, r_step=0.5, model="gentle-step"
    )
    for method, lpips, counts in (
        (mgdm(20), 0.10, (20, 20, 0)),
        (Method("mgdm", num_steps=30, denoising_steps=2, renoise="bridge"), 0.11, (30, 30, 0)),  # dominated
        (Method("mgdm", num_steps=40, minimizer="whitened"), 0.08, (40, 40, 0)),
        (warm, 0.09, (15, 0, 8)),
        (replace(warm, safeguard=False), 0.085, (10, 0, 8)),  # cheaper and better, for who knows his operator
        (steps, 0.07, (70, 35, 0)),
        (Method("dps", num_steps=9), 0.01, (9, 9, 0)),
        (Method("lavps", num_steps=8, model="likelihood-step"), 0.01, (9, 0, 0)),  # of no folder
        (gentle, 0.075, (50, 0, 24)),  # dominates MGDM's 40 whitened steps
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
    conclude(benchmark)
    file = tmp_path / "prior" / "fronts.json"
    of_another = {"settings": {"num_steps": 3}, "score": 0.3, "task": "denoise"}
    of_another |= {"forwards": 3, "backwards": 0, "model_forwards": 0}
    file.write_text(json.dumps([of_another, of_another | {"task": "sr4"}]))
    for _ in range(2):  # again changes nothing
        main(["bench", "fronts", str(benchmark.path)])
        assert f"3 settings are in {file}" in capsys.readouterr().out
        assert [entry["task"] for entry in json.loads(file.read_text())] == ["denoise", *["sr4"] * 3]
    front = front_for(tmp_path / "prior", False, "sr4")
    assert [entry.settings for entry in front] == [
        Settings(20, 1, 1, minimizer="adam", learning_rate=0.03),
        Settings(50, 0, 0, minimizer="adam", learning_rate=0.03, safeguard=False, r_model=0.0, r_step=0.5),
        Settings(50, 1, 0, 0.5, learning_rate=1.0, safeguard=False, r_model=1.0, r_step=0.5),
    ]
    assert [entry.score for entry in front] == pytest.approx([0.10, 0.075, 0.07], abs=1e-4)
    assert (front[0].forwards, front[0].backwards) == (20, 20)
    best = of_quality(front, "best").settings.sampler(network_prior())
    assert isinstance(best.initializer(0.4, 20, None), LikelihoodStep)
    assert isinstance(best.initializer(0.6, 30, None), ZeroShot)
    (warm,) = front_for(tmp_path / "inference", True, "sr4")
    assert (warm.settings.gradient_steps_start, warm.settings.safeguard, warm.forwards) == (0, True, 15)
    assert front_for(tmp_path / "prior", False, "denoise")[0].settings.num_steps == 3


def test_they_can_be_looked_at_first(benchmark: Benchmark, tmp_path: Path) -> None:
    conclude(benchmark)
    main(["bench", "fronts", str(benchmark.path), "--output", str(tmp_path / "found")])
    assert sorted(path.name for path in (tmp_path / "found").iterdir()) == ["inference.json", "prior.json"]
    assert not (tmp_path / "prior" / "fronts.json").exists()
