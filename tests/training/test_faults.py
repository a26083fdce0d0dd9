"""Damaged checkpoints, logs and caches, a full disk, two trainings in one folder."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import lavps
from lavps.io.atomic import claim
from lavps.nn import build_seeded
from lavps.training import DenoiserTask, ImageData, TrainerConfig, train
from lavps.training.trainer import TrainingResult
from support.restoring import TINY

GREY = TINY | {"in_channels": 1, "out_channels": 1}


def run(output: Path) -> TrainingResult:
    images = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    task = DenoiserTask(build_seeded(GREY, 0), lavps.Flow(), (1, 8, 8), preview_steps=2, preview_samples=1)
    config = TrainerConfig(output, 4, 2, warmup_steps=1, log_every=1, checkpoint_every=1, tensorboard=False)
    return train(task, ImageData.from_tensor(images), config)


def test_a_changed_bit_of_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    run(tmp_path)
    *_, last = sorted((tmp_path / "checkpoints").iterdir())
    content = bytearray((last / "state.safetensors").read_bytes())
    content[-1] ^= 1
    (last / "state.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"step-000000004 is damaged .*delete it to resume"):
        run(tmp_path)


def test_a_damaged_line_of_the_log_does_not_stop_a_resumption(tmp_path: Path) -> None:
    run(tmp_path)
    log = tmp_path / "log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], b"\xff\x00{\n", b"[3]\n", *lines[1:]]))
    assert run(tmp_path).step == 4
    assert log.read_bytes() == b"".join(lines)


def test_a_damaged_report_of_the_cache_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8), 77).save(tmp_path / "images" / "a.png")
    before = ImageData.open(tmp_path / "images", 8, 1)[0]
    (report,) = (tmp_path / "images-cache").glob("*.json")
    report.write_bytes(b"\x00")
    assert torch.equal(ImageData.open(tmp_path / "images", 8, 1)[0], before)


def test_two_trainings_do_not_share_a_folder(tmp_path: Path) -> None:
    with claim(tmp_path / "run.lock"), pytest.raises(ValueError, match="another training is running in"):
        run(tmp_path)
    assert run(tmp_path).step == 4


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    run(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000004")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"the checkpoint .*step-000000004 cannot be written"):
            run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert run(tmp_path).step == 4
