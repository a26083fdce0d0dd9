"""The command lavps restore: its forecast, its progress in windows, and the noise it estimates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.cli import main
from lavps.nn import build_seeded
from lavps.pages import preview
from lavps.restoration.files import RestoredFile
from support.restoring import picture, save, write_prior


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("models") / "prior", front=False)


@pytest.fixture
def restore(prior: Path, tmp_path: Path) -> Callable[..., None]:
    def run(*words: object) -> None:
        options = ["--prior", prior, "--output", tmp_path / "out", "--device", "cpu", "--quality", "fast"]
        main(["restore", *map(str, [*words, *options])])

    return run


def noisy(file: Path, std: float = 0.1, size: tuple[int, int] = (48, 40), **options: object) -> Path:
    """A smooth colour image of 8 bits with noise."""
    down, across = np.mgrid[: size[0], : size[1]] / max(size)
    smooth = np.stack([0.5 * np.sin(3 * down + across), 0.6 * down - 0.3, 0.4 * np.cos(2 * across)], -1)
    pixels = smooth + std * np.random.default_rng(0).standard_normal(smooth.shape)
    return save(file, np.clip(np.round(pixels * 127.5 + 127.5), 0, 255).astype(np.uint8), **options)


# --- what it will do --------------------------------------------------------------------------------------


def test_a_dry_run_says_all_and_writes_nothing(
    restore: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "photo.png", picture(5, 7))
    before = sorted(tmp_path.iterdir())
    restore(file, "--task", "sr4", "--noise", 0.02, "--samples", 3, "--dry-run")
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"{file}: PNG image, sr4, noise 0.02; 7x5 -> 28x20; 24 windows; ")
    assert "; 8 denoiser evaluations per sample; 3 samples; about " in said[0]
    assert said[0].endswith(" GB of memory")
    assert sorted(tmp_path.iterdir()) == before


def test_the_time_includes_the_data_steps(
    restore: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lavps.restoration.job.data_step_seconds", lambda *_: 1000.0)
    file = save(tmp_path / "photo.png", picture(16, 16))
    restore(file, "--task", "gaussian-blur", "--noise", 0.05, "--dry-run")
    assert "; 8 denoiser evaluations per sample; about 2.2 h" in capsys.readouterr().out


def test_the_same_line_comes_before_sampling(
    restore: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, before = save(tmp_path / "photo.png", picture(8, 8)), []

    def sampled(*given: Any, **options: Any) -> list[RestoredFile]:
        before.append(capsys.readouterr().out)
        raise ValueError("no sampling here")

    monkeypatch.setattr("lavps.restoration.job.restore_files", sampled)
    with pytest.raises(SystemExit):
        restore(file, "--task", "denoise", "--noise", 0.05)
    (line,) = before[0].splitlines()
    assert line.startswith(f"{file}: PNG image, denoise, noise 0.05; 8x8 -> 8x8; 8 denoiser evaluations")
    assert "windows" not in line


def test_a_dry_run_lists_bad_files(
    restore: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.png").write_bytes(b"")
    with pytest.raises(SystemExit) as end:
        restore(tmp_path / "bad.png", "--task", "denoise", "--noise", 0.05, "--dry-run")
    assert end.value.code == 3
    assert "bad.png: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the memory in use is read from /proc")
@pytest.mark.parametrize(("size", "evaluations"), [((64, 64), 4), ((900, 1200), 1), ((900, 1200), 4)])
def test_the_predicted_memory_is_about_that_of_the_run(
    tmp_path: Path, size: tuple[int, int], evaluations: int
) -> None:
    network = {"kind": "unet", "in_channels": 3, "out_channels": 3, "patch": 4, "widths": [8, 8], "depth": 1}
    network |= {"attention": [], "head_dim": 8, "condition_width": 16}
    config = ModelConfig("prior", network, lavps.Flow(), (3, 64, 64), "velocity", "time")
    save_model(tmp_path / "prior", build_seeded(network, 0), config)
    file = save(tmp_path / "photo.png", picture(*size))
    words = ["restore", file, "--task", "denoise", "--noise", 0.1, "--prior", tmp_path / "prior"]
    words += ["--device", "cpu", "--evaluations", evaluations, "--output", tmp_path / "out"]
    code = (
        f"from lavps.cli import main; main({[*map(str, words)]!r}); print(open('/proc/self/status').read())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    predicted = float(run.stdout.split(" GB of memory")[0].split()[-1]) * 1e9
    peak = 1024 * int(run.stdout.split("VmHWM:")[1].split()[0])
    assert 1 / 1.5 < predicted / peak < 1.5


class Bar:
    """A tqdm that records."""

    last: Bar

    def __init__(self, **options: object) -> None:
        Bar.last = self
        self.total, self.updates = 0, list[int]()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_description(self, text: str, refresh: bool = True) -> None:
        pass

    def refresh(self) -> None:
        pass

    def write(self, text: str, file: object = None) -> None:
        pass

    def update(self, count: int) -> None:
        self.updates.append(count)


@pytest.mark.parametrize("one_at_a_time", [False, True])
@pytest.mark.parametrize(("size", "windows"), [((8, 8), 1), ((20, 12), 8)])
def test_the_bar_counts_evaluations_of_windows(
    restore: Callable[..., None],
    prior: Path,
    tmp_path: Path,
    size: tuple[int, int],
    windows: int,
    one_at_a_time: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lavps.cli.restore.tqdm", Bar)
    names = ["a.png", "b.png"]
    files = [save(tmp_path / name, picture(*size)) for name in names]
    extra = ["--batch-size", 1] if one_at_a_time else []
    restore(*files, "--task", "denoise", "--noise", 0.1, "--samples", 2, "--tile-batch", 4, *extra)
    assert Bar.last.total == sum(Bar.last.updates) == 8 * windows * 2 * len(names)
    if windows > 1:  # several reports per step, so that an ETA is known before the first step ends
        assert max(Bar.last.updates) == 4


def test_a_long_run_has_a_preview_that_is_removed(
    restore: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = save(tmp_path / "photo.png", picture(9, 12, 1)), list[tuple[str, tuple[int, int]]]()
    written = preview.Preview.__call__

    def call(self: preview.Preview, step: Any) -> None:
        written(self, step)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["photo-preview.png"]
        image = Image.open(self.file)
        seen.append((image.mode, image.size))

    monkeypatch.setattr(preview, "INTERVAL", 0.0)
    monkeypatch.setattr(preview.Preview, "__call__", call)
    restore(file, "--task", "denoise", "--noise", 0.1)
    assert seen == [("L", (12, 9))] * 8
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "photo-comparison.png", "photo.json", "photo.png",
    ]  # fmt: skip


def test_a_short_run_has_no_preview(
    restore: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a preview was written")

    monkeypatch.setattr(preview, "write_atomically", refuse)
    restore(save(tmp_path / "photo.png", picture(8, 8)), "--task", "denoise", "--noise", 0.1)


# --- the noise --------------------------------------------------------------------------------------------


def test_noise_that_is_not_given_is_estimated_printed_and_replayed(
    restore: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = noisy(tmp_path / "photo.png", 0.1)
    restore(file, "--task", "denoise")
    about = json.loads((tmp_path / "out" / "photo.json").read_text())["measurement"]
    assert about["noise"] == pytest.approx(0.1, rel=0.1)
    assert 0 < about["noise_uncertainty"] < 0.02
    text = f"noise {about['noise']:g} +- {about['noise_uncertainty']:.1g}, estimated"
    assert text in capsys.readouterr().out
    main(["replay", str(tmp_path / "out" / "photo.json")])
    assert "identical" in capsys.readouterr().out


def test_given_noise_has_no_uncertainty(restore: Callable[..., None], tmp_path: Path) -> None:
    restore(noisy(tmp_path / "photo.png", 0.1), "--task", "denoise", "--noise", 0.03)
    about = json.loads((tmp_path / "out" / "photo.json").read_text())["measurement"]
    assert (about["noise"], about["noise_uncertainty"]) == (0.03, None)


@pytest.mark.parametrize("task", ["sr2", "gaussian-blur", "centre-box", "half-pixels", "mine", "inpaint"])
def test_noise_is_estimated_where_the_measurement_shows_it(
    restore: Callable[..., None], tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, words = noisy(tmp_path / "photo.png", 0.1), ["--task", task]
    if task == "inpaint":
        known = np.full((48, 40), 255, np.uint8)
        known[10:30, 10:30] = 0
        levels = np.array(Image.open(file))
        save(file, np.where(known[..., None] > 0, levels, picture(48, 40)))
        words = ["--mask", str(save(tmp_path / "mask.png", known))]
    if task == "mine":
        (tmp_path / "mine.py").write_text("def negative(x):\n    return -x\n")
        words = ["--operator", f"{tmp_path / 'mine.py'}:negative"]
    restore(file, *words, "--dry-run")
    said = capsys.readouterr().out
    found = float(said.split("noise ")[1].split(" +- ")[0])
    assert found == pytest.approx(0.1, rel=0.25 if task == "half-pixels" else 0.1)


@pytest.mark.parametrize("task", ["jpeg", "hdr", "denoise.jpg", "tiny", "numbers"])
def test_noise_that_cannot_be_estimated_is_asked_for(
    restore: Callable[..., None], tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = noisy(tmp_path / ("a.jpg" if task == "denoise.jpg" else "a.png"))
    if task == "tiny":
        save(file, picture(3, 3))
    if task == "numbers":
        file, task = tmp_path / "a.npy", "phase-retrieval"
        np.save(file, torch.rand(3, 16, 16).numpy() * 3)
    name = task if task in ("jpeg", "hdr", "phase-retrieval") else "denoise"
    with pytest.raises(SystemExit) as end:
        restore(file, "--task", name)
    assert end.value.code == 3
    (line,) = (line for line in capsys.readouterr().err.splitlines() if str(file) in line)
    assert line.endswith("give its standard deviation, such as --noise 0.05")
    assert not list((tmp_path / "out").iterdir())
    restore(file, "--task", name, "--noise", 0.05)


def test_compression_alone_needs_no_noise(
    restore: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "a.jpg", picture(24, 32), quality=60)
    restore(file, "--task", "jpeg")
    said = capsys.readouterr().out
    assert "noise 0.01, the default for JPEG files;" in said
    assert "overstated" not in said
    manifest = json.loads((tmp_path / "out" / "a.json").read_text())
    assert manifest["measurement"]["noise"] == 0.01
    assert manifest["measurement"]["noise_uncertainty"] is None


def test_an_image_without_noise_has_that_of_rounding(
    restore: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restore(save(tmp_path / "a.png", np.full((20, 20, 3), 100, np.uint8)), "--task", "sr2", "--dry-run")
    assert "noise 0.00226 +- 0.0002, estimated" in capsys.readouterr().out
