"""Averages of several lengths in one training: each as if it were alone, all validated, the best exported."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import lavps
from lavps.checkpoints.folder import read_config
from lavps.cli import main
from lavps.training.data import ImageData
from lavps.training.denoiser import DenoiserTask
from lavps.training.ema import Averages
from lavps.training.trainer import TrainerConfig, TrainingResult, train

DECAYS = (0.5, 0.95)


class TinyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.mix(torch.cat([x, t.reshape(-1, 1, 1, 1).expand_as(x)], 1))


def run(
    output: Path, ema_decay: float | tuple[float, ...], **settings: object
) -> tuple[TrainingResult, nn.Module]:
    images = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = TinyNet()
    task = DenoiserTask(network, lavps.Flow(), (1, 8, 8), "v", preview_steps=2, preview_samples=1)
    defaults = {
        "steps": 12, "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 2, "log_every": 3,
        "checkpoint_every": 4, "validate_every": 4, "preview_every": 12, "tensorboard": False, "cpu": True,
    }  # fmt: skip
    config = TrainerConfig(output, ema_decay=ema_decay, **defaults | settings)
    result = train(task, ImageData.from_tensor(images), config, ImageData.from_tensor(images[:4]))
    return result, network


def state(output: Path) -> dict[str, Tensor]:
    return load_file(max((output / "checkpoints").iterdir()) / "state.safetensors")


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key.split("/", 1)[1]: value for key, value in tensors.items() if key.split("/", 1)[0] == name}


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_each_average_is_that_of_a_run_of_its_own_and_the_best_is_exported(tmp_path: Path) -> None:
    both, network = run(tmp_path / "both", DECAYS)
    tensors, losses = state(tmp_path / "both"), []
    for decay in DECAYS:
        alone, _ = run(tmp_path / f"{decay}", decay)
        assert same(part(tensors, f"ema-{decay}"), part(state(tmp_path / f"{decay}"), "ema"))
        assert same(part(tensors, "network"), part(state(tmp_path / f"{decay}"), "network"))
        assert "ema_decay" not in alone.validation
        losses.append(alone.validation["loss"])
    assert both.validation["loss_by_ema_decay"] == losses
    best = DECAYS[int(np.argmin(losses))]
    assert (both.ema_decay, both.validation["ema_decay"], both.validation["loss"]) == (
        best,
        best,
        min(losses),
    )
    assert same(network.state_dict(), part(tensors, f"ema-{best}"))
    lines = [json.loads(line) for line in (tmp_path / "both" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "validation/loss_by_ema_decay" in line] == [4, 8, 12]


def test_a_resumed_run_has_the_same_averages_and_the_other_one_is_exported_on_request(tmp_path: Path) -> None:
    whole, _ = run(tmp_path / "whole", DECAYS)
    run(tmp_path / "broken", DECAYS)
    shutil.rmtree(tmp_path / "broken" / "checkpoints" / "step-000000012")
    resumed, _ = run(tmp_path / "broken", DECAYS)
    assert resumed == whole
    assert same(state(tmp_path / "broken"), state(tmp_path / "whole"))
    other = next(decay for decay in DECAYS if decay != whole.ema_decay)
    exported, network = run(tmp_path / "whole", DECAYS, export_decay=other)  # nothing is trained
    assert exported.ema_decay == other
    assert exported.validation["loss"] == max(whole.validation["loss_by_ema_decay"])
    assert same(network.state_dict(), part(state(tmp_path / "whole"), f"ema-{other}"))
    with pytest.raises(ValueError, match=r"trainer\.ema_decay was \[0\.5, 0\.95\], is 0\.5"):
        run(tmp_path / "whole", 0.5)


def test_the_choice_needs_a_loss() -> None:
    network = nn.Linear(1, 1)
    averages = Averages(network, (0.9, 0.99, 0.999))
    assert (averages.choice, averages.record()) == (0, {})
    results = iter([{"warm": math.nan}, {"warm": 2.0}, {"warm": 1.5}])
    averages.validate(network, lambda: next(results))
    assert averages.record() == {"warm": 1.5, "ema_decay": 0.999, "warm_by_ema_decay": [None, 2.0, 1.5]}


def test_decays_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    assert TrainerConfig(tmp_path, ema_decay=(0.9,)).ema_decay == 0.9
    for wrong, reason in (((0.9, 0.9), "distinct"), ((), "distinct"), ((0.9, 1.0), "in \\[0, 1\\)")):
        with pytest.raises(ValueError, match=reason):
            TrainerConfig(tmp_path, ema_decay=wrong)
    with pytest.raises(ValueError, match="export_decay must be a value"):
        TrainerConfig(tmp_path, ema_decay=DECAYS, export_decay=0.7)


def test_the_command_takes_two_lengths_and_records_the_choice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (4, 8, 8), dtype=np.uint8)):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    network = {
        "kind": "unet",
        "widths": [16],
        "depth": 1,
        "attention": [],
        "head_dim": 16,
        "condition_width": 16,
    }
    (tmp_path / "network.json").write_text(json.dumps(network))
    options = {
        "data": tmp_path / "images", "validation": tmp_path / "images", "output": tmp_path / "run", "size": 8,
        "channels": 1, "network": tmp_path / "network.json", "steps": 4, "batch-size": 2, "warmup-steps": 1,
        "times": "log-normal", "times-mean": -0.4, "times-std": 1.0,
    }  # fmt: skip
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    main(["train", "prior", "--no-tensorboard", "--cpu", *words, "--ema-decay", "0.5", "0.95"])
    about = read_config(tmp_path / "run" / "model").training
    assert about["ema_decay"] == [0.5, 0.95]
    assert about["exported_ema_decay"] == about["validation"]["ema_decay"]
    assert (about["times"], about["times_mean"], about["times_std"]) == ("log-normal", -0.4, 1.0)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"averaged with decay {about['exported_ema_decay']}" in card
    assert f"averaged with decay {about['exported_ema_decay']}" in capsys.readouterr().out
