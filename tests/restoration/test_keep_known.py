"""Measurements without noise: known pixels come back unchanged, and no edge shows where a hole was."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import lavps
from lavps.cli import main
from lavps.data_step import Stationary
from lavps.operators import AveragePool, Identity, Mask, Operator
from lavps.restoration.spec import MeasurementSpec
from lavps.restoration.stacking import batch_key, stacked
from lavps.samplers import Sampler
from support.restoring import picture, save, write_model, write_prior

SHAPE = (1, 16, 16)


def smooth_prior() -> lavps.GaussianMixturePrior:
    """Smooth images of which every posterior is known."""
    like = torch.zeros(256, *SHAPE, dtype=torch.float64)
    basis = torch.eye(256, dtype=torch.float64).reshape(256, *SHAPE)
    covariance = Stationary(0.25, 3.0).product(torch.tensor(torch.inf), like)(basis).flatten(1)
    return lavps.GaussianPrior(torch.zeros(SHAPE), 0.5 * (covariance + covariance.T), dtype=torch.float32)


KNOWN = torch.ones(16, 16, dtype=torch.bool)
KNOWN[4:12, 4:12] = False


def edge(x: Tensor) -> float:
    """Root mean square step across the border of the hole, relative to that inside the hole."""
    border, inside = [], []
    for axis in (-1, -2):
        low, high = (KNOWN.narrow(axis, start, 15) for start in (0, 1))
        step = (x.narrow(axis, 1, 15) - x.narrow(axis, 0, 15)).double().square()
        border.append(step[..., low != high].flatten())
        inside.append(step[..., ~low & ~high].flatten())
    return float((torch.cat(border).mean() / torch.cat(inside).mean()).sqrt())


@pytest.mark.parametrize(
    ("sampler", "largest"),
    [
        (lavps.WienerPIR(smooth_prior()), 1.15),
        (lavps.WienerPIR(smooth_prior(), draw="full"), 1.05),
        (lavps.DiffPIR(smooth_prior(), num_steps=100), 1.3),
    ],
    ids=["WienerPIR", "WienerPIR-full", "DiffPIR"],
)
def test_known_pixels_are_kept_without_an_edge(sampler: Sampler, largest: float) -> None:
    prior = smooth_prior()
    problem = lavps.InverseProblem.simulate(prior.sample(4, seed=1), Mask(KNOWN), lavps.Noiseless())
    kept = sampler.sample(problem, 4).samples
    free = sampler.sample(
        lavps.InverseProblem(problem.y, problem.operator, problem.noise, keep_known=False), 4
    ).samples
    assert kept is not None
    assert free is not None
    assert torch.equal(kept[..., KNOWN], problem.y[:, None].expand_as(kept)[..., KNOWN])
    assert torch.equal(kept[..., ~KNOWN], free[..., ~KNOWN])
    # The edge is that of the sampler (exact samples: 1.02), and keeping known pixels adds none.
    assert edge(kept) < largest
    assert edge(kept) == pytest.approx(edge(free), rel=0.01)
    assert float((kept - free).abs().max()) < 0.02


@pytest.mark.parametrize("operator", [AveragePool(4), Identity()], ids=repr)
@pytest.mark.parametrize("make", [lavps.DiffPIR, lavps.WienerPIR])
def test_block_means_and_pixels_without_noise_are_met(operator: Operator, make: type) -> None:
    prior = smooth_prior()
    problem = lavps.InverseProblem.simulate(prior.sample(3, seed=1), operator, lavps.Noiseless())
    posterior = make(prior).sample(problem, 4)
    samples = posterior.samples.flatten(0, 1)
    torch.testing.assert_close(operator(samples), problem.repeat(4).y, atol=1e-6, rtol=0)
    exact = torch.stack([one.mean for one in lavps.exact_posterior(prior, problem)])
    assert float((posterior.mean - exact).abs().mean()) < 0.2 * float(prior.std.mean())


def test_every_noise_keeps_known_pixels_if_it_is_wanted() -> None:
    prior, noise = smooth_prior(), lavps.GaussianNoise(0.1)
    y = lavps.InverseProblem.simulate(prior.sample(2, seed=1), Mask(KNOWN), noise).y
    for wanted in (True, False, None):
        problem = lavps.InverseProblem(y, Mask(KNOWN), noise, keep_known=wanted)
        samples = lavps.WienerPIR(prior, num_steps=4).sample(problem, 2, batch_size=1).samples
        same = torch.equal(samples[..., KNOWN], y[:, None].expand_as(samples)[..., KNOWN])
        assert same is (wanted is True)
        assert problem.to(torch.float64).keep_known is wanted
        assert problem.repeat(2)[1].keep_known is wanted
    with pytest.raises(ValueError, match="keep_known needs a mask"):
        lavps.InverseProblem(y, Identity(), noise, keep_known=True)


def test_the_library_takes_noise_0() -> None:
    prior = smooth_prior()
    y = Mask(KNOWN)(prior.sample(1, seed=1))
    found = lavps.restore(y, Mask(KNOWN), prior, noise=0.0, quality="fast")
    assert torch.equal(found.samples[:, 0][..., KNOWN], y[..., KNOWN])


# -- files ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_prior(folder / "prior", front=False)
    write_model(folder / "warm", folder / "prior")
    return folder


def masked(folder: Path, levels: np.ndarray) -> tuple[Path, Path, np.ndarray]:
    """A file, a mask file, and where the mask is white."""
    known = np.ones(levels.shape[:2], bool)
    known[2:5, 3:6] = False
    mask = save(folder / "mask.png", np.where(known, 255, 0).astype(np.uint8))
    return save(folder / "photo.png", levels), mask, known


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_bytes_of_known_pixels_are_unchanged(models: Path, tmp_path: Path, channels: int) -> None:
    file, mask, known = masked(tmp_path, picture(8, 8, channels))
    main(
        ["restore", str(file), "--mask", str(mask), "--noise", "0", "--prior", str(models / "prior"),
         "--output", str(tmp_path / "out"), "--samples", "2", "--device", "cpu"]
    )  # fmt: skip
    before = np.asarray(Image.open(file))
    for name in ("photo-1", "photo-2", "photo-mean"):
        after = np.asarray(Image.open(tmp_path / "out" / f"{name}.png"))
        assert np.array_equal(after[known], before[known])
        assert not np.array_equal(after[~known], before[~known])
    record = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert record["measurement"]["noise"] == 0
    assert record["settings"]["sampler"] == "WienerPIR"
    assert "agrees with the measurement" in record["result"]["verdict"]
    main(["replay", str(tmp_path / "out" / "photo.json")])


@pytest.mark.parametrize(("word", "noise"), [("--keep-known", "0.05"), ("--no-keep-known", "0")])
def test_the_choice_is_recorded_and_replayed(models: Path, tmp_path: Path, word: str, noise: str) -> None:
    file, mask, known = masked(tmp_path, picture(8, 8))
    main(
        ["restore", str(file), "--mask", str(mask), "--noise", noise, word, "--prior",
         str(models / "prior"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    )  # fmt: skip
    record = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert record["measurement"]["keep_known"] is (word == "--keep-known")
    if word == "--keep-known":
        after, before = (np.asarray(Image.open(path)) for path in (tmp_path / "out" / "photo.png", file))
        assert np.array_equal(after[known], before[known])
    main(["replay", str(tmp_path / "out" / "photo.json")])


def test_an_inference_model_is_still_used_at_noise_0(models: Path, tmp_path: Path) -> None:
    file, mask, known = masked(tmp_path, picture(8, 8))
    main(
        ["restore", str(file), "--mask", str(mask), "--noise", "0", "--prior", str(models / "prior"),
         "--inference-model", str(models / "warm"), "--output", str(tmp_path / "out"), "--device", "cpu"]
    )  # fmt: skip
    assert json.loads((tmp_path / "out" / "photo.json").read_text())["result"]["model_forwards"] > 0
    after, before = (np.asarray(Image.open(path)) for path in (tmp_path / "out" / "photo.png", file))
    assert np.array_equal(after[known], before[known])


@pytest.mark.parametrize("task", ["sr4", "denoise"])
def test_samples_agree_with_a_measurement_without_noise(task: str, models: Path, tmp_path: Path) -> None:
    size = 2 if task == "sr4" else 8
    file = save(tmp_path / "photo.png", picture(size, size))
    main(
        ["restore", str(file), "--task", task, "--noise", "0", "--prior", str(models / "prior"),
         "--output", str(tmp_path / "out"), "--device", "cpu"]
    )  # fmt: skip
    result = json.loads((tmp_path / "out" / "photo.json").read_text())["result"]
    assert max(result["chi_square"]) < 1e-6


def test_keep_known_needs_a_mask(tmp_path: Path) -> None:
    file = save(tmp_path / "a.png", picture(4, 4))
    (tmp_path / "mine.py").write_text("from lavps.operators import Identity\nidentity = Identity()\n")
    own = f"{tmp_path / 'mine.py'}:identity"
    with pytest.raises(ValueError, match="--keep-known needs a mask"):
        MeasurementSpec(own, 0.0, keep_known=True).read(file, (3, 4, 4))
    with pytest.raises(ValueError, match="--keep-known needs a mask"):
        MeasurementSpec("sr4", keep_known=True)


def test_measurements_of_degrade_without_noise_are_restored_without(models: Path, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(8, 8))
    main(["degrade", str(file), "--task", "centre-box", "--noise", "0", "--output", str(tmp_path / "y")])
    measured = MeasurementSpec().read(tmp_path / "y" / "photo.npy", (3, 8, 8))
    assert measured.problem.noise == lavps.Noiseless()
    seen = measured.problem.operator.observed(measured.problem.y).bool().expand(1, 3, 8, 8)
    image = torch.from_numpy(np.array(Image.open(file))).permute(2, 0, 1)[None] / 127.5 - 1
    torch.testing.assert_close(measured.problem.y[seen], image[seen])


def test_exact_and_noisy_files_are_not_stacked(tmp_path: Path) -> None:
    file, mask, _ = masked(tmp_path, picture(8, 8))
    exact, noisy, other = (
        MeasurementSpec("inpaint", std, mask).read(file, (3, 8, 8)) for std in (0.0, 0.1, 0.0)
    )
    assert batch_key(exact) != batch_key(noisy)
    assert batch_key(exact) == batch_key(other)
    assert stacked([exact.problem, other.problem]).noise == lavps.Noiseless()
