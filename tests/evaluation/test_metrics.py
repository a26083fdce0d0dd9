from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lavps.evaluation import ImageBatch, crps, energy_score, pixel_coverage, psnr, ssim
from lavps.evaluation.metrics import Images
from lavps.problem import PixelRangeWarning


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(batch: int, seed: int = 0, channels: int = 3, height: int = 24, width: int = 20) -> ImageBatch:
    """Smooth random images with contrast."""
    coarse = normal(batch, channels, 6, 5, seed=seed)
    return ImageBatch.from_tensor(
        0.6 * torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    )


def test_every_level_of_a_file_survives_the_way_through_a_tensor() -> None:
    levels = ImageBatch(torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16))
    assert float(levels.to_tensor().min()) == -1
    assert float(levels.to_tensor().max()) == 1
    torch.testing.assert_close(ImageBatch.from_tensor(levels.to_tensor()).pixels, levels.pixels)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_tensors_are_converted(metric: Callable[[Images, Images], torch.Tensor]) -> None:
    a, b = pictures(2, seed=0), pictures(2, seed=1)
    expected = metric(a, b)
    assert torch.equal(metric(a.to_tensor(), b.to_tensor()), expected)
    assert torch.equal(metric(a, b.to_tensor()), expected)
    assert torch.equal(metric(a.to_tensor()[0], b.to_tensor()[0]), expected[:1])
    with pytest.raises(ValueError, match=r"x / 127.5 - 1 maps \[0, 255\]"):
        metric(a.pixels.float(), b.pixels.float())


def test_tensors_of_another_range_are_reported() -> None:
    a, b = (x.to_tensor() for x in (pictures(1, seed=0), pictures(1, seed=1)))
    with pytest.warns(PixelRangeWarning, match="2 \\* x - 1"):
        psnr((a + 1) / 2, (b + 1) / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        psnr(a, b)
        psnr(a.abs(), b)  # one bright image


def test_images_are_clamped_and_rounded_to_the_nearest_level() -> None:
    x = torch.tensor([-1.7, -1.0, -1.0 + 0.4 / 127.5, -1.0 + 0.6 / 127.5, 0.999, 1.0, 9.0])
    assert ImageBatch.from_tensor(x.reshape(1, 1, 1, 7)).pixels.flatten().tolist() == [
        0,
        0,
        0,
        1,
        255,
        255,
        255,
    ]


def test_what_is_evidently_no_image_in_the_range_is_refused() -> None:
    with pytest.raises(TypeError, match=r"ImageBatch\(pixels\)"):
        ImageBatch.from_tensor(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"127\.5"):
        ImageBatch.from_tensor(torch.full((1, 3, 8, 8), 200.0))
    with pytest.raises(ValueError, match="NaN"):
        ImageBatch.from_tensor(torch.full((1, 3, 8, 8), math.nan))
    with pytest.raises(TypeError, match="from_tensor"):
        ImageBatch(torch.zeros(1, 3, 8, 8))
    with pytest.raises(TypeError, match="shape"):
        ImageBatch.from_tensor(torch.zeros(3, 8, 8))


@given(st.integers(1, 200))
def test_psnr_of_a_constant_error_is_its_size_in_decibels(error: int) -> None:
    a = ImageBatch(torch.full((2, 3, 4, 4), 30, dtype=torch.uint8))
    b = ImageBatch(a.pixels.clone())
    b.pixels[1] += error
    values = psnr(a, b)
    assert values[0] == math.inf
    assert float(values[1]) == pytest.approx(20 * math.log10(255 / error))


def reference_ssim(a: np.ndarray, b: np.ndarray) -> float:
    """SSIM of one channel with SciPy's Gaussian filter, cut to where the window fits."""
    ndimage = pytest.importorskip("scipy.ndimage")

    def mean(x: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(x, 1.5, truncate=3.5)[5:-5, 5:-5]

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mu_a, mu_b = mean(a), mean(b)
    var_a, var_b, cov = mean(a * a) - mu_a**2, mean(b * b) - mu_b**2, mean(a * b) - mu_a * mu_b
    value = (2 * mu_a * mu_b + c1) * (2 * cov + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return float(value.mean())


def test_ssim_agrees_with_scipy() -> None:
    a = pictures(3)
    b = ImageBatch.from_tensor(a.to_tensor() + 0.2 * normal(*a.pixels.shape, seed=5))
    expected = [
        np.mean([reference_ssim(x.double().numpy(), y.double().numpy()) for x, y in zip(*pair, strict=True)])
        for pair in zip(a.pixels, b.pixels, strict=True)
    ]
    assert ssim(a, b).tolist() == pytest.approx(expected, abs=1e-10)
    assert max(expected) < 0.95, "the images should differ"


def test_ssim_is_one_for_equal_images_symmetric_and_falls_with_noise() -> None:
    a = pictures(2)
    noisy = [
        ImageBatch.from_tensor(a.to_tensor() + std * normal(*a.pixels.shape, seed=1)) for std in (0.05, 0.3)
    ]
    torch.testing.assert_close(ssim(a, a), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(ssim(a, noisy[0]), ssim(noisy[0], a))
    assert (ssim(a, noisy[1]) < ssim(a, noisy[0])).all()


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_a_batch_of_images_is_as_many_single_ones(metric) -> None:
    a, b = pictures(35, seed=2), pictures(35, seed=3)
    single = torch.cat([metric(a[i : i + 1], b[i : i + 1]) for i in range(35)])
    assert metric(a, b).shape == (35,)
    torch.testing.assert_close(metric(a, b), single)


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_batches_that_do_not_pair_up_are_refused(metric) -> None:
    with pytest.raises(ValueError, match="one by one"):
        metric(pictures(1), pictures(2))


def test_ssim_refuses_images_smaller_than_its_window() -> None:
    with pytest.raises(ValueError, match="11 pixels"):
        ssim(pictures(1, height=10), pictures(1, height=10))


@given(st.integers(2, 12))
def test_crps_by_sorting_is_crps_by_pairs(count: int) -> None:
    samples, truth = normal(2, count, 1, 3, 2, seed=count), normal(2, 1, 3, 2, seed=50)
    pairs = (samples[:, :, None] - samples[:, None]).abs().sum((1, 2)) / (2 * count * (count - 1))
    expected = ((samples - truth[:, None]).abs().mean(1) - pairs).flatten(1).mean(1)
    torch.testing.assert_close(crps(samples, truth), expected)


@pytest.mark.parametrize("count", [2, 30])
def test_crps_of_a_normal_law_has_its_known_value_for_any_number_of_samples(count: int) -> None:
    y = 0.7
    cdf, density = 0.5 * (1 + math.erf(y / math.sqrt(2))), math.exp(-(y**2) / 2) / math.sqrt(2 * math.pi)
    expected = y * (2 * cdf - 1) + 2 * density - 1 / math.sqrt(math.pi)
    samples, truth = normal(1, count, 1, 300, 300), torch.full((1, 1, 300, 300), y, dtype=torch.float64)
    assert float(crps(samples, truth)) == pytest.approx(expected, abs=0.01)


def test_crps_is_least_for_the_right_spread() -> None:
    truth, samples = normal(1, 1, 150, 150, seed=1), normal(1, 8, 1, 150, 150, seed=2)
    right, narrow, wide = (float(crps(spread * samples, truth)) for spread in (1.0, 0.6, 1.6))
    assert right < narrow
    assert right < wide


@pytest.mark.parametrize("score", [crps, energy_score])
def test_scores_of_one_sample_are_refused(score) -> None:
    with pytest.raises(ValueError, match="at least two"):
        score(normal(1, 1, 1, 2, 2), normal(1, 1, 2, 2))


@pytest.mark.parametrize("count", [2, 40])
@pytest.mark.parametrize("spread", [1.0, 1.7])
def test_energy_score_of_normal_laws_has_its_known_value(count: int, spread: float) -> None:
    """E|x - x*| - E|x - x'| / 2 of vectors x ~ N(0, spread^2 I), x* ~ N(0, I), in 12 dimensions."""
    chi = math.sqrt(2) * math.gamma(6.5) / math.gamma(6)  # mean length of a standard normal vector
    expected = (math.sqrt(1 + spread**2) - 0.5 * math.sqrt(2) * spread) * chi / math.sqrt(12)
    samples, truth = spread * normal(4000, count, 1, 3, 4, seed=3), normal(4000, 1, 3, 4, seed=4)
    scores = energy_score(samples, truth)
    assert scores.shape == (4000,)
    assert float(scores.mean()) == pytest.approx(expected, abs=5 * float(scores.std()) / 4000**0.5)


def test_energy_score_sees_the_correlation_that_crps_does_not() -> None:
    shared = normal(4000, 6, 1, 1, 1, seed=1).expand(-1, -1, -1, 4, 4)
    truth = normal(4000, 1, 1, 1, seed=2).expand(-1, -1, 4, 4)
    independent = normal(4000, 6, 1, 4, 4, seed=3)
    assert float(crps(shared, truth).mean()) == pytest.approx(
        float(crps(independent, truth).mean()), abs=0.03
    )
    assert float(energy_score(shared, truth).mean()) < float(energy_score(independent, truth).mean()) - 0.05


def test_scores_of_an_image_do_not_depend_on_the_batch() -> None:
    samples, truth = normal(3, 5, 2, 4, 4, seed=1), normal(3, 2, 4, 4, seed=2)
    for score in (crps, energy_score):
        alone = torch.cat([score(samples[i : i + 1], truth[i : i + 1]) for i in range(3)])
        assert torch.equal(score(samples, truth), alone)


def test_pixel_coverage_counts_the_pixels_of_every_image_apart() -> None:
    levels = (0.5, 0.9)
    truth, samples = normal(2, 1, 60, 60, seed=1), normal(2, 99, 1, 60, 60, seed=2)
    samples[1] *= 0.3
    shares = pixel_coverage(samples, truth, levels)
    assert shares.shape == (2, 2)
    assert shares[0].tolist() == pytest.approx(levels, abs=0.03)
    assert (shares[1] < torch.tensor([0.3, 0.6])).all()


@pytest.mark.parametrize(
    "metric", [crps, energy_score, lambda samples, truth: pixel_coverage(samples, truth, (0.5,))]
)
def test_samples_that_do_not_belong_to_the_truth_are_refused(metric) -> None:
    with pytest.raises(ValueError, match="samples"):
        metric(normal(2, 5, 1, 4, 4), normal(3, 1, 4, 4))
    with pytest.raises(ValueError, match="samples"):
        metric(normal(2, 5, 1, 4, 4), normal(2, 5, 1, 4, 4))
