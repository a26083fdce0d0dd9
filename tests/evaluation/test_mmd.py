from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import lavps.evaluation.mmd as module
from lavps.evaluation import (
    LPIPS,
    CLIPEmbedding,
    ImageBatch,
    LPIPSEmbedding,
    SetDistance,
    image_mmd,
    mmd_difference,
)
from lavps.evaluation.mmd import mmd

PUBLISHED = "openai/clip-vit-large-patch14-336"


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(batch: int, seed: int = 0, height: int = 40, width: int = 40, channels: int = 3) -> ImageBatch:
    return ImageBatch.from_tensor(0.4 * normal(batch, channels, height, width, seed=seed))


def pair_by_pair(a: torch.Tensor, b: torch.Tensor, bandwidth: float) -> float:
    """1000 MMD^2 with every pair written out, the diagonal included."""

    def mean(u: torch.Tensor, v: torch.Tensor) -> float:
        return float(
            np.mean([math.exp(-float((p - q) @ (p - q)) / (2 * bandwidth**2)) for p in u for q in v])
        )

    return 1000 * (mean(a, a) + mean(b, b) - 2 * mean(a, b))


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.5, 20))
def test_mmd_is_the_v_statistic_pair_by_pair(n: int, m: int, bandwidth: float) -> None:
    a, b = normal(n, 3, seed=n), 1 + normal(m, 3, seed=10 + m)
    assert mmd(a, b, bandwidth) == pytest.approx(pair_by_pair(a, b, bandwidth), abs=1e-8)


def test_the_defaults_are_those_of_cmmd() -> None:
    a, b = normal(5, 8, seed=1), normal(7, 8, seed=2)
    a, b = a / a.norm(dim=1, keepdim=True), b / b.norm(dim=1, keepdim=True)
    assert mmd(a.float(), b.float()) == pytest.approx(pair_by_pair(a, b, 10.0), rel=1e-4)
    apart = mmd(torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]]))
    assert apart == pytest.approx(2000 * (1 - math.exp(-4 / 200)))


def test_mmd_of_two_normal_laws_tends_to_its_closed_form() -> None:
    n, dimension, shift, s = 3000, 2, 0.8, 1.5
    factor = (s**2 / (s**2 + 2)) ** (dimension / 2)
    expected = 2 * factor * (1 - math.exp(-(shift**2) / (2 * (s**2 + 2))))
    offset = torch.tensor([shift, 0.0], dtype=torch.float64)
    value = mmd(normal(n, dimension, seed=1), normal(n, dimension, seed=2) + offset, s, scale=1.0)
    assert value == pytest.approx(expected, rel=0.12)


def test_a_set_is_at_distance_zero_from_itself_in_any_order() -> None:
    a = normal(20, 4)
    assert mmd(a, a.flip(0), 1.0) == pytest.approx(0, abs=1e-9)
    assert mmd(a, a + 0.5, 1.0) > 1


def test_rows_at_a_time_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = normal(11, 4, seed=1), normal(9, 4, seed=2)
    whole = mmd(a, b, 2.0)
    monkeypatch.setattr(module, "_ROWS", 4)
    assert mmd(a, b, 2.0) == pytest.approx(whole, rel=1e-10)


@pytest.mark.parametrize("shapes", [((3, 2), (3, 4)), ((3,), (3,)), ((0, 2), (3, 2))])
def test_sets_that_cannot_be_compared_are_refused(shapes) -> None:
    with pytest.raises(ValueError, match="embeddings"):
        mmd(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


def test_the_difference_follows_the_images_drawn() -> None:
    truth = normal(12, 3)
    a, b = truth + 0.7 * normal(12, 3, seed=1), 0.5 * truth
    rows = torch.randint(0, 12, (4, 12), generator=torch.Generator().manual_seed(0))
    expected = [mmd(a[row], truth[row], 1.3) - mmd(b[row], truth[row], 1.3) for row in rows]
    assert mmd_difference(a, b, truth, 1.3)(rows).tolist() == pytest.approx(expected, abs=1e-8)
    with pytest.raises(ValueError, match="one embedding per image"):
        mmd_difference(a, b[:5], truth)


def small_lpips() -> LPIPS:
    """AlexNet's layers with a few channels each."""
    widths, sizes, layers = (3, 6, 5, 4, 7, 8), (11, 5, 3, 3, 3), (0, 3, 6, 8, 10)
    weights = {}
    for level, (layer, size) in enumerate(zip(layers, sizes, strict=True)):
        kernel = normal(widths[level + 1], widths[level], size, size, seed=level)
        weights[f"features.{layer}.weight"] = kernel / kernel[0].numel() ** 0.5
        weights[f"features.{layer}.bias"] = 0.1 * normal(widths[level + 1], seed=level)
        weights[f"lin{level}.model.1.weight"] = normal(1, widths[level + 1], 1, 1, seed=level).abs()
    return LPIPS.from_weights(weights)


def test_alexnets_embedding_is_its_normalised_features_averaged_over_positions() -> None:
    lpips, images = small_lpips(), pictures(20)
    embedded = LPIPSEmbedding(lpips)(images)
    assert embedded.shape == (20, 6 + 5 + 4 + 7 + 8)
    layers = list(lpips.features(images[3:4]))
    expected = torch.cat([layer[0].flatten(1).mean(1) for layer in layers])
    torch.testing.assert_close(embedded[3], expected)
    assert float(embedded.std(0).max()) > 1e-3, "images should be told apart"


def test_a_number_carries_the_name_of_its_embedding() -> None:
    embedding, a, b = LPIPSEmbedding(small_lpips()), pictures(6, 1), pictures(4, 2)
    result = image_mmd(embedding, a, b)
    assert result == SetDistance("MMD-Alex", mmd(embedding(a), embedding(b), 1.0), (6, 4))
    clip = CLIPEmbedding(pooled_colours, "MMD-colours", size=8)
    assert image_mmd(clip, a, b).name == "MMD-colours"
    assert image_mmd(clip, a, b).value == mmd(clip(a), clip(b), 10.0, 1000.0)


def pooled_colours(pixel_values: torch.Tensor) -> SimpleNamespace:
    """Stands for CLIP: sees the same input, returns its mean colour and a corner."""
    corner = pixel_values[:, :, 0, 0]
    return SimpleNamespace(image_embeds=torch.cat([pixel_values.mean((2, 3)), corner], dim=1))


@pytest.mark.parametrize("channels", [1, 3])
def test_clip_sees_the_centred_square_resized_by_pillow_in_its_own_units(channels: int) -> None:
    seen = []

    def record(pixel_values: torch.Tensor) -> SimpleNamespace:
        seen.append(pixel_values)
        return pooled_colours(pixel_values)

    images = pictures(3, 5, height=10, width=16, channels=channels)
    embedded = CLIPEmbedding(record, "MMD-colours", size=14, chunk=2)(images)
    assert [len(chunk) for chunk in seen] == [2, 1]
    square = images.pixels[2, :, :, 3:13].expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    resized = np.asarray(Image.fromarray(square).resize((14, 14), Image.Resampling.BICUBIC)) / 255
    expected = (resized - [0.48145466, 0.4578275, 0.40821073]) / [0.26862954, 0.26130258, 0.27577711]
    np.testing.assert_allclose(seen[1][0].permute(1, 2, 0).numpy(), expected, atol=1e-5)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))


class FakeVisionModel:
    """What the loader asks of the model class."""

    config = SimpleNamespace(image_size=12)

    @classmethod
    def from_pretrained(cls, source: str) -> FakeVisionModel:
        return cls()

    def eval(self) -> FakeVisionModel:
        return self

    def to(self, device: str) -> FakeVisionModel:
        return self


@pytest.mark.parametrize(
    ("source", "given_name", "name"),
    [
        (PUBLISHED, None, "CMMD"),
        ("openai/clip-vit-base-patch32", None, "MMD-clip-vit-base-patch32"),
        ("models/my-clip", None, "MMD-my-clip"),
        ("models/my-copy", "CMMD", "CMMD"),
    ],
)
def test_only_the_published_weights_are_called_cmmd(
    source: str, given_name: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(CLIPVisionModelWithProjection=FakeVisionModel)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    embedding = CLIPEmbedding.load(source, given_name)
    assert (embedding.name, embedding.size, embedding.bandwidth) == (name, 12, 10.0)


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"lavps\[clip\]"):
        CLIPEmbedding.load()


def test_clips_architecture_gives_unit_vectors() -> None:
    transformers = pytest.importorskip("transformers", reason="the CLIP architecture comes with transformers")
    config = transformers.CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        projection_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    model = transformers.CLIPVisionModelWithProjection(config).eval()
    embedded = CLIPEmbedding(model, "MMD-random", size=28)(pictures(3))
    assert embedded.shape == (3, 24)
    torch.testing.assert_close(embedded.norm(dim=1), torch.ones(3))
    assert not torch.allclose(embedded[0], embedded[1])
