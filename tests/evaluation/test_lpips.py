from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from lavps.evaluation import LPIPS, ImageBatch


def pictures(batch: int, seed: int, size: int = 64, channels: int = 3) -> ImageBatch:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(batch, channels, 9, 9, generator=generator)
    return ImageBatch.from_tensor(nn.functional.interpolate(coarse, size=(size, size), mode="bilinear"))


@pytest.fixture(scope="module")
def lpips(weights: dict[str, torch.Tensor]) -> LPIPS:
    return LPIPS.from_weights(weights)


def test_tensors_are_converted(lpips: LPIPS) -> None:
    a, b = pictures(2, seed=0), pictures(2, seed=1)
    torch.testing.assert_close(lpips(a.to_tensor(), b.to_tensor()), lpips(a, b), atol=0, rtol=0)


def alexnet(weights: dict[str, torch.Tensor]) -> nn.Sequential:
    """AlexNet's features as its authors list them."""
    network = nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )
    features = {name: tensor for name, tensor in weights.items() if name.startswith("features")}
    network.load_state_dict({name.removeprefix("features."): tensor for name, tensor in features.items()})
    return network


def straightforward(weights: dict[str, torch.Tensor], a: ImageBatch, b: ImageBatch) -> list[float]:
    """The definition, image by image and position by position."""
    network, totals = alexnet(weights), []
    for pair in zip(a.pixels, b.pixels, strict=True):
        x = torch.stack(pair).float() / 255 * 2 - 1
        x = (x - torch.tensor([-0.030, -0.088, -0.188])[:, None, None]) / torch.tensor([0.458, 0.448, 0.450])[
            :, None, None
        ]
        total, level = 0.0, 0
        for layer in network:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                f, g = (row.flatten(1).T for row in x)  # (positions, channels)
                f, g = (row / row.norm(dim=1, keepdim=True) for row in (f, g))
                head = weights[f"lin{level}.model.1.weight"].flatten()
                total += float(((f - g).square() @ head).mean())
                level += 1
        totals.append(total)
    return totals


@torch.no_grad()
def test_the_distance_is_its_definition(lpips: LPIPS, weights: dict[str, torch.Tensor]) -> None:
    a, b = pictures(3, 1), pictures(3, 2)
    expected = straightforward(weights, a, b)
    assert min(expected) > 0.01
    assert lpips(a, b).tolist() == pytest.approx(expected, rel=1e-4)


def test_equal_images_are_at_distance_zero_and_others_are_not(lpips: LPIPS) -> None:
    a, b = pictures(2, 1), pictures(2, 2)
    assert lpips(a, a).tolist() == [0, 0]
    assert (lpips(a, b) > 0).all()


def test_the_distance_is_symmetric(lpips: LPIPS) -> None:
    a, b = pictures(2, 1), pictures(2, 2)
    torch.testing.assert_close(lpips(a, b), lpips(b, a))


def test_a_batch_is_as_many_single_images_whatever_the_chunks(lpips: LPIPS) -> None:
    count = lpips.chunk + 3
    a, b = pictures(count, 1), pictures(count, 2)
    single = torch.cat([lpips(a[i : i + 1], b[i : i + 1]) for i in range(count)])
    assert lpips(a, b).shape == (count,)
    torch.testing.assert_close(lpips(a, b), single)


def test_a_grey_image_is_one_with_equal_channels(lpips: LPIPS) -> None:
    a, b = pictures(2, 1, channels=1), pictures(2, 2, channels=1)
    colour = [ImageBatch(grey.pixels.repeat(1, 3, 1, 1)) for grey in (a, b)]
    torch.testing.assert_close(lpips(a, b), lpips(*colour))


def test_no_gradient_is_kept(lpips: LPIPS, weights: dict[str, torch.Tensor]) -> None:
    trained = LPIPS.from_weights({name: tensor.clone().requires_grad_() for name, tensor in weights.items()})
    assert not trained(pictures(1, 1), pictures(1, 2)).requires_grad
    assert not any(layer.requires_grad for layer in trained.features(pictures(1, 1)))


def test_the_distance_of_tensors_is_differentiable(lpips: LPIPS) -> None:
    a, b = (batch.to_tensor() for batch in (pictures(2, 1), pictures(2, 2)))
    a.requires_grad_()
    distances = lpips.distance(a, b)
    torch.testing.assert_close(distances.detach(), lpips(pictures(2, 1), pictures(2, 2)))
    (gradient,) = torch.autograd.grad(distances.sum(), a)
    moved = lpips.distance(a - 0.1 * gradient / gradient.abs().max(), b)
    assert (moved < distances).all()


def test_the_smallest_image_is_31_pixels_a_side(lpips: LPIPS) -> None:
    assert lpips(pictures(1, 1, 31), pictures(1, 2, 31)) > 0
    with pytest.raises(ValueError, match="at least 31 pixels"):
        lpips(pictures(1, 1, 30), pictures(1, 2, 30))
    with pytest.raises(ValueError, match="grey or RGB"):
        lpips(pictures(1, 1, channels=4), pictures(1, 2, channels=4))
    with pytest.raises(ValueError, match="one by one"):
        lpips(pictures(1, 1), pictures(2, 1))


def test_the_file_is_found_by_path_or_by_variable(
    weights: dict[str, torch.Tensor], lpips: LPIPS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "alex.safetensors"
    save_file(weights, path)
    a, b = pictures(1, 1), pictures(1, 2)
    assert LPIPS.load(path)(a, b) == lpips(a, b)
    monkeypatch.setenv("LAVPS_LPIPS", str(path))
    assert LPIPS.load()(a, b) == lpips(a, b)


def test_the_authors_names_are_understood(weights: dict[str, torch.Tensor], lpips: LPIPS) -> None:
    slices = {0: 1, 3: 2, 6: 3, 8: 4, 10: 5}
    theirs = {"scaling_layer.shift": torch.zeros(1, 3, 1, 1)}
    for name, tensor in weights.items():
        place = int(name.split(".")[1]) if name.startswith("features") else None
        renamed = name if place is None else name.replace("features", f"net.slice{slices[place]}")
        theirs[renamed] = tensor
    a, b = pictures(1, 1), pictures(1, 2)
    assert LPIPS.from_weights(theirs)(a, b) == lpips(a, b)


def test_without_weights_the_error_says_how_to_get_them(
    weights: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAVPS_LPIPS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"LAVPS_LPIPS.*save_model"):
        LPIPS.load()
    with pytest.raises(FileNotFoundError, match="is not a file"):
        LPIPS.load(tmp_path / "nothing.safetensors")
    with pytest.raises(KeyError, match=r"lin4\.model\.1\.weight"):
        LPIPS.from_weights({name: t for name, t in weights.items() if not name.startswith("lin4")})


@pytest.mark.skipif(
    not (os.environ.get("LAVPS_LPIPS") and os.environ.get("LAVPS_DATA")),
    reason="needs LPIPS's weights (LAVPS_LPIPS) and its example images (lpips_check/ in LAVPS_DATA)",
)
def test_the_authors_example_images_have_the_authors_distances() -> None:
    def example(name: str) -> ImageBatch:
        with Image.open(Path(os.environ["LAVPS_DATA"]) / "lpips_check" / f"ex_{name}.png") as image:
            return ImageBatch(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None])

    lpips = LPIPS.load()
    assert float(lpips(example("ref"), example("p0"))) == pytest.approx(0.7219, abs=5e-5)
    assert float(lpips(example("ref"), example("p1"))) == pytest.approx(0.1376, abs=5e-5)
