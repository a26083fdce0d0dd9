"""The command: each kind of model is trained from a folder of images, resumes, loads and samples."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import lavps
from lavps.amortization import LikelihoodGradient, Palette
from lavps.checkpoints.folder import read_config
from lavps.cli import main
from lavps.cli.choices import MeasurementOptions, describe_network
from lavps.guidance import Amortized
from lavps.nn import build_network

# What follows from the task (channels, a second time) is left out.
UNET = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}
HDIT = {
    "kind": "hdit", "patch": 2, "widths": [16, 16], "depths": [1, 1], "attention": [3, None], "head_dim": 16,
    "mapping_width": 16,
}  # fmt: skip
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, descriptions of tiny networks, and a prior trained on them by the command."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "images").mkdir()
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (6, 8, 8), dtype=np.uint8)):
        Image.fromarray(image).save(folder / "images" / f"{number}.png")
    for name, network in (("unet", UNET), ("hdit", HDIT)):
        (folder / f"{name}.json").write_text(json.dumps(network))
    command(folder, "prior", "prior", size=8, channels=1)
    return folder


def command(folder: Path, model: str, output: str, **options: object) -> Path:
    """Run ``lavps train MODEL`` for a few steps; the written model."""
    words = {
        "data": folder / "images", "validation": folder / "images", "output": folder / output,
        "network": folder / "unet.json", "steps": STEPS, "batch_size": 4, "warmup_steps": 1,
        "learning_rate": 1e-3, "log_every": 1, "checkpoint_every": 2,
    } | options  # fmt: skip
    line = [
        word
        for name, value in words.items()
        for word in (f"--{name.replace('_', '-')}", *([] if value is True else [str(value)]))
    ]
    main(["train", model, "--no-tensorboard", *line])
    return folder / output / "model"


def problem(task: str = "sr4") -> lavps.InverseProblem:
    x = 0.5 * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    operator = lavps.operators.named_family(task, (1, 8, 8)).draw([0, 1], (1, 8, 8))
    return lavps.InverseProblem.simulate(x, operator, lavps.GaussianNoise(0.05))


# --- inference models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("sr4", {"window": 0.3}),
        ("random-pixels", {"conditioning": "gradient", "rollout": 1, "precision": "bf16"}),
        pytest.param(
            "jpeg", {"conditioning": "palette+gradient", "precision": "bf16"}, marks=pytest.mark.slow
        ),
        pytest.param(
            "random-motion-blur",
            {"conditioning": "invfusion", "network": "hdit.json"},
            marks=pytest.mark.slow,
        ),
        ("half-pixels", {"sampler": "mgps", "num_steps": 20}),
        ("sr2", {"sampler": "mgps", "num_steps": 20, "window": 0.5}),
        ("centre-box", {"no_shortcut": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())),
)
def test_an_inference_model_is_trained_for_its_prior_and_warm_starts_it(
    folder: Path, task: str, options: dict[str, object]
) -> None:
    if "network" in options:
        options = options | {"network": folder / str(options["network"])}
    written = command(
        folder, "inference", f"inference-{task}", prior=folder / "prior" / "model", task=task, **options
    )
    prior, config = lavps.load_prior(folder / "prior" / "model"), read_config(written)
    model = lavps.load_inference_model(written, prior)
    assert config.prior_hash == prior.weights_hash
    assert (config.schedule, config.image_shape, config.range) == (prior.schedule, (1, 8, 8), (-1.0, 1.0))
    assert config.operator["task"] == task
    assert (model.gate is None) == ("no_shortcut" in options)
    assert config.window["window"][1] == pytest.approx(options.get("window", 1.0 - 1 / 100), abs=0.06)
    assert 0 <= config.training["validation"]["acceptance"] <= 1
    guidance = Amortized(model, steps=0)
    if options.get("sampler") == "mgps":
        sampler: lavps.samplers.Sampler = lavps.MGPS(prior, num_steps=5, guidance=guidance)
    else:
        sampler = lavps.MGDM(prior, num_steps=5, guidance=guidance)
    posterior = sampler.sample(problem(task), 2)
    assert posterior.samples.isfinite().all()
    assert posterior.trace.model_forwards > 0


def test_an_operator_of_ones_own_is_trained_for(folder: Path) -> None:
    (folder / "mine.py").write_text("def halved(x):\n    return 0.5 * x\n")
    task = f"{folder / 'mine.py'}:halved"
    written = command(folder, "inference", "own", prior=folder / "prior" / "model", task=task)
    assert read_config(written).operator["task"] == task
    assert "halved" in read_config(written).operator["family"]


# --- conditional denoisers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "options"),
    [("random-rectangle", {}), ("random-pixels", {"conditioning": "invfusion", "network": "hdit.json"})],
    ids=["palette", "invfusion"],
)
def test_a_conditional_denoiser_is_trained_and_sampled(
    folder: Path, task: str, options: dict[str, object]
) -> None:
    if "network" in options:
        options = options | {"network": folder / str(options["network"])}
    written = command(folder, "conditional", f"conditional-{task}", task=task, size=8, channels=1, **options)
    model, config = lavps.load_conditional(written), read_config(written)
    assert (config.kind, config.prediction, config.operator["task"]) == ("conditional", "velocity", task)
    assert config.training["validation"]["denoising_mse"] > 0
    assert lavps.Supervised(model, num_steps=3).sample(problem(task), 2).samples.isfinite().all()
    assert Image.open(folder / f"conditional-{task}" / "previews" / f"step-{STEPS:09d}.png").size == (48, 16)


@pytest.mark.parametrize("model", ["prior", "conditional"])
def test_a_training_begins_with_a_prior(folder: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    prior = folder / "prior" / "model"
    options: dict[str, object] = {"size": 8, "channels": 1, "steps": 1, "learning_rate": 1e-9}
    options |= {"init_from": prior}
    if model == "conditional":
        options |= {"task": "denoise"}
    written = command(folder, model, f"{model}-begun", **options)
    assert read_config(written).training["init_from"] == read_config(prior).weights_hash
    assert read_config(written).training["validation"]["denoising_mse"] == pytest.approx(
        read_config(prior).training["validation"]["denoising_mse"], rel=1e-3
    )
    del options["init_from"]  # another training: it does not go on from this one's checkpoints
    with pytest.raises(SystemExit):
        command(folder, model, f"{model}-begun", **options)
    assert "other settings" in capsys.readouterr().err


# --- the run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["inference", "conditional"])
def test_the_same_command_given_again_resumes(
    folder: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"prior": folder / "prior" / "model"} if model == "inference" else {"size": 8, "channels": 1}
    whole = command(folder, model, f"whole-{model}", task="sr2", **own)
    again = command(folder, model, f"again-{model}", task="sr2", **own)
    run = folder / f"again-{model}"
    last = run / "checkpoints" / f"step-{STEPS:09d}"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()  # as if it had been killed after the second of its four steps
    command(folder, model, f"again-{model}", task="sr2", **own)
    ours, theirs = (load_file(path / "model.safetensors") for path in (again, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    steps = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        command(folder, model, f"again-{model}", task="sr4", **own)
    assert re.search(r"other settings: .*task\.task was 'sr2', is 'sr4'", capsys.readouterr().err)
    if model == "inference":
        with pytest.raises(SystemExit):
            command(folder, model, f"again-{model}", task="sr2", solver_steps=3, **own)
        assert "task.solver_steps was 0, is 3" in capsys.readouterr().err


def test_several_processes_train_by_the_module(folder: Path) -> None:
    arguments = {
        "data": folder / "images", "output": folder / "two", "prior": folder / "prior" / "model",
        "task": "sr4", "network": folder / "unet.json", "steps": 2, "batch-size": 4,
    }  # fmt: skip
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    line = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(
        [*launch, "-m", "lavps.cli", "train", "inference", "--no-tensorboard", *line],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.count("the model is in") == 1
    lavps.load_inference_model(folder / "two" / "model", lavps.load_prior(folder / "prior" / "model"))


@pytest.mark.parametrize("model", ["prior", "inference", "conditional"])
def test_every_option_is_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["train", model, "--help"])
    assert exit_.value.code == 0
    words = capsys.readouterr().out.split()
    for option in ("--data", "--output", "--precision", *(["--task", "--noise"] if model != "prior" else [])):
        assert option in words
    assert "(default:" in words


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"task": "sr5x"}, "unknown task 'sr5x': known are sr2"),
        ({"task": "sr4", "conditioning": "invfusion"}, "invfusion needs an HDiT"),
        ({"task": "sr4", "window": 1.5}, "--window must be above 0 and at most 1"),
        ({"task": "sr4", "window": 0.005}, "is never reached: the grid has no step with t <= 0.005"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(map(str, value.values())),
)
def test_what_makes_no_sense_is_refused_before_any_work(
    folder: Path, options: dict[str, object], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        command(folder, "inference", "refused", prior=folder / "prior" / "model", **options)
    assert end.value.code == 1
    assert reason in capsys.readouterr().err
    assert not (folder / "refused").exists()


def test_a_description_that_contradicts_the_task_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "network.json"
    file.write_text(json.dumps(UNET | {"in_channels": 3}))
    assert describe_network(file, 3, 3)["out_channels"] == 3
    with pytest.raises(ValueError, match=r"network\.json sets in_channels to 3, this task needs 9"):
        describe_network(file, 9, 3)


def test_the_tiny_unet_is_tiny_and_names_stand_for_conditionings() -> None:
    network = build_network(describe_network("unet-tiny", 12, 6, second_time=True))
    assert 1e6 < sum(p.numel() for p in network.parameters()) < 3e6  # six megabytes in half precision
    parts = MeasurementOptions("sr4", 0.05, "palette+gradient").channels
    assert parts[0].damping == pytest.approx(0.01)
    assert [type(part) for part in parts] == [Palette, LikelihoodGradient]
    assert describe_network("hdit-tiny", 12, 6, True, fused_channels=3)["joint"] == [0]
