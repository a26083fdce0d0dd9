"""The models of the zoo, each trained by one command.

    python -m recipes.zoo.run photos64 --data path/to/data      # train (or resume), then install into zoo/
    python -m recipes.zoo.run ffhq256-sr4 --no-cpu --data path/to/data    # the paper's size
    python -m recipes.zoo.run --list

A model is trained in ``runs/NAME`` by ``lavps train``, resumed by the same command, and installed as ``zoo/NAME``:
weights, configuration, a model card with its data, command, time and losses, and for a prior a sheet of samples.
The data are tar shards ``photos64-train.tar``, ``photos64-val.tar`` (photographs) and ``synthfaces64-...`` (synthetic faces). Training
shards of the last are in ``synthfaces64-train/``. ``earlier/`` has earlier versions of the models, from the repository's history.
Few-step models also need the weights of LPIPS, ``lpips_alex.safetensors``.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro

import lavps
from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.cli import main as command_line
from lavps.training.preview import save_grid

CARDS = Path(__file__).parent / "card.md"
DATA = {
    "synthfaces64": "15,366 synthetic faces of 64 x 64 pixels, mirrored at random, and 256 of other seeds for validation. The generator is "
    "MobileStyleGAN (`random-face` on PyPI, Apache-2.0), distilled from StyleGAN2 on FFHQ (non-commercial): **research use only**. "
    "They show no real people.",
    "photos64": "1,197 photographs: 797 of ImageNet, reduced to a short side of 288 pixels, and 400 of BSDS500 (training and test images), in random "
    "crops of 64 x 64 pixels at this resolution, mirrored and turned at random. 30 photographs of ImageNet for validation. BSDS500's validation images, "
    "which contain CBSD68, were not used. **Non-commercial research use only**.",
}
SHARDED = ("synthfaces64",)  # training data that are a folder of shards
SYNTHETIC = {
    "size": 64, "network": "recipes/zoo/hdit.json", "times": "logit-normal", "batch-size": 32, "steps": 4430,
    "learning-rate": 6e-4, "warmup-steps": 100, "cooldown-steps": 1500, "ema-decay": "0.998 0.9995", "compile": "",
    "weights": "bfloat16", "validate-every": 1000, "checkpoint-every": 200, "preview-every": 2000, "init-from": "earlier/synthfaces64",
}  # fmt: skip
PHOTOS = {
    "size": 64, "crop": "random", "quarter-turns": "", "network": "unet-small", "times": "log-normal", "batch-size": 32,
    "steps": 3000, "learning-rate": 4e-4, "warmup-steps": 100, "cooldown-steps": 1500, "ema-decay": "0.998 0.9995",
    "precision": "bf16", "weights": "bfloat16", "validation-images": 128, "validate-every": 1500, "checkpoint-every": 100,
    "preview-every": 3000, "log-every": 20, "init-from": "earlier/photos64",
}  # fmt: skip
FEW_STEP = {
    "evaluations": 4, "batch-size": 8, "steps": 460, "learning-rate": 2e-4, "weight-decay": 0.0, "warmup-steps": 20,
    "cooldown-steps": 180, "ema-decay": "0.98 0.995", "compile": "", "weights": "bfloat16", "validation-images": 16,
    "validate-every": 230, "checkpoint-every": 25, "preview-every": 230, "log-every": 10,
    "init-from": "earlier/synthfaces64-4steps", "init-prior": "earlier/synthfaces64",
}  # fmt: skip
PHOTOS_FEW_STEP = {
    "crop": "random", "quarter-turns": "", "evaluations": 4, "batch-size": 8, "steps": 900, "learning-rate": 2e-4,
    "weight-decay": 0.0, "warmup-steps": 30, "cooldown-steps": 600, "ema-decay": "0.98 0.995", "precision": "bf16",
    "weights": "bfloat16", "validation-images": 32, "validate-every": 200, "checkpoint-every": 50, "preview-every": 600,
    "log-every": 10,
}  # fmt: skip
# The paper evaluates its model in the last 10, 20 or 30 % of the steps only.
INFERENCE = {
    "network": "unet-mini", "window": 0.3, "solver-steps": 3, "step-counts": "50 100", "batch-size": 32, "steps": 300,
    "learning-rate": 1e-3, "warmup-steps": 50, "ema-decay": 0.99, "precision": "bf16", "weights": "bfloat16",
    "validation-images": 128, "validate-every": 150, "checkpoint-every": 100, "preview-every": 300, "log-every": 20,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A model: kind, data, options of ``lavps train``, description."""

    kind: str
    data: str
    options: dict[str, Any]
    about: str

    def narrow(self, folder: Path) -> Model:
        """Return the model with a narrow copy of its network, for one step."""
        folder.mkdir(parents=True, exist_ok=True)
        description = folder / f"{self.options['network']}.json"
        shape = NARROW[self.options["network"]]
        description.write_text(
            json.dumps({"kind": "hdit", "patch": 4, "head_dim": 16, "mapping_width": 16} | shape)
        )
        once = {
            "network": description,
            "batch-size": 2,
            "steps": 1,
            "warmup-steps": 1,
            "validation-images": 2,
            "num-workers": 0,
        }
        return replace(self, options=self.options | once)

    def command(self, data: Path, output: Path, zoo: Path, cpu: bool = True) -> list[str]:
        """Return the arguments of ``lavps``."""
        options: dict[str, Any] = {
            "data": data / (f"{self.data}-train" if self.data in SHARDED else f"{self.data}-train.tar"),
            "validation": data / f"{self.data}-val.tar",
            "output": output,
        }
        if self.kind in ("inference", "few-step"):
            options["prior"] = zoo / self.data
        if self.kind == "few-step":
            options["lpips"] = data / "lpips_alex.safetensors"
        options |= self.options
        words = [word for name, value in options.items() for word in (f"--{name}", *str(value).split())]
        return ["train", self.kind, *words, *(["--cpu"] if cpu else [])]


def warm_start(prior: str, task: str, options: dict[str, Any]) -> Model:
    """Return an inference model of a prior, for one task or family."""
    about = f"An inference model of LAVPS for the prior `{prior}`, trained for `{task}` with noise 0.05, evaluated while t < {options['window']}."
    return Model("inference", prior, options | {"task": task, "noise": 0.05}, about)


SMALL = {
    "synthfaces64": Model(
        "prior", "synthfaces64", SYNTHETIC,
        "A prior of synthetic faces: an unconditional denoiser, HDiT. Its training continued that of an earlier version (`earlier/`, in the "
        "repository's history), which had seen 80,000 images.",
    ),
    "synthfaces64-4steps": Model(
        "few-step", "synthfaces64", FEW_STEP,
        "A few-step model of the prior `synthfaces64`: its network, trained further through the sampler, for 4 evaluations and any linear "
        "operator. It was initialized with an earlier version of the model, 3,680 images, and the change of the prior since then.",
    ),
    "photos64": Model(
        "prior", "photos64", PHOTOS,
        "A prior of patches of photographs, for photographs of any size, in windows. Its training continued that of an earlier version "
        "(`earlier/`, in the repository's history), which had seen 38,400 images.",
    ),
    "photos64-4steps": Model(
        "few-step", "photos64", PHOTOS_FEW_STEP,
        "A few-step model of the prior `photos64`: its network, trained further through the sampler, for 4 evaluations and any linear operator.",
    ),
} | {
    f"synthfaces64-{task}": warm_start("synthfaces64", task, INFERENCE) for task in ("sr4", "motion-blur", "centre-box")
}  # fmt: skip

# The paper's sizes and budgets at 256 x 256: FFHQ, 60,000 images for 5 epochs; ImageNet, 12,800 images for 20; batch 16.
# It takes its priors ready-made: their options here are ours.
PAPER_COMMON = {"precision": "bf16", "weights": "bfloat16", "validation-images": 32, "num-workers": 8}
PAPER_PRIOR = PAPER_COMMON | {
    "size": 256, "batch-size": 256, "steps": 200_000, "learning-rate": 2e-4, "warmup-steps": 5000, "ema-decay": 0.9999,
}  # fmt: skip
PAPER_BUDGETS: dict[str, dict[str, Any]] = {
    "ffhq256": {"network": "hdit-ffhq256", "steps": 18_750, "learning-rate": 1e-4, "weight-decay": 1e-5},
    "imagenet256": {
        "network": "hdit-imagenet256",
        "steps": 16_000,
        "learning-rate": 5e-5,
        "weight-decay": 0.0,
    },
}
PAPER = {
    name: Model("prior", name, PAPER_PRIOR | {"network": budget["network"]}, f"A prior of `{name}`.")
    for name, budget in PAPER_BUDGETS.items()
} | {
    f"{name}-{task}": warm_start(name, task, PAPER_COMMON | budget | {"batch-size": 16, "ema-decay": 0.999, "window": 0.3})
    for name, budget in PAPER_BUDGETS.items()
    for task in ("sr4", "motion-blur", "centre-box", "random-motion-blur", "random-rectangle")
}  # fmt: skip
MODELS = SMALL | PAPER
# A copy narrow enough to try a configuration anywhere: the same levels, attention and options.
NARROW = {
    "hdit-ffhq256": {"widths": [16, 16, 32, 32], "depths": [1, 1, 1, 1], "attention": [5, 7, None, None]},
    "hdit-imagenet256": {"widths": [16, 16, 32], "depths": [1, 1, 1], "attention": [7, 7, None]},
}


@dataclass(frozen=True)
class Config:
    """Models to train."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of models of the zoo."""
    data: Path = Path("data")
    """Folder of the tar shards."""
    runs: Path = Path("runs")
    """Folder of the training runs."""
    zoo: Path = Path("zoo")
    """Folder of the zoo."""
    list: bool = False
    """Whether to list the models."""
    index: bool = False
    """Whether to rewrite the README of the zoo."""
    install_only: bool = False
    """Whether to install the result of a finished training."""
    cpu: bool = True
    """Whether to train on the CPU; --no-cpu uses the accelerators found by Accelerate."""
    smoke: bool = False
    """Whether to test the configuration: a narrow copy of the network, one step of two images, nothing installed."""


def seconds_of(log: Path, batch_size: int) -> float:
    """Return the wall time of a training run without interruptions, from the speed in its log."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    speeds = {row["step"]: row["images_per_second"] for row in rows if "images_per_second" in row}
    steps = sorted(speeds)
    return sum(
        (now - before) * batch_size / speeds[now] for before, now in zip([0, *steps], steps, strict=False)
    )


def install(name: str, config: Config) -> Path:
    """Copy ``runs/NAME/model`` to ``zoo/NAME`` and write its card."""
    model, run, folder = MODELS[name], config.runs / name, config.zoo / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("model.safetensors", "config.json", "typicality.json"):
        if (run / "model" / file).exists():  # only a prior has a typicality reference
            shutil.copy(run / "model" / file, folder / file)
    about = read_config(folder)
    validation = about.training["validation"]
    numbers = ", ".join(f"{key} {value:.4g}" for key, value in validation.items() if isinstance(value, float))
    pictures = ""
    if model.kind == "prior":
        sampler = lavps.DDIM(lavps.load_prior(folder), num_steps=100)
        samples = sampler.sample(
            lavps.Unconditional(about.image_shape, 64), batch_size=16, progress=True
        ).samples
        assert samples is not None
        save_grid(samples.flatten(0, 1), folder / "samples.png")
        pictures = "![samples](samples.png)\n\n64 samples, not selected: DDIM, 100 steps, seed 0.\n"
    words = model.command(Path("DATA"), Path("runs") / name, Path("zoo"))
    card = CARDS.read_text().format(
        name=name,
        about=model.about,
        kind=model.kind,
        data=DATA[model.data],
        command=" ".join(["lavps", *words]),
        images=int(about.training["steps"]) * int(about.training["batch_size"]),
        minutes=seconds_of(run / "log.jsonl", int(about.training["batch_size"])) / 60,
        numbers=numbers,
        megabytes=(folder / "model.safetensors").stat().st_size / 1e6,
        parameters=sum(p.numel() for p in _network(folder).parameters()) / 1e6,
        sha256=about.sha256,
        pictures=pictures,
    )
    (folder / "README.md").write_text(card)
    return folder


def write_index(zoo: Path) -> Path:
    """Write ``zoo/README.md``, one line per model."""
    rows = []
    for name, model in MODELS.items():
        if not (file := zoo / name / "model.safetensors").exists():
            continue
        training = read_config(zoo / name).training
        seen = int(training["steps"]) * int(training["batch_size"])
        rows.append(
            [f"[`{name}`]({name}/README.md)", model.about, f"{file.stat().st_size / 1e6:.1f}", f"{seen:,}"]
        )
    table = markdown_table(["model", "description", "MB", "images seen"], rows)
    about = "Every card states the training of its model, its data, their licence, and the results measured with it."
    use = (
        "The folder is also a package without code: after `pip install ./zoo`, in the repository, every command and\n"
        '`lavps.load_prior("photos64")` find the models by name, in any folder and without network. `LICENSE` has the terms:\n'
        "research use only."
    )
    (zoo / "README.md").write_text(
        f"# Trained models\n\n{about} Written by `python -m recipes.zoo.run --index`.\n\n{use}\n\n{table}\n"
    )
    return zoo / "README.md"


def _network(folder: Path) -> torch.nn.Module:
    return lavps.nn.build_network(read_config(folder).network)


def main(config: Config) -> None:
    if config.index:
        print(write_index(config.zoo))
    elif config.list or not config.names:
        print("\n".join(f"{name:28} {model.about}" for name, model in MODELS.items()))
    for name in config.names:
        if name not in MODELS:
            raise SystemExit(f"there is no {name!r} in the zoo: there are {', '.join(MODELS)}")
        if config.smoke:
            narrow = MODELS[name].narrow(config.runs)
            command_line(narrow.command(config.data, config.runs / name, config.runs / "zoo", config.cpu))
            shutil.copytree(config.runs / name / "model", config.runs / "zoo" / name, dirs_exist_ok=True)
            continue
        if not config.install_only:
            command_line(MODELS[name].command(config.data, config.runs / name, config.zoo, config.cpu))
        print(f"installed {install(name, config)}")
        write_index(config.zoo)


if __name__ == "__main__":
    main(tyro.cli(Config))
