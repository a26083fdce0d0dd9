"""Training: exact resume, several processes as one, checkpoints that tell the truth, data, the command."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import lavps
from lavps.amortization.loading import check_fits
from lavps.checkpoints.folder import (
    ModelConfig,
    read_config,
    save_model,
    schedule_from_dict,
    schedule_to_dict,
)
from lavps.checkpoints.hashes import weights_hash
from lavps.cli import main
from lavps.nn import UNetConfig, build_seeded
from lavps.training.data import ImageData, image_of, shards
from lavps.training.denoiser import DenoiserTask
from lavps.training.ema import Ema
from lavps.training.trainer import TrainerConfig, TrainingResult, learning_rate_at, train

TINY = UNetConfig(
    1, 1, patch=2, widths=(16,), depth=1, attention=(), head_dim=16, condition_width=16
).to_dict()
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        time_channel = t.reshape(-1, 1, 1, 1).expand_as(x)
        return self.leave(torch.tanh(self.enter(torch.cat([x, time_channel], 1))))


class SlowTask(DenoiserTask):
    """A task that takes its time, so that a test can interrupt it."""

    pause = 0.0

    def loss(self, images: Tensor, items: list[int]) -> Tensor:
        time.sleep(self.pause)
        return super().loss(images, items)


def tiny_run(output: Path, pause: float = 0.0, **settings: object) -> TrainingResult:
    """40 steps on 50 random images of 8 x 8, everything the same at every call."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(50, 1, 8, 8, generator=generator) * 2 - 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = TinyNet()
    task = SlowTask(network, lavps.Flow(), (1, 8, 8), "v", preview_steps=2, preview_samples=4)
    task.pause = pause
    defaults = {
        "steps": 40, "batch_size": 8, "learning_rate": 1e-2, "warmup_steps": 5, "log_every": 1,
        "checkpoint_every": 5, "validate_every": 10, "preview_every": 20, "tensorboard": False,
    }  # fmt: skip
    config = TrainerConfig(output, **defaults | settings)
    return train(task, ImageData.from_tensor(images, flip=True), config, ImageData.from_tensor(images[:8]))


def final_state(output: Path, step: int = 40) -> dict[str, Tensor]:
    return load_file(output / "checkpoints" / f"step-{step:09d}" / "state.safetensors")


def log(output: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def worker(*arguments: str) -> list[str]:
    return [sys.executable, __file__, *arguments]


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the loop ---------------------------------------------------------------------------------------------


def test_a_run_killed_and_interrupted_equals_one_that_was_not(tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    killed = subprocess.Popen(worker(str(broken), "0.05"), env=ENVIRONMENT)
    wait_for(broken / "checkpoints" / "step-000000010", killed)
    time.sleep(0.12)  # into the steps after the checkpoint, which are lost
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert log(broken)[-1]["step"] > 10
    interrupted = subprocess.Popen(
        worker(str(broken), "0.05", "40", "2"),
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(broken / "checkpoints" / "step-000000020", interrupted)
    os.killpg(interrupted.pid, signal.SIGINT)  # as a terminal does: the loader's processes get it too
    _, errors = interrupted.communicate()
    last = max((broken / "checkpoints").iterdir()).name
    assert f"KeyboardInterrupt: stopped after step {int(last[-9:])}:".encode() in errors
    assert "step-000000020" <= last < "step-000000040"
    resumed, uninterrupted = tiny_run(broken), tiny_run(whole)
    assert resumed == uninterrupted
    assert log(broken) == log(whole)
    assert [line["step"] for line in log(whole) if "loss" in line] == list(range(1, 41))
    ours, theirs = final_state(broken), final_state(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == ["step-000000035", "step-000000040"]


def test_two_processes_equal_one_with_the_doubled_batch(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        __file__,
    ]
    subprocess.run([*command, str(tmp_path / "two"), "0", "20"], env=ENVIRONMENT, check=True, timeout=120)
    tiny_run(tmp_path / "one", steps=20)
    two, one = final_state(tmp_path / "two", 20), final_state(tmp_path / "one", 20)
    assert max((two[name] - one[name]).abs().max().item() for name in one) < 1e-5
    losses = [[line["loss"] for line in log(tmp_path / n) if "loss" in line] for n in ("one", "two")]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [({"num_workers": 2}, 0.0), ({"accumulate": 4}, 1e-5), ({"precision": "bf16"}, 0.1)],
    ids=["loader processes", "accumulation", "bfloat16"],
)
def test_how_the_work_is_cut_changes_rounding_only(
    tmp_path: Path, settings: dict[str, object], tolerance: float
) -> None:
    plain, other = tiny_run(tmp_path / "plain"), tiny_run(tmp_path / "other", **settings)
    assert other.loss == pytest.approx(plain.loss, rel=tolerance)
    ours, theirs = final_state(tmp_path / "other"), final_state(tmp_path / "plain")
    assert all(value.dtype == torch.float32 for value in ours.values())
    assert max((ours[name] - theirs[name]).abs().max().item() for name in ours) <= tolerance


def test_a_run_with_other_settings_is_refused_with_their_names(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=2)
    with pytest.raises(
        ValueError, match=r"trainer\.learning_rate was 0\.01, is 0\.5; trainer\.steps was 2, is 3"
    ):
        tiny_run(tmp_path, steps=3, learning_rate=0.5)
    with pytest.raises(ValueError, match="multiple of 1 processes x 3"):
        tiny_run(tmp_path / "other", accumulate=3)
    with pytest.raises(FloatingPointError, match="loss is nan at step"):
        tiny_run(tmp_path / "wild", learning_rate=math.inf)


def test_a_run_leaves_logs_and_previews_and_nothing_that_executes(tmp_path: Path) -> None:
    tiny_run(tmp_path, tensorboard=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files if "tensorboard" not in path.parts} == {
        ".json", ".jsonl", ".lock", ".png", ".safetensors",
    }  # fmt: skip
    assert not any(path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"PK") for path in files)
    assert any("tfevents" in path.name for path in files)
    assert Image.open(tmp_path / "previews" / "step-000000040.png").size == (16, 16)
    assert json.loads((tmp_path / "config.json").read_text())["task"]["kind"] == "prior"
    by_time = next(line for line in log(tmp_path) if "validation/loss" in line)
    assert len(by_time["validation/denoising_mse_by_time"]) == 8


def test_learning_rate_warms_up_and_ends_at_its_fraction() -> None:
    config = TrainerConfig(Path(), steps=100, warmup_steps=10, learning_rate=2.0, final_lr_fraction=0.1)
    rates = [learning_rate_at(config, step) for step in range(101)]
    np.testing.assert_allclose(rates[:10], 0.2 * np.arange(1, 11))
    assert rates[10] == 2.0
    assert rates[55] == pytest.approx(1.1)  # half of the way: the middle of 2 and 0.2
    assert rates[100] == pytest.approx(0.2)
    assert all(a > b for a, b in pairwise(rates[10:]))


def test_learning_rate_stays_until_it_cools_down() -> None:
    config = TrainerConfig(
        Path(), steps=100, warmup_steps=10, learning_rate=2.0, final_lr_fraction=0.1, cooldown_steps=20
    )
    rates = [learning_rate_at(config, step) for step in range(101)]
    assert rates[10:81] == [2.0] * 71
    np.testing.assert_allclose(rates[80:], np.linspace(2.0, 0.2, 21))


def test_a_run_that_does_not_cool_down_yet_may_be_given_more_steps(tmp_path: Path) -> None:
    settings = {"cooldown_steps": 10, "checkpoint_every": 10}
    tiny_run(tmp_path / "long", steps=30, **settings)
    tiny_run(tmp_path / "short", steps=20, **settings)
    with pytest.raises(ValueError, match=r"trainer\.steps was 20, is 30"):
        tiny_run(tmp_path / "short", steps=30, **settings)  # its learning rate has fallen
    shutil.rmtree(tmp_path / "short" / "checkpoints" / "step-000000020")
    tiny_run(tmp_path / "short", steps=30, **settings)
    once, twice = (final_state(tmp_path / name, 30) for name in ("long", "short"))
    assert all(torch.equal(once[name], twice[name]) for name in once)


def test_ema_follows_its_formula_and_lends_its_weights() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = Ema(network, decay=0.5)
    expected = network[0].weight.detach().double().clone()
    for step in range(20):
        with torch.no_grad():
            network[0].weight.add_(0.1 * (step + 1))
        network(torch.randn(4, 2))
        ema.update(network, step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = keep * expected + (1 - keep) * network[0].weight.detach().double()
    torch.testing.assert_close(ema.weights["0.weight"].double(), expected)
    assert torch.equal(ema.weights["1.running_mean"], network[1].running_mean)
    own = network[0].weight.detach().clone()
    with ema.applied(network):
        assert not network.training
        torch.testing.assert_close(network[0].weight.double(), expected)
    assert network.training
    assert torch.equal(network[0].weight, own)


# --- the prior --------------------------------------------------------------------------------------------


class LinearNet(nn.Module):
    """x -> W(t) x: what the exact denoiser of a centred Gaussian is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            nn.Linear(1, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, size**2)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        matrix = self.mix(t[:, None]).reshape(len(x), x[0].numel(), -1)
        return torch.einsum("bij,bj->bi", matrix, x.flatten(1)).reshape(x.shape)


@pytest.mark.parametrize(
    "prediction", ["eps", "velocity", *(pytest.param(p, marks=pytest.mark.slow) for p in ("v", "x0"))]
)
def test_a_denoiser_trained_on_gaussian_images_approaches_the_exact_one(
    tmp_path: Path, prediction: str
) -> None:
    distance = (torch.arange(4.0)[:, None] - torch.arange(4.0)).square()
    exact = lavps.GaussianPrior(torch.zeros(1, 2, 2), 0.06 * torch.exp(-distance / 4), lavps.Flow())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = LinearNet(4)
    task = DenoiserTask(network, lavps.Flow(), (1, 2, 2), prediction, preview_steps=2)
    config = TrainerConfig(
        tmp_path, steps=500, batch_size=256, learning_rate=1e-2, warmup_steps=20, ema_decay=0.99,
        weight_decay=0.0, log_every=100, validate_every=500, checkpoint_every=500, preview_every=500,
        tensorboard=False,
    )  # fmt: skip
    images = exact.sample(4096, seed=1).float().clamp(-1, 1)
    x_t_noise = torch.randn(512, 1, 2, 2, generator=torch.Generator().manual_seed(2))

    def distance_to_exact() -> float:
        gaps = []
        for t in torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64):
            x_t = (1 - t.float()) * images[:512] + t.float() * x_t_noise
            gaps.append((task.prior.denoise(x_t, t) - exact.denoise(x_t, t)).square().mean().item())
        return sum(gaps) / 3

    before = distance_to_exact()
    train(task, ImageData.from_tensor(images), config, ImageData.from_tensor(images[:64]))
    losses = [line["loss"] for line in log(tmp_path) if "loss" in line]
    assert losses[-1] < losses[0]
    assert distance_to_exact() < min(0.05 * before, 0.1 * 0.06)


def test_loss_of_an_item_does_not_depend_on_its_batch() -> None:
    task = DenoiserTask(TinyNet(), lavps.Cosine(), (1, 8, 8), "eps", times="logit-normal")
    images = torch.rand(6, 1, 8, 8) * 2 - 1
    together = task.loss(images, range(10, 16))
    alone = torch.cat([task.loss(images[[i]], [10 + i]) for i in range(6)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, task.loss(images, range(6)))


def test_a_task_refuses_what_it_cannot_train() -> None:
    with pytest.raises(ValueError, match="EDM"):
        DenoiserTask(TinyNet(), lavps.VE(), (1, 8, 8))
    with pytest.raises(ValueError, match="'score'"):
        DenoiserTask(TinyNet(), lavps.Flow(), (1, 8, 8), "score")


# --- model folders ----------------------------------------------------------------------------------------

SCHEDULES = [
    lavps.VPLinear(2e-4, 0.03, 500),
    lavps.Cosine(0.01),
    lavps.Flow(),
    lavps.VE(0.01, 50.0, 5.0),
    lavps.DiscreteVP([0.1, 0.2, 1 / 3]),
]


def tiny_model(
    folder: Path, dtype: torch.dtype = torch.float32, **changes: object
) -> tuple[nn.Module, ModelConfig]:
    network = build_seeded(TINY, seed=3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.01)  # the last layer begins at zero
    config = ModelConfig("prior", TINY, lavps.Cosine(0.01), (1, 8, 8), "v", "time")
    return network, save_model(folder, network, dataclasses.replace(config, **changes), dtype)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_survive_json(schedule: lavps.schedule.Schedule) -> None:
    assert schedule_from_dict(json.loads(json.dumps(schedule_to_dict(schedule)))) == schedule


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_prior_loads_with_no_more_than_its_folder(tmp_path: Path, dtype: torch.dtype) -> None:
    network, written = tiny_model(tmp_path / "model", dtype)
    prior = lavps.load_prior(tmp_path / "model")
    assert read_config(tmp_path / "model") == written
    assert prior.schedule == lavps.Cosine(0.01)
    assert (prior.prediction, prior.time_input) == ("v", "time")
    assert weights_hash(prior.network) == written.weights_hash
    assert (weights_hash(network) == written.weights_hash) == (dtype == torch.float32)
    x, t = torch.randn(2, 1, 8, 8), torch.tensor([0.3, 0.7], dtype=torch.float64)
    expected = lavps.NetworkPrior(network, lavps.Cosine(0.01), "v").denoise(x, t)
    tolerance = 0.0 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(prior.denoise(x, t), expected, rtol=0, atol=tolerance)
    assert not any(parameter.requires_grad for parameter in prior.network.parameters())
    assert written.sha256 in (tmp_path / "model" / "README.md").read_text()


def test_a_model_card_is_not_overwritten(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    (tmp_path / "README.md").write_text("mine")
    tiny_model(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged or not the file described"):
        lavps.load_prior(tmp_path)


def test_a_folder_that_is_no_prior_says_so(tmp_path: Path) -> None:
    tiny_model(tmp_path, kind="inference", prior_hash="abc")
    with pytest.raises(ValueError, match="kind 'inference', not a prior"):
        lavps.load_prior(tmp_path)
    with pytest.raises(FileNotFoundError, match="neither a model folder nor a Hub id"):
        lavps.load_prior(tmp_path / "nowhere")
    config = json.loads((tmp_path / "config.json").read_text())
    for change, reason in [
        ({"format": 9}, "format is 9"),
        ({"surprise": 1}, "surprise"),
        ({"range": [0, 1]}, "range"),
        ({"schedule": {"name": "os.system", "args": {}}}, "unknown schedule"),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=reason):
            read_config(tmp_path)


def test_an_inference_model_serves_only_the_prior_it_was_trained_with(tmp_path: Path) -> None:
    _, config = tiny_model(tmp_path, kind="inference", prior_hash="abc")
    check_fits(config, "abc", lavps.Cosine(0.01))
    with pytest.raises(ValueError, match="prior abc, not with def"):
        check_fits(config, "def", lavps.Cosine(0.01))
    with pytest.raises(ValueError, match=r"under Cosine\(offset=0.01\), not under Flow\(\)"):
        check_fits(config, "abc", lavps.Flow())
    with pytest.raises(ValueError, match="not an inference model"):
        check_fits(dataclasses.replace(config, kind="prior"), "abc", lavps.Cosine(0.01))


def test_first_weights_are_a_function_of_the_seed_alone() -> None:
    state = torch.get_rng_state()
    first, same, other = (weights_hash(build_seeded(TINY, seed)) for seed in (0, 0, 1))
    assert first == same != other
    assert torch.equal(torch.get_rng_state(), state)


# --- data -------------------------------------------------------------------------------------------------


def write_images(folder: Path, count: int = 5, size: tuple[int, int] = (8, 8)) -> Tensor:
    """PNGs of random bytes, (N, 3, H, W)."""
    (folder / "deeper").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / ("deeper" if number > 2 else "") / f"{number}.png")
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def write_tar(path: Path, folder: Path, **extra: object) -> Path:
    with tarfile.open(path, "w") as archive:
        for file in sorted(folder.rglob("*.png"), reverse=True):
            archive.add(file, file.relative_to(folder))
        archive.addfile(tarfile.TarInfo("0.txt"), io.BytesIO())
        if extra:
            member = tarfile.TarInfo()
            for name, value in extra.items():
                setattr(member, name, value)
            archive.addfile(member)
    return path


def everything(data: ImageData) -> Tensor:
    return torch.stack([data[index] for index in range(len(data))])


def test_folder_tar_and_tensor_are_the_same_images(tmp_path: Path) -> None:
    pixels = write_images(tmp_path / "images")
    (tmp_path / "shards").mkdir()
    tar = write_tar(tmp_path / "shards" / "a.tar", tmp_path / "images")
    expected = pixels.float() / 127.5 - 1
    for path in (tmp_path / "images", tar, tmp_path / "shards", [tar]):
        for cache in (tmp_path / "cache", False):
            assert torch.equal(everything(ImageData.open(path, 8, cache=cache)), expected)
    assert torch.equal(everything(ImageData.from_tensor(pixels)), expected)
    assert torch.equal(everything(ImageData.from_tensor(expected)), expected)
    assert expected.min() == -1
    assert expected.max() == 1


def test_images_are_decoded_once_and_again_when_they_change(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    ImageData.open(tmp_path / "images", 8)
    (cache,) = (tmp_path / "images-cache").glob("*.npy")
    stamp = cache.stat().st_mtime_ns
    ImageData.open(tmp_path / "images", 8)
    assert cache.stat().st_mtime_ns == stamp
    Image.new("RGB", (8, 8), "white").save(tmp_path / "images" / "0.png")
    assert everything(ImageData.open(tmp_path / "images", 8))[0].min() == 1
    assert len(list((tmp_path / "images-cache").glob("*.npy"))) == 2


def test_images_are_cropped_resized_and_flattened(tmp_path: Path) -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "grey.png")
    assert ImageData.open(tmp_path, 5, 1, cache=False)[0].min() > 0.8  # Lanczos looks beyond the crop
    assert ImageData.open(tmp_path, (4, 6), 3, cache=False)[0].shape == (3, 4, 6)
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "grey.png")
    assert torch.equal(ImageData.open(tmp_path, 8, cache=False)[0], torch.ones(3, 8, 8))
    Image.fromarray(np.full((8, 8), 0xFF00, np.uint16)).save(tmp_path / "grey.png")
    assert torch.equal(ImageData.open(tmp_path, 8, 1, cache=False)[0], torch.ones(1, 8, 8))


def test_bad_files_are_named_or_skipped_and_counted(tmp_path: Path) -> None:
    pixels = write_images(tmp_path / "images", size=(32, 32))
    broken = tmp_path / "images" / "1.png"
    broken.write_bytes(broken.read_bytes()[:500])
    (tmp_path / "images" / "2.png").write_bytes(b"GIF89a")
    with pytest.raises(ValueError, match=r"1\.png cannot be read"):
        ImageData.open(tmp_path / "images", 32)
    with pytest.raises(ValueError, match=r"1\.png cannot be read"):
        ImageData.open(tmp_path / "images", 32, cache=False)[1]
    for _ in range(2):  # the second time from the cache
        data = ImageData.open(tmp_path / "images", 32, skip_bad=True)
        assert [Path(name).name for name in data.bad] == ["1.png", "2.png"]
        assert torch.equal(everything(data), pixels[[0, 3, 4]].float() / 127.5 - 1)
    with pytest.raises(ValueError, match="needs the cache"):
        ImageData.open(tmp_path / "images", 32, cache=False, skip_bad=True)


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../0.png"},
        {"name": "/0.png"},
        {"name": "a/../../0.png"},
        {"name": "9.png", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"name": "9.png", "type": tarfile.LNKTYPE, "linkname": "0.png"},
        {"name": "9.png", "type": tarfile.FIFOTYPE},
    ],
    ids=repr,
)
def test_a_tar_that_reaches_out_is_refused(tmp_path: Path, member: dict[str, object]) -> None:
    write_images(tmp_path / "images")
    tar = write_tar(tmp_path / "a.tar", tmp_path / "images", **member)
    with pytest.raises(ValueError, match="leaves the tar"):
        ImageData.open(tar, 8)


def test_data_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(bomb())
    with pytest.raises(ValueError, match="bomb"):
        ImageData.open(tmp_path, 8)
    (tmp_path / "bomb.png").unlink()
    with pytest.raises(ValueError, match=r"no .* images in"):
        ImageData.open(tmp_path, 8)
    with pytest.raises(FileNotFoundError, match="neither a folder nor a tar"):
        ImageData.open(tmp_path / "nowhere", 8)
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(ValueError, match="not a readable"):
        ImageData.open(tmp_path / "a.tar", 8)
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        ImageData.from_tensor(torch.full((1, 1, 2, 2), 255.0))
    with pytest.raises(ValueError, match="no images"):
        ImageData.from_tensor(torch.zeros(0, 1, 2, 2))
    with pytest.raises(ValueError, match="channels"):
        ImageData.open(tmp_path, 8, 4)


def bomb() -> bytes:
    """A small PNG whose header claims 20,000 x 20,000 pixels."""
    import struct
    import zlib

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + header
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def test_mirroring_is_a_function_of_the_item() -> None:
    images = torch.rand(1, 1, 4, 4)
    data = ImageData.from_tensor(images, flip=True, seed=5)
    draws = list(data.draw([0] * 200, range(200)))
    mirrored = [torch.equal(draw, images[0].flip(-1)) for draw in draws]
    assert all(torch.equal(a, data.draw([0], [item])[0]) for item, a in enumerate(draws))
    assert 60 < sum(mirrored) < 140
    assert torch.equal(data[0], images[0])


def test_every_epoch_shows_every_image_once_in_an_order_of_its_own() -> None:
    epochs = [[image_of(item, 20, seed=1) for item in range(20 * e, 20 * e + 20)] for e in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_processes_share_out_every_batch() -> None:
    whole = list(shards(range(3, 5), 12, 0, 1, 1))
    assert whole == [list(range(36, 48)), list(range(48, 60))]
    parts = [list(shards(range(3, 5), 12, rank, 2, 3)) for rank in (0, 1)]
    assert [len(part) for part in parts] == [6, 6]
    joined = [list(chain(*parts[0][k : k + 3], *parts[1][k : k + 3])) for k in (0, 3)]
    assert joined == whole


# --- the command ------------------------------------------------------------------------------------------


def test_the_command_trains_a_prior_that_loads(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    (tmp_path / "network.json").write_text(json.dumps(TINY))
    options = {
        "data": tmp_path / "images", "output": tmp_path / "run", "size": 8, "channels": 1, "batch-size": 4,
        "network": tmp_path / "network.json", "steps": 6, "validation": tmp_path / "images",
        "weights": "bfloat16", "preview-every": 6,
    }  # fmt: skip
    command = [sys.executable, "-m", "lavps.cli", "train", "prior", "--no-tensorboard"]
    command += [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert "the model is in" in done.stdout
    prior = lavps.load_prior(tmp_path / "run" / "model")
    assert prior.denoise(torch.zeros(1, 1, 8, 8), torch.tensor(0.5).double()).shape == (1, 1, 8, 8)
    config = read_config(tmp_path / "run" / "model")
    assert config.training["validation"]["loss"] > 0
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize("words", [[], ["train"], ["train", "prior"]], ids=" ".join)
def test_the_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*words, "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert ["train", "prior", "--batch-size"][len(words)] in text
    assert "noqa" not in text


if __name__ == "__main__":
    torch.set_num_threads(1)
    numbers = dict(zip(("steps", "num_workers"), map(int, sys.argv[3:]), strict=False))
    tiny_run(Path(sys.argv[1]), float(sys.argv[2]), **numbers)
