"""``lavps bench``, as a user gives it: five commands on a folder, each of them resumed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from lavps.benchmark import Benchmark, Sweep, analyze
from lavps.cli import main
from lavps.guidance import Amortized, Gradient
from lavps.samplers import Unbound
from support.benchmarks import Assets, gibbs

pytest.importorskip("optuna")


def bench(*words: object) -> None:
    main(["bench", *map(str, words)])


def measured(assets: Assets, folder: Path, *options: object) -> None:
    data = ("--validation", assets.folder / "validation", "--test", assets.folder / "test")
    counts = ("--validation-count", 2, "--test-count", 3)
    bench("measure", folder, "--prior", assets.prior, "--task", "sr4", *data, *counts, *options)


def test_the_five_commands(
    assets: Assets,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "sr4"
    measured(assets, folder)
    # The grids of the commands take minutes even here; two methods of them do, as a sweep leaves them.
    benchmark = Benchmark.open(folder)
    quick = [
        gibbs(6),
        gibbs(8, Gradient(2)),
        gibbs(5, Amortized(Unbound(assets.inference), 0)),
    ]
    Sweep(benchmark, assets.runner(benchmark), "quick").grid(quick)
    supervised = ("--sampler", "supervised", "--model", assets.conditional, "--lpips", assets.lpips)
    bench("sweep", folder, *supervised)
    assert "4 settings of supervised" in capsys.readouterr().out
    bench("test", folder, "--lpips", assets.lpips, "--most", 2, "--keep-images", 2, "--batch-size", 3)
    bench("time", folder, "--turns", 2, "--margin", 1.0)
    bench("report", folder, "--margin", 1.0)
    page = (folder / "report.html").read_text()
    results = json.loads((folder / "results.json").read_text())
    assert results["counts"] == {"validation": 2, "test": 3}
    families = {"MGDM (Adam)", "LAVPS", "Supervised"}
    assert {point["family"] for point in results["points"]["test"]} == families
    assert {match["family"] for match in results["matches"]} == families - {"MGDM (Adam)"}
    assert all(match["candidate"] for match in results["matches"])  # with a margin of 1 all is as good
    pairs = [(match["reference"], match["candidate"]) for match in results["matches"]]
    assert set(results["timing"]["keys"]) == {key for pair in pairs for key in pair}
    assert page.count("data:image/") == 3
    # Given again, nothing is run again.
    rows = {file: file.stat().st_mtime_ns for file in folder.rglob("*.jsonl")}
    measured(assets, folder)
    bench("sweep", folder, *supervised)
    bench("test", folder, "--lpips", assets.lpips, "--most", 2)
    bench("time", folder, "--turns", 2, "--margin", 1.0)
    assert rows == {file: file.stat().st_mtime_ns for file in folder.rglob("*.jsonl")}
    assert analyze(benchmark).matches


def test_what_cannot_be_done_yet_is_said(
    assets: Assets,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refused(reason: str, command: str, *options: object) -> None:
        with pytest.raises(SystemExit) as end:
            measured(assets, tmp_path, *options) if command == "measure" else bench(
                command, tmp_path, *options
            )
        assert end.value.code == 1
        assert reason in capsys.readouterr().err

    refused("create one with `lavps bench measure`", "report")
    measured(assets, tmp_path)
    refused("noise was 0.05, is 0.1", "measure", "--noise", 0.1)
    refused("lavps needs a model: give --model", "sweep", "--sampler", "lavps")
    monkeypatch.delenv("LAVPS_LPIPS", raising=False)
    refused("LPIPS needs its weights", "sweep", "--sampler", "mgdm")
    refused("lavps bench sweep", "test", "--lpips", assets.lpips)
    refused("lavps bench test", "time")


@pytest.mark.parametrize("command", ["measure", "sweep", "test", "time", "report"])
def test_every_command_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["bench", command, "--help"])
    assert exit_.value.code == 0
    assert "(default:" in capsys.readouterr().out


def test_a_published_row_is_run_again(
    assets: Assets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, archive = tmp_path / "sr4", tmp_path / "sr4.tar.gz"
    measured(assets, folder)
    benchmark = Benchmark.open(folder)
    (row, *_) = assets.runner(benchmark).run(gibbs(6))

    def again(*words: object) -> None:
        with tarfile.open(archive, "w:gz") as file:
            for name in ("benchmark.json", "validation"):
                file.add(folder / name, name)
        where = ("--images", assets.folder / "validation", "--split", "validation", "--lpips", assets.lpips)
        bench("repeat", archive, *where, *words)

    again("--method", "K=6")
    out = capsys.readouterr().out
    assert "\nMGDM (Adam), K=6" in out
    assert f"{row['file']}: LPIPS {row['lpips']:.4f} published, {row['lpips']:.4f} now" in out
    with pytest.raises(SystemExit):
        again("--method", "DPS")
    assert "no method of" in capsys.readouterr().err
    [rows] = (folder / "validation").glob("*.jsonl")
    rows.write_text(rows.read_text().replace(f'"lpips": {row["lpips"]}', '"lpips": 0.9'))
    with pytest.raises(SystemExit):
        again()
    assert "more than rounding explains" in capsys.readouterr().err
