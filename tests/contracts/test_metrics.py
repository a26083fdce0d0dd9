"""The contract every metric of image pairs keeps: one number an image, least wrong for equal images."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from extend.a_metric import edge_error
from lavps.evaluation import ImageBatch, psnr, ssim

# Each with the sign that makes lower better.
METRICS: dict[str, tuple[Callable[[ImageBatch, ImageBatch], Tensor], int]] = {
    "psnr": (psnr, -1),
    "ssim": (ssim, -1),
    "edge_error, the example": (edge_error, 1),
}
EVERY = pytest.mark.parametrize(("metric", "sign"), METRICS.values(), ids=METRICS)
SHAPE = (5, 3, 17, 14)


def pictures(seed: int, noise: float = 0.0) -> ImageBatch:
    generator = torch.Generator().manual_seed(seed)
    x = 0.4 * torch.randn(SHAPE, generator=generator)
    return ImageBatch.from_tensor(x + noise * torch.randn(SHAPE, generator=generator))


@EVERY
class TestMetricContract:
    def test_one_number_an_image_in_double_precision(self, metric, sign: int) -> None:
        value = metric(pictures(0), pictures(1))
        assert value.shape == (5,)
        assert value.dtype == torch.float64
        assert bool(value.isfinite().all())

    def test_a_batch_is_as_many_single_images(self, metric, sign: int) -> None:
        a, b = pictures(0), pictures(1)
        alone = torch.cat([metric(a[i : i + 1], b[i : i + 1]) for i in range(5)])
        torch.testing.assert_close(metric(a, b), alone)

    def test_it_is_symmetric(self, metric, sign: int) -> None:
        a, b = pictures(0), pictures(1)
        torch.testing.assert_close(metric(a, b), metric(b, a))

    def test_equal_images_are_best_and_noise_makes_it_worse(self, metric, sign: int) -> None:
        scores = torch.stack(
            [sign * metric(pictures(0), pictures(0, noise)) for noise in (0.0, 0.02, 0.1, 0.5)]
        )
        assert bool((scores.diff(dim=0) > 0).all())

    def test_images_that_do_not_pair_up_are_refused(self, metric, sign: int) -> None:
        with pytest.raises(ValueError, match="one shape"):
            metric(pictures(0), pictures(1)[:3])

    def test_its_inputs_are_left_alone(self, metric, sign: int) -> None:
        a, b = pictures(0), pictures(1)
        before = a.pixels.clone(), b.pixels.clone()
        metric(a, b)
        assert torch.equal(a.pixels, before[0])
        assert torch.equal(b.pixels, before[1])
