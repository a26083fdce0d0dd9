"""Every line of the tables of checkpoints and operators is run as it stands.

What the lines name (files, a denoiser, a physics) lies in a folder and in their names; those of azula and
deepinv are in the form of these libraries here, and their own in ``tests/interop``.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import lavps
from lavps.cli import main
from support.checkpoints import SIDE, WRITERS, write_all, write_latent
from support.other_libraries import Azula, Masking, shrink
from support.problems import ConvDenoiser, images, network_prior
from support.restoring import picture, save
from support.tables import CHECKPOINTS, OPERATORS

SHAPE = (3, 64, 64)
SHELL = [line for line in OPERATORS if line.startswith("lavps ")]
PYTHON = [line for line in OPERATORS if line not in SHELL]
MY_OPS = "import torch\n\n\ndef blur(x):\n    return torch.nn.functional.avg_pool2d(x, 3, 1, 1)\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that the lines name."""
    folder = tmp_path_factory.mktemp("tables")
    write_all(folder)
    save(folder / "photo.png", picture(8, 8))
    Image.new("L", (8, 8), 255).save(folder / "mask.png")
    np.save(folder / "kernel.npy", np.ones((3, 3)))
    (folder / "my_ops.py").write_text(MY_OPS)
    return folder


@pytest.mark.parametrize("line", CHECKPOINTS)
def test_a_checkpoint_is_a_prior_in_one_line(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    names: dict[str, Any] = {
        "lavps": lavps,
        "azula_denoiser": Azula(),
        "deepinv_denoiser": shrink,
        "module": ConvDenoiser(3),
    }
    exec(line, names)
    prior = names["prior"]
    foreign = "load_prior" in line and "zoo/" not in line
    assert len(capsys.readouterr().err.splitlines()) == foreign  # one line says what was found
    if foreign and not any(word in line for word in ("diffusion", "invfusion")):  # whose files do not say it
        assert prior.image_shape == (3, SIDE, SIDE)
    latent = isinstance(prior, lavps.priors.LatentPrior)
    shape = prior.latent_shape((3, SIDE, SIDE)) if latent else (3, SIDE, SIDE)
    problem = lavps.InverseProblem(images(2, shape), lavps.operators.Identity(), lavps.GaussianNoise(0.1))
    samples = lavps.MGDM(prior, num_steps=3).sample(problem).samples
    assert samples is not None
    assert samples.shape == (2, 1, *shape)


def names_of_operators() -> dict[str, Any]:
    x = images(2, SHAPE)
    full, kernel = torch.ones(1, *SHAPE), torch.full((3, 3), 1 / 9)
    return {
        "lavps": lavps,
        "noise": lavps.GaussianNoise(0.05),
        "x": x,
        "mask": (x[0, :1] > 0).float(),
        "kernel": kernel,
        "function": torch.tanh,
        "module": nn.AvgPool2d(2),
        "simulator": np.tanh,
        "its_vjp": lambda x, v: v / np.cosh(x) ** 2,
        "physics": Masking(full, 0.05),
        "sampled": torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.5,
        "coils": torch.ones(4, 64, 64, dtype=torch.complex64),
        "operator": lavps.operators.AveragePool(4),
    }


def measurement_for(line: str, names: dict[str, Any]) -> Tensor:
    """What the operator of a line makes of known images."""
    x: Tensor = names["x"]
    if "MRI" in line:
        return lavps.operators.MRI(names["sampled"], names["coils"], complex_image=True)(x[:, :2])
    if "AveragePool" in line or "DecodedOperator" in line:
        return names["operator"](x)
    if "module" in line:
        return names["module"](x)
    return (x + 1) / 2 if "Rescaled" in line else x


@pytest.mark.parametrize("line", PYTHON)
def test_an_operator_is_a_problem_in_one_line(line: str, tmp_path: Path) -> None:
    names = names_of_operators()
    if "latent_prior" in line:
        write_latent(tmp_path)
        names["latent_prior"] = lavps.load_prior(tmp_path)
    names["y"] = measurement_for(line, names)
    exec(line, names)
    problem = names["problem"]
    prior = names.get("latent_prior") or network_prior(channels=problem.image_shape[0])
    samples = lavps.MGDM(prior, num_steps=3).sample(problem).samples
    assert samples is not None
    assert samples.shape == (2, 1, *problem.image_shape)
    leaf = samples[:, 0].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(problem.log_likelihood(leaf).sum(), leaf)
    assert float(gradient.abs().sum()) > 0


@pytest.mark.parametrize("line", SHELL)
def test_a_file_is_restored_in_one_line(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    main([*shlex.split(line)[1:], "--overwrite"])  # the lines share a folder
    restored = Image.open(place / "restored" / "photo.png")
    assert restored.size == ((32, 32) if "sr4" in line else (8, 8))


@pytest.mark.parametrize("name", WRITERS)
def test_every_checkpoint_restores_a_file(
    name: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """--prior takes what load_prior takes; replay and info know it too."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "photo.png", picture(4, 4))
    label = ["--label", "7"] if name == "256x256_diffusion.pt" else []
    prior = ["--prior", str(place / name)]
    budget = ["--budget", "1ms"]  # the fewest steps
    main(
        ["restore", "photo.png", "--task", "sr4", "--noise", "0.05", *prior, *label, *budget, "-o", "out.png"]
    )
    assert Image.open("out.png").size == (16, 16)
    main(["replay", "out.json"])
    assert "identical" in capsys.readouterr().out
    main(["info", str(place / name), *label])
    assert "A prior" in capsys.readouterr().out


def test_the_tables_are_complete() -> None:
    for word in ("zoo", "ddpm", "ldm", "diffusion_uncond.pt", "edm-", "edm2-", "safetensors", "invfusion"):
        assert any(word in line for line in CHECKPOINTS), word
    for word in ("AzulaPrior", "from_deepinv", "NetworkPrior", "EDMPrior"):
        assert any(word in line for line in CHECKPOINTS), word
    for word in (
        "function",
        "module",
        "from_numpy",
        "physics",
        "MRI",
        "--mask",
        "--kernel",
        "--task",
        ".py:",
    ):
        assert any(word in line for line in OPERATORS), word
