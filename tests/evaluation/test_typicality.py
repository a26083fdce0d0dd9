"""Typicality: images of another kind than the reference are named, images of its kind are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.cli import main
from lavps.data_step import Stationary
from lavps.evaluation.checks import health
from lavps.evaluation.typicality import REFERENCE, TypicalityReference
from support.restoring import picture, save, write_prior

SIDE = 8


def smooth(count: int, seed: int) -> Tensor:
    """Images of a stationary process, with the spectrum of photographs."""
    noise = torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return Stationary(0.15, 3.0).product(torch.tensor(80.0), noise, 0.5)(noise).clamp(-1, 1)


@pytest.fixture(scope="module")
def prior() -> lavps.GaussianPrior:
    images = smooth(2000, 1).flatten(1).double()
    covariance = torch.cov(images.T) + 1e-4 * torch.eye(images.shape[1], dtype=torch.float64)
    return lavps.GaussianPrior(torch.zeros(3, SIDE, SIDE), covariance)


@pytest.fixture(scope="module")
def reference(prior: lavps.GaussianPrior) -> TypicalityReference:
    return TypicalityReference.measure(prior, smooth(200, 2), "hash")


def test_the_limits_of_few_images_hold_for_new_ones(prior: lavps.GaussianPrior) -> None:
    # Distances from a fit that includes the image itself would be smaller: 95 % limits that 29 % exceed.
    new, exceeded = smooth(200, 3), []
    for seed in range(10):
        reference = TypicalityReference.measure(prior, smooth(24, 10 + seed), "hash")
        exceeded.append(float((reference.distances(prior, new) > reference.unusual).double().mean()))
    assert sum(exceeded) / 10 < 0.08


def test_images_of_the_kind_are_typical(prior: lavps.GaussianPrior, reference: TypicalityReference) -> None:
    distances = reference.distances(prior, smooth(200, 3))
    assert float((distances > reference.unusual).double().mean()) < 0.12
    assert float((distances > reference.rare).double().mean()) < 0.06
    assert not reference.is_unlike(distances)


@pytest.mark.parametrize("kind", ["speckle", "noise", "blurred", "flat"])
def test_other_images_are_not(prior: lavps.GaussianPrior, reference: TypicalityReference, kind: str) -> None:
    images, generator = smooth(9, 4), torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, generator=generator)
    other = {
        "speckle": images + 0.3 * noise,
        "noise": 0.4 * noise,
        "blurred": torch.nn.functional.avg_pool2d(torch.nn.functional.pad(images, [2] * 4, "reflect"), 5, 1),
        "flat": 0.0 * images + 0.3,
    }[kind]
    distances = reference.distances(prior, other)
    assert reference.is_unlike(distances)
    assert reference.is_unlike(distances.median().reshape(1))


def test_distances_belong_to_an_image(prior: lavps.GaussianPrior, reference: TypicalityReference) -> None:
    images = smooth(20, 5)
    torch.testing.assert_close(
        reference.distances(prior, images)[7:8], reference.distances(prior, images[7:8]), atol=1e-4, rtol=0
    )


def test_a_reference_is_read_for_its_weights_only(reference: TypicalityReference, tmp_path: Path) -> None:
    assert TypicalityReference.read(tmp_path, "hash") is None
    reference.write(tmp_path)
    assert TypicalityReference.read(tmp_path, "hash") == reference
    assert TypicalityReference.read(tmp_path, "other") is None
    for damaged in ("[]", "{}", json.dumps({"mean": [1], "precision": [[1, 2]]})):
        (tmp_path / REFERENCE).write_text(damaged)
        with pytest.raises(ValueError, match="is no reference of typicality"):
            TypicalityReference.read(tmp_path, "hash")


def test_too_few_images_are_no_reference(prior: lavps.GaussianPrior) -> None:
    with pytest.raises(ValueError, match="at least 20 reference images, got 5"):
        TypicalityReference.measure(prior, smooth(5, 0), None)


@pytest.mark.parametrize(
    ("distances", "words"),
    [
        ([3.6], "like the images of the prior (distance 3.6; 99% of them are within 4.4)"),
        ([5.0], "unusual among the images of the prior (distance 5; 99% of them are within 4.4)"),
        ([7.0], "unlike the images of the prior (distance 7; 99% of them are within 4.4)"),
        ([1.0, 3.4, 3.6, 1.0] * 2, "unlike the images of the prior (4 of 8 windows are farther from their"),
        (
            [1.0, 9.0, 2.0, 1.0, 1.0],
            "like the images of the prior (1 of 5 windows are farther from their mean",
        ),
    ],
)
def test_words_and_numbers_agree(reference: TypicalityReference, distances: list[float], words: str) -> None:
    given = replace(reference, unusual=3.3, rare=4.4)
    found = given.describe(torch.tensor(distances))
    assert found.startswith(words)
    assert given.is_unlike(torch.tensor(distances)) == found.startswith("unlike")


@pytest.mark.parametrize(
    ("value", "share", "words"),
    [
        (1.0, 1.0, "finite, and within the range of pixels"),
        (3.0, 0.01, "finite, and within the range of pixels"),
        (3.0, 0.5, "out of range: 50% of the values are far outside [-1, 1]."),
        (float("nan"), 0.01, "not finite: the sampler has diverged."),
    ],
)
def test_health_is_named(value: float, share: float, words: str) -> None:
    samples = torch.zeros(2, 1, 10, 10)
    samples.view(-1)[: round(200 * share)] = value
    assert health(samples).startswith(words)


def test_the_commands_measure_and_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_prior(tmp_path / "prior", front=False)
    (tmp_path / "data").mkdir()
    for number, image in enumerate(smooth(24, 0)):
        levels = (image * 127.5 + 127.5).round().byte().permute(1, 2, 0).numpy()
        save(tmp_path / "data" / f"{number}.png", levels)
    file = save(tmp_path / "noise.png", picture(20, 20))
    words = ["restore", str(file), "--task", "denoise", "--noise", "0.1", "--prior", str(folder)]
    words += ["--quality", "fast", "--device", "cpu", "--overwrite", "-o", str(tmp_path / "out")]
    main(words)
    said = capsys.readouterr().out
    assert "  typicality: not known for this prior" in said
    assert "  health: " in said
    weights = (folder / "model.safetensors").read_bytes()
    main(["train", "reference", "--prior", str(folder), "--data", str(tmp_path / "data"), "--device", "cpu"])
    assert "24 images are measured" in capsys.readouterr().out
    assert (folder / "model.safetensors").read_bytes() == weights
    main(words)
    said = capsys.readouterr().out
    found = said.split("  typicality: unlike the images of the prior (")[1]
    far = int(found.split(" of 9 windows are farther from their mean than 95% of them)")[0])
    assert 3 <= far <= 9
    assert "give a prior of such images, such as --prior photos64 for photographs" in said
    result = json.loads((tmp_path / "out" / "noise.json").read_text())["result"]
    assert result["typicality"].startswith("unlike")
