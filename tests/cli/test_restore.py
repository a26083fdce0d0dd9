"""The command lavps restore: files in, files out, and what happens when things go wrong."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.cli import main
from lavps.io import read_image
from lavps.restoration import Restorer
from support.restoring import picture, save, write_model, write_prior


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_prior(folder / "prior")
    write_model(folder / "warm", folder / "prior")
    return folder


def restore(models: Path, *words: object, output: Path) -> None:
    options = ["--prior", str(models / "prior"), "--output", str(output), "--device", "cpu"]
    main(["restore", *map(str, words), *options])


def manifest(file: Path) -> dict[str, dict[str, object]]:
    values: dict[str, dict[str, object]] = json.loads(file.read_text())
    return values


def code_of(models: Path, *words: object, output: Path) -> object:
    with pytest.raises(SystemExit) as end:
        restore(models, *words, output=output)
    return end.value.code


# --- what is written --------------------------------------------------------------------------------------


def test_one_sample_is_one_picture(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save(tmp_path / "photo.png", picture(3, 5, 4), dpi=(300, 300))
    restore(models, file, "--task", "sr4", "--noise", "0.05", output=tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["photo-comparison.png", "photo.json", "photo.png"]
    large = Image.open(tmp_path / "out" / "photo.png")
    assert (large.mode, large.size) == ("RGBA", (20, 12))
    assert large.info["dpi"] == pytest.approx((300, 300), rel=1e-3)
    said = capsys.readouterr().out
    assert "one sample is one plausible image" in said
    assert "1 of 1 files are restored" in said


def test_several_samples_have_a_mean_and_a_spread(models: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(8, 8))
    options = ["--samples", 3, "--inference-model", models / "warm", "--seed", 4, "--noise", "0.05"]
    restore(models, file, "--task", "denoise", *options, output=tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    pictures = ["1", "2", "3", "comparison", "mean", "uncertainty"]
    assert names == [*(f"photo-{name}.png" for name in pictures), "photo.json"]
    about = manifest(tmp_path / "out" / "photo.json")
    assert about["settings"]["num_steps"] == 5  # the model's own front
    assert about["sampling"]["seed"] == 4
    assert sorted(about["outputs"]) == names[:-1]
    result = about["result"]
    assert len(result["chi_square"]) == 3  # type: ignore[arg-type]
    assert result["model_forwards"] == 3
    assert 0 <= result["acceptance"] <= 1  # type: ignore[operator]
    samples = torch.stack([read_image(tmp_path / "out" / f"photo-{n}.png").pixels for n in (1, 2, 3)])
    assert not torch.equal(samples[0], samples[1])
    mean, inside = read_image(tmp_path / "out" / "photo-mean.png").pixels, (samples.abs() < 1).all(0)
    assert int(inside.sum()) > 50  # elsewhere a sample was clipped in its own file
    torch.testing.assert_close(mean[inside], samples.mean(0)[inside], atol=0.02, rtol=0)


def test_a_file_is_restored_alike_alone_and_in_a_folder(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, seed in (("a.png", 0), ("b.tif", 1), ("c.jpg", 2)):
        save(tmp_path / "in" / name, picture(6, 9, 1 if name == "b.tif" else 3, seed))
    restore(models, tmp_path / "in", "--task", "denoise", "--noise", "0.05", output=tmp_path / "all")
    restore(
        models, tmp_path / "in" / "b.tif", "--task", "denoise", "--noise", "0.05", output=tmp_path / "one"
    )
    assert (tmp_path / "all" / "b.tif").read_bytes() == (tmp_path / "one" / "b.tif").read_bytes()
    assert Image.open(tmp_path / "all" / "b.tif").mode == "L"
    assert Image.open(tmp_path / "all" / "c.jpg").format == "JPEG"


def test_measurements_of_degrade_are_restored_with_no_word_about_them(models: Path, tmp_path: Path) -> None:
    save(tmp_path / "a.png", picture(8, 8))
    main(
        [
            "degrade",
            str(tmp_path / "a.png"),
            "--task",
            "sr2",
            "--noise",
            "0.1",
            "--output",
            str(tmp_path / "m"),
        ]
    )
    restore(models, tmp_path / "m", output=tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["a-comparison.png", "a.json", "a.npy", "a.png"]
    assert np.load(tmp_path / "out" / "a.npy").shape == (3, 8, 8)
    asked = manifest(tmp_path / "out" / "a.json")["measurement"]
    assert (asked["task"], asked["noise"]) == ("sr2", 0.1)


def test_quality_and_budget_choose_settings(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "photo.png", picture(8, 8))
    for words, steps in (
        (("--quality", "fast"), 4),
        (("--quality", "best"), 9),
        (("--budget", "10min"), 9),
        (("--evaluations", "12"), 7),  # 2 K - 3 evaluations
        (("--budget", "0.001ms"), 4),
    ):
        options = ["--task", "denoise", "--noise", "0.05", "--overwrite", *words]
        restore(models, file, *options, output=tmp_path / "out")
        assert manifest(tmp_path / "out" / "photo.json")["settings"]["num_steps"] == steps, words
    assert "no settings fit 1e-06 s: the cheapest were taken" in capsys.readouterr().out
    for other in (("--budget", "5s"), ("--evaluations", "8")):
        assert code_of(models, file, "--quality", "fast", *other, output=tmp_path) == 1
        assert "give one of --quality, --evaluations, --schedule and --budget" in capsys.readouterr().err


# --- what goes wrong --------------------------------------------------------------------------------------


def bomb() -> bytes:
    """A PNG that claims 50,000 x 50,000 pixels."""
    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def test_bad_files_are_listed_and_the_run_goes_on(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    save(folder / "good.png", picture(8, 8))
    save(folder / "one.png", picture(1, 1))
    (folder / "bomb.png").write_bytes(bomb())
    (folder / "empty.png").write_bytes(b"")
    (folder / "cut.png").write_bytes((folder / "good.png").read_bytes()[:150])
    np.save(folder / "nan.npy", np.full((3, 8, 8), np.nan, np.float32))
    missing = tmp_path / "missing.png"
    assert (
        code_of(models, folder, missing, "--task", "denoise", "--noise", "0.05", output=tmp_path / "out") == 3
    )
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if str(tmp_path) in line]
    assert [Path(line.split(": ")[0]).name for line in lines] == [
        "bomb.png", "cut.png", "empty.png", "nan.npy", "missing.png",
    ]  # fmt: skip
    for line, words in zip(lines, ("pixels", "damaged", "empty", "finite", "No such file"), strict=True):
        assert words in line
    assert "2 of 7 files are restored" in said.out
    assert sorted(path.name for path in (tmp_path / "out").glob("*.json")) == ["good.json", "one.json"]
    assert Image.open(tmp_path / "out" / "one.png").size == (1, 1)


def test_a_file_whose_samples_are_not_finite_fails_and_the_run_goes_on(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Restorer.restore

    class Broken:
        schedule = lavps.Flow()

        def denoise(self, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            return x_t * (float("nan") if float(t.max()) < 0.5 else 0.5)

    def breaking(self: Restorer, problem: lavps.InverseProblem, *given: Any, **options: Any) -> Any:
        white = float(problem.y.mean()) > 0.9
        return sample(replace(self, prior=Broken()) if white else self, problem, *given, **options)

    monkeypatch.setattr(Restorer, "restore", breaking)
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.png", picture(8, 8))
    save(tmp_path / "in" / "b.png", np.full((8, 8, 3), 255, np.uint8))
    save(tmp_path / "in" / "c.png", picture(8, 8))
    assert (
        code_of(models, tmp_path / "in", "--task", "denoise", "--noise", "0.05", output=tmp_path / "out") == 3
    )
    said = capsys.readouterr()
    [line] = [line for line in said.err.splitlines() if str(tmp_path) in line]
    assert "b.png: MGDM: x_0 is not finite at step" in line
    assert "2 of 3 files are restored" in said.out
    assert sorted(path.name for path in (tmp_path / "out").glob("*.json")) == ["a.json", "c.json"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--task", "sr4x"], "did you mean 'sr4'"),
        (["--task", "sr5.5"], "srN averages blocks of N x N pixels, N an integer"),
        (["--task", "inpant"], "did you mean 'inpaint'"),
        (["--task", "deblurr"], "did you mean 'deblur'"),
        (["--task", "no_ops.py"], "no_ops.py names no function"),
        (["--task", "sr4", "--device", "xpu"], "device xpu is not available"),
        (["--task", "sr4", "--prior", "runs/nowhere"], "the Hub did not provide it"),
        (["--task", "sr4", "--inference-model", "runs/nowhere"], "the Hub did not provide it"),
        (["--task", "deblur"], "--kernel FILE"),
        (["--task", "sr4", "--prior", "nowhere"], "neither a model folder nor a Hub id"),
        (["--task", "sr4", "--samples", "0"], "at least 1"),
        (["--task", "sr4", "--budget", "soon"], "5s, 500ms or 2min"),
        (["--task", "sr4", "--noise", "loud"], "--noise"),
        (["--task", "sr4", "--inference-model", "PRIOR"], "not an inference model"),
        (["--task", "sr4", "--output", "."], "would be overwritten"),
    ],
)
def test_what_cannot_be_begun_ends_with_code_1_and_a_reason(
    models: Path,
    tmp_path: Path,
    words: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = save(tmp_path / "a.png", picture(4, 4)).read_bytes()
    words = [str(models / "prior") if word == "PRIOR" else word for word in words]
    with pytest.raises(SystemExit) as end:
        main(["restore", "a.png", "--prior", str(models / "prior"), *words])
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == before


def test_one_file_may_be_given_its_name(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = save(tmp_path / "photo.png", picture(4, 4)).read_bytes()
    (tmp_path / "my_ops.py").write_text("def negative(x):\n    return -x\n")
    words = [
        "restore",
        "photo.png",
        "--operator",
        "my_ops.py:negative",
        "--prior",
        str(models / "prior"),
        "--noise",
        "0.05",
    ]
    main([*words, "-o", "made/out.png"])
    names = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert names == ["out-comparison.png", "out.json", "out.png"]
    main(["replay", "made/out.json", "--trust-manifest"])
    assert "identical" in capsys.readouterr().out
    for name, reason in (("photo.png", "would overwrite the input photo.png"), (".", "overwritten")):
        with pytest.raises(SystemExit) as end:
            main([*words, "-o", name])
        assert end.value.code == 1
        assert reason in capsys.readouterr().err
    assert (tmp_path / "photo.png").read_bytes() == before
    save(tmp_path / "b.png", picture(4, 4))
    with pytest.raises(SystemExit):
        main(["restore", "b.png", *words[1:], "-o", "made/out.png"])
    assert "names one image: name a folder for several" in capsys.readouterr().err


@pytest.mark.parametrize(
    "task", ["denoise", "sr4", "gaussian-blur", "motion-blur", "centre-box", "jpeg", "hdr"]
)
def test_one_pixel_is_restored_or_refused_in_a_line(
    models: Path, tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "in.png", picture(1, 1))
    save(tmp_path / "whole.png", picture(8, 8))
    files = [tmp_path / "in.png", tmp_path / "whole.png"]
    options = ["--task", task, "--quality", "fast", "--noise", "0.05"]
    if task == "gaussian-blur":
        assert code_of(models, *files, *options, output=tmp_path / "out") == 3
        (line,) = (line for line in capsys.readouterr().err.splitlines() if "in.png" in line)
        assert "use a smaller kernel" in line
    else:
        restore(models, *files, *options, output=tmp_path / "out")
        assert Image.open(tmp_path / "out" / "in.png").size == ((4, 4) if task == "sr4" else (1, 1))
    assert (tmp_path / "out" / "whole.png").is_file()


def test_other_inputs_are_not_overwritten(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photo = save(tmp_path / "photo.png", picture(8, 8))
    mask = save(tmp_path / "mask.png", np.full((8, 8), 255, np.uint8))
    before = mask.read_bytes()
    assert code_of(models, photo, "--mask", mask, "--noise", "0.05", output=tmp_path / "mask.png") == 1
    assert f"would overwrite the input {mask}" in capsys.readouterr().err
    assert mask.read_bytes() == before


def test_any_integer_is_a_factor_of_super_resolution(models: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(3, 5))
    restore(models, file, "--task", "sr3", "--noise", "0.05", "--quality", "fast", output=tmp_path / "out")
    assert Image.open(tmp_path / "out" / "photo.png").size == (15, 9)


def test_two_files_are_not_written_to_one_place(models: Path, tmp_path: Path) -> None:
    for name in ("a.png", "a-comparison.png"):
        save(tmp_path / name, picture(4, 4))
    both = [tmp_path / "a.png", tmp_path / "a-comparison.png", "--task", "denoise", "--noise", "0.05"]
    assert code_of(models, *both, output=tmp_path / "out") == 1
    restore(models, *both, "--samples", 2, output=tmp_path / "out")


# --- as a process -----------------------------------------------------------------------------------------


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lavps.cli", "restore", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_interrupted_it_leaves_whole_files_and_code_130(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        save(tmp_path / "in" / f"{number:02d}.png", picture(20, 20, seed=number))
    options = [
        "--prior",
        models / "prior",
        "--task",
        "sr4",
        "--noise",
        "0.05",
        "--quality",
        "best",
        "--output",
        tmp_path / "out",
    ]
    process = start(tmp_path / "in", *options)
    end = time.monotonic() + 120
    while not list((tmp_path / "out").glob("*.json")) and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "of 40 files are restored" in said
    assert "Traceback" not in said
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.endswith(".partial")]
    done = list((tmp_path / "out").glob("*.json"))
    assert 0 < len(done) < 40
    for file in done:
        for name in manifest(file)["outputs"]:
            Image.open(tmp_path / "out" / name).load()


def test_a_reader_that_leaves_ends_the_command_without_a_message(models: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(8, 8))
    options = ["--task", "denoise", "--noise", "0.05", "--quality", "fast", "--prior", models / "prior"]
    for words in (["--help"], [file, *options, "--output", tmp_path / "out"]):
        process = start(*words)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        message = process.stderr.read()
        assert process.wait() == 1
        assert "roken" not in message
        assert "Traceback" not in message


def test_exit_codes_reach_the_shell(models: Path, tmp_path: Path) -> None:
    save(tmp_path / "good.png", picture(4, 4))
    (tmp_path / "bad.png").write_bytes(b"not an image")
    process = start(
        tmp_path, "--prior", models / "prior", "--task", "denoise", "--noise", "0.05",
        "--quality", "fast", "--output", tmp_path / "out",
    )  # fmt: skip
    out, said = process.communicate(timeout=120)
    assert process.returncode == 3, said
    assert "bad.png: its content is no image" in said
    assert "1 of 2 files are restored" in out
