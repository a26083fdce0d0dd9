"""The cost model of bulk runs: arithmetic that is right by itself, and that a simulation agrees with."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lavps.apps.bulk.costs import MachineProfile, Workload, break_even, forecast
from lavps.cli import main
from lavps.restoration.pacing import PassTimes
from lavps.restoration.presets import BALANCED, FrontEntry
from support.bulk_simulation import simulate
from support.restoring import write_model, write_prior

ENTRY = FrontEntry(BALANCED, None, forwards=97, backwards=48, model_forwards=0)
# A GPU: 16 images, 97 forwards of 20 ms and 48 backwards of 40 ms; files on an object store.
GPU = MachineProfile(
    16, PassTimes(0.02, 0.04), read=0.02, decode=0.002, encode=0.004, write=0.05, load=8.0, start=12.0
)


def test_one_worker_is_the_sum_of_its_parts() -> None:
    calibration = MachineProfile(
        10, PassTimes(0.1, 0.2, 0.05), decode=0.01, encode=0.02, load=3, start=4, engine=0.0
    )
    entry = FrontEntry(BALANCED, None, forwards=5, backwards=2, model_forwards=4)
    assert calibration.batch_seconds(entry) == pytest.approx(0.5 + 0.4 + 0.2 + 0.3)
    assert calibration.batch_seconds(entry, samples=2) == pytest.approx(2 * 1.1 + 10 * 0.05)
    work = Workload(100, entry, stragglers=0.0, price=2.0)
    one = forecast(calibration, work, 1)
    assert one.seconds == pytest.approx(7 + 10 * 1.4)
    assert one.cost == pytest.approx(2.0 * one.seconds / 3600)
    assert one.per_hour(100) == pytest.approx(3600 * 100 / one.seconds)


def test_what_limits_is_named() -> None:
    work = Workload(10**6, ENTRY)
    assert forecast(GPU, work, 8).limit == "workers"
    assert forecast(GPU, Workload(16, ENTRY), 1).limit == "starting"
    slow_store = MachineProfile(16, PassTimes(0.0002, 0.0), read=1.0)
    assert forecast(slow_store, work, 64).limit == "reading"
    slow_write = MachineProfile(16, PassTimes(0.0002, 0.0), write=1.0)
    assert forecast(slow_write, work, 64).limit == "writing"


@pytest.mark.parametrize("workers", [1, 2, 8, 64, 512])
@pytest.mark.parametrize("lost_every", [math.inf, 1.0])
def test_the_simulation_agrees_with_the_arithmetic(workers: int, lost_every: float) -> None:
    work = Workload(16 * 40 * workers, ENTRY, lost_every=lost_every)
    predicted = forecast(GPU, work, workers)
    simulated = [simulate(GPU, work, workers, seed) for seed in range(3 if workers > 8 else 20)]
    mean = sum(run.seconds for run in simulated) / len(simulated)
    assert 0.93 < mean / predicted.seconds < 1.07
    if workers >= 8:
        assert (sum(run.lost for run in simulated) > 0) == math.isfinite(lost_every)
    assert all(0 < run.busy <= 1 for run in simulated)


def test_slow_readers_hold_the_simulation_too() -> None:
    slow_store = MachineProfile(16, PassTimes(0.0002, 0.0), read=0.4)
    work = Workload(16 * 500, ENTRY, stragglers=0.0)
    predicted, simulated = forecast(slow_store, work, 32), simulate(slow_store, work, 32)
    assert predicted.limit == "reading"
    assert simulated.seconds == pytest.approx(predicted.seconds, rel=0.05)


def test_training_pays_when_the_time_saved_makes_up_for_it() -> None:
    warm = FrontEntry(BALANCED, None, forwards=97, backwards=0, model_forwards=48)
    calibration = MachineProfile(1, PassTimes(0.1, 0.2, 0.05))
    saved = 48 * 0.2 - 48 * 0.05
    assert break_even(calibration, ENTRY, warm, 3600.0) == pytest.approx(3600 / saved)
    assert break_even(MachineProfile(1, PassTimes(0.1, 0.02, 0.05)), ENTRY, warm, 3600.0) is None


def test_the_command_predicts_from_a_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior = write_prior(tmp_path / "prior")
    model = write_model(tmp_path / "warm", prior)
    words = ["--prior", prior, "--inference-model", model, "--task", "sr4", "--count", 1000]
    words += ["--batch-size", 2, "--workers", 1, 4, "--training", "10min", "--output", tmp_path / "plan.json"]
    main(["plan", *map(str, words), "--device", "cpu"])
    said = capsys.readouterr().out
    assert "limited by" in said
    assert "training it (10 min, given) pays from" in said or "the inference model saves no time" in said
    values = json.loads((tmp_path / "plan.json").read_text())
    assert [one["workers"] for one in values["forecasts"]] == [1, 4]
    assert values["calibration"]["pace"]["forward"] > 0
    assert values["forecasts"][1]["images_per_hour"] > values["forecasts"][0]["images_per_hour"]
    with pytest.raises(SystemExit) as end:
        main(["plan", "--prior", str(prior), "--task", "sr4x"])
    assert end.value.code == 1
    assert "did you mean 'sr4'" in capsys.readouterr().err
