"""The pages' lines for deepinv and azula, with objects of these libraries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("azula")
pytest.importorskip("deepinv")

import azula.denoise
import azula.noise
import deepinv
from azula.linalg.covariance import DiagonalCovariance

import lavps
from support.problems import network_prior
from support.tables import CHECKPOINTS, OPERATORS, about

SHAPE = (3, 16, 16)
X = 0.4 * torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
DENOISERS: dict[str, Any] = {
    "azula_denoiser": lambda: azula.denoise.GaussianDenoiser(
        torch.zeros(SHAPE), DiagonalCovariance(torch.full(SHAPE, 0.2)), azula.noise.VPSchedule()
    ),
    "deepinv_denoiser": lambda: deepinv.models.DRUNet(3, 3, nc=[4, 8, 8, 8], nb=1, pretrained=None),
}
PHYSICS: dict[str, Any] = {
    "blur": lambda: deepinv.physics.Blur(torch.full((1, 1, 3, 3), 1 / 9), padding="circular"),
    "inpainting": lambda: deepinv.physics.Inpainting(SHAPE, mask=0.6),
    "downsampling": lambda: deepinv.physics.Downsampling(SHAPE, filter="gaussian", factor=2),
}


@pytest.mark.parametrize("name", DENOISERS)
def test_a_denoiser_is_a_prior_in_one_line(name: str) -> None:
    (line,) = about(CHECKPOINTS, name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        denoiser: nn.Module = DENOISERS[name]()
    names: dict[str, Any] = {"lavps": lavps, name: denoiser}
    exec(line, names)
    problem = lavps.InverseProblem(X, lavps.operators.Identity(), lavps.GaussianNoise(0.1))
    samples = lavps.MGDM(names["prior"], num_steps=4).sample(problem).samples
    assert samples is not None
    assert samples.shape == (2, 1, *SHAPE)


@pytest.mark.parametrize("line", about(OPERATORS, "physics"))
@pytest.mark.parametrize("kind", PHYSICS)
def test_a_physics_is_a_problem_in_one_line(kind: str, line: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        physics = PHYSICS[kind]()
        physics.set_noise_model(deepinv.physics.GaussianNoise(0.05))
        y = physics((X + 1) / 2 if "Rescaled" in line else X)
    names: dict[str, Any] = {"lavps": lavps, "physics": physics, "y": y}
    exec(line, names)
    problem = names["problem"]
    assert problem.image_shape == SHAPE
    samples = lavps.MGDM(network_prior(channels=3), num_steps=4).sample(problem).samples
    assert samples is not None
    assert float(problem.chi_square(X).mean()) < 1.5  # the truth explains it: range and noise are right
