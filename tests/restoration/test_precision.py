"""Precision and compilation of the prior's network: near float32, recorded, replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.amortization.loading import prior_hash
from lavps.apps.bulk.recipe import Recipe
from lavps.cli import main
from lavps.priors.precision import Autocast, Precision
from lavps.restoration import MeasurementSpec, RestorationConfig
from support.restoring import picture, save, write_prior

ZOO = Path(__file__).parents[2] / "zoo" / "synthfaces64"


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("models") / "prior", front=False)


def decibels(x: Tensor, truth: Tensor) -> Tensor:
    return 10.0 * (4.0 / (x - truth).square().flatten(1).mean(1)).log10()


def test_bfloat16_costs_less_than_a_tenth_of_a_decibel() -> None:
    full, half = lavps.load_prior(ZOO), lavps.load_prior(ZOO, precision="bf16")
    assert isinstance(half.network, Autocast)  # type: ignore[attr-defined]
    assert prior_hash(half) == prior_hash(full)
    unknown = lavps.InverseProblem(
        torch.zeros(2, 3, 64, 64), lavps.operators.Identity(), lavps.GaussianNoise(1.0)
    )
    truth = lavps.DDIM(full, num_steps=8).sample(unknown).samples[:, 0]
    problem = lavps.InverseProblem.simulate(truth, lavps.operators.AveragePool(4), lavps.GaussianNoise(0.05))
    ours, theirs = (
        decibels(lavps.WienerPIR(one, num_steps=8).sample(problem).samples[:, 0], truth)
        for one in (half, full)
    )
    assert not torch.equal(ours, theirs)
    assert (ours - theirs).abs().max() < 0.1, (ours, theirs)


def test_the_precision_is_recorded_and_replayed(
    prior: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(tmp_path / "photo.png", picture(8, 8))
    words = ["restore", str(file), "--task", "denoise", "--noise", "0.05", "--prior", str(prior)]
    words += ["--quality", "fast"]
    digests = set()
    for precision in ("fp32", "bf16"):
        main([*words, "--precision", precision, "--output", str(tmp_path / precision)])
        manifest = json.loads((tmp_path / precision / "photo.json").read_text())
        assert (manifest["sampling"]["precision"], manifest["sampling"]["compiled"]) == (precision, False)
        digests.add(manifest["result"]["samples_sha256"])
        capsys.readouterr()
        main(["replay", str(tmp_path / precision / "photo.json")])
        assert "identical" in capsys.readouterr().out
    assert len(digests) == 2


def test_a_bulk_run_in_another_precision_has_other_keys(prior: Path) -> None:
    def key(precision: Precision, compiled: bool = False) -> str:
        spec = MeasurementSpec("denoise", 0.05)
        job = RestorationConfig(str(prior), measuring=spec, precision=precision, compiled=compiled)
        return Recipe.from_config(job).key("0" * 64)

    assert len({key("fp32"), key("bf16"), key("fp16")}) == 3
    assert key("fp32", compiled=True) == key("fp32")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision"):
        lavps.load_prior(ZOO, precision="fp8")  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_compiled_network_gives_the_same_image(prior: Path) -> None:
    plain, fast = lavps.load_prior(prior), lavps.load_prior(prior, compiled=True)
    x, t = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor(0.5).double()
    torch.testing.assert_close(fast.denoise(x, t), plain.denoise(x, t), atol=1e-4, rtol=1e-4)
    assert prior_hash(fast) == prior_hash(plain)
