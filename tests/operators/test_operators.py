"""Values, families and the check of operators; what all operators share is in contracts/test_operators.py."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from lavps.io import read_image
from lavps.operators import (
    JPEG,
    AveragePool,
    Blur,
    CallableOperator,
    CentreBox,
    FixedOperator,
    HDRClip,
    Identity,
    Mask,
    MotionBlur,
    OperatorFamily,
    PhaseRetrieval,
    RandomGaussianBlur,
    RandomPixels,
    RandomRectangle,
    centre_box,
    check,
    gaussian_kernel,
    motion_kernel,
)
from lavps.random import Purpose, generator

FAMILIES: list[OperatorFamily] = [
    RandomRectangle(),
    RandomPixels(),
    MotionBlur(9, 0.9),
    RandomGaussianBlur(0.5, 1.5),
    CentreBox(),
    FixedOperator(AveragePool(2)),
]


def kernel_of(item: int, seed: int = 0, size: int = 21, intensity: float = 0.9) -> Tensor:
    return motion_kernel(size, intensity, generator(seed, item, Purpose.OPERATOR))


def photograph(height: int, width: int) -> Tensor:
    """A smooth colour image with an edge, (1, 3, H, W), exactly representable in 8 bits."""
    i, j = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    planes = [torch.sin(i / 7.0) * 60 + 120, torch.cos(j / 9.0) * 70 + 110, 4.0 * (i + j) % 90 + 60]
    levels = torch.stack(planes)
    levels[:, height // 3 :, width // 2 :] += 40.0
    return (levels.round().clamp(0, 255) / 127.5 - 1.0)[None]


class TestValues:
    def test_pool_of_a_known_array(self) -> None:
        x = torch.arange(16.0).reshape(1, 1, 4, 4)
        assert torch.equal(AveragePool(2)(x), torch.tensor([[[[2.5, 4.5], [10.5, 12.5]]]]))

    def test_pool_refuses_a_size_it_does_not_divide_and_says_which_would_do(self) -> None:
        with pytest.raises(ValueError, match=r"divisible by 4, got \(8, 10\).*\(8, 8\) or \(8, 12\)"):
            AveragePool(4)(torch.zeros(1, 3, 8, 10))

    def test_masked_values_do_not_leak_even_when_they_are_nan(self) -> None:
        x = torch.tensor([[[1.0, float("nan"), 3.0]]])
        assert torch.equal(Mask(torch.tensor([1, 0, 1]))(x), torch.tensor([[[1.0, 0.0, 3.0]]]))

    def test_mask_between_zero_and_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="nothing between"):
            Mask(torch.tensor([0.5, 1.0]))

    def test_batch_of_masks_must_be_declared(self) -> None:
        with pytest.raises(ValueError, match="pass batched=True"):
            Mask(torch.ones(2, 1, 4, 4))(torch.zeros(2, 3, 4, 4))

    def test_centre_box_misses_the_middle_half(self) -> None:
        mask = centre_box((3, 8, 6)).mask
        assert int((~mask).sum()) == 4 * 3
        assert not bool(mask[2:6, 1:4].any())

    def test_operators_keep_their_own_copy_of_a_parameter(self) -> None:
        mask, kernel, x = torch.ones(4), torch.tensor([0.0, 1.0, 0.0]), torch.rand(1, 1, 4)
        operators = [Mask(mask), Blur(kernel)]
        mask.zero_()
        kernel.zero_()
        for operator in operators:
            torch.testing.assert_close(operator(x), x)

    def test_hdr_scales_then_clips(self) -> None:
        x = torch.tensor([[[-0.8, -0.25, 0.1, 0.9]]])
        torch.testing.assert_close(HDRClip(2.0)(x), torch.tensor([[[-1.0, -0.5, 0.2, 1.0]]]))

    def test_phase_retrieval_agrees_with_numpy(self) -> None:
        x = torch.rand(1, 1, 5, 6, dtype=torch.float64) * 2 - 1
        expected = np.abs(np.fft.fft2((x[0, 0].numpy() + 1) / 2, s=(10, 12), norm="ortho"))
        np.testing.assert_allclose(PhaseRetrieval(2.0)(x)[0, 0], expected, atol=1e-12)

    def test_gradient_of_phase_retrieval_is_finite_where_the_modulus_is_zero(self) -> None:
        black, operator = -torch.ones(1, 1, 4, 4), PhaseRetrieval(2.0)
        assert not bool(operator(black).any())
        assert bool(torch.isfinite(operator.vjp(black, torch.ones(1, 1, 8, 8))).all())


class TestBlur:
    def test_point_gives_the_kernel_in_place(self) -> None:
        kernel = torch.rand(3, 4)
        x = torch.zeros(1, 1, 9, 9)
        x[0, 0, 4, 4] = 1.0
        for padding in ("reflect", "circular"):
            y = Blur(kernel, padding)(x)[0, 0]
            torch.testing.assert_close(y[3:6, 2:6], kernel, rtol=1e-5, atol=1e-6)

    def test_reflection_agrees_with_torch_padding_and_convolution(self) -> None:
        x, kernel = torch.rand(2, 3, 8, 9, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
        padded = torch.nn.functional.pad(x, (1, 1, 2, 2), mode="reflect")
        expected = torch.conv2d(padded, kernel.flip(0, 1).expand(3, 1, 5, 3), groups=3)
        torch.testing.assert_close(Blur(kernel)(x), expected)

    def test_blur_with_sum_one_keeps_a_constant_image(self) -> None:
        x = torch.full((1, 3, 24, 30), 0.3)
        torch.testing.assert_close(Blur(kernel_of(0))(x), x)

    @pytest.mark.parametrize(("padding", "size"), [("reflect", 4), ("circular", 6)])
    def test_kernel_too_large_for_the_image_is_refused(self, padding: str, size: int) -> None:
        with pytest.raises(ValueError, match="smaller kernel"):
            Blur(torch.ones(9, 7) / 63, padding)(torch.zeros(1, 1, size, 20))

    def test_batch_of_kernels_must_be_declared(self) -> None:
        with pytest.raises(ValueError, match="pass batched=True"):
            Blur(torch.ones(2, 3, 3) / 9)(torch.zeros(2, 3, 8, 8))

    def test_half_precision_features_come_back_in_half_precision(self) -> None:
        x, operator = torch.rand(1, 2, 8, 8), Blur(gaussian_kernel(0.6))
        y = operator(x.bfloat16())
        assert y.dtype == operator.pseudo_inverse(y, 0.1).dtype == torch.bfloat16
        torch.testing.assert_close(y.float(), operator(x), rtol=0.0, atol=1e-2)

    def test_gaussian_kernel_has_its_standard_deviation_and_sum_one(self) -> None:
        kernel = gaussian_kernel(2.0, dims=2)
        assert kernel.shape == (13, 13)
        offsets = torch.arange(13.0) - 6
        assert float(kernel.sum()) == pytest.approx(1.0, abs=1e-6)
        assert float((kernel.sum(1) * offsets**2).sum()) == pytest.approx(4.0, rel=0.05)


class TestMotionKernel:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 40), st.floats(0.0, 1.0), st.integers(0, 2**40))
    def test_is_a_distribution_centred_on_its_origin(self, size: int, intensity: float, item: int) -> None:
        kernel = kernel_of(item, size=size, intensity=intensity).double()
        assert kernel.shape == (size, size)
        assert bool((kernel >= 0).all())
        assert float(kernel.sum()) == pytest.approx(1.0, abs=1e-5)
        index = torch.arange(size, dtype=torch.float64) - size // 2
        for axis in (0, 1):
            assert abs(float((kernel.sum(1 - axis) * index).sum())) < 0.3

    def test_is_a_function_of_seed_and_item(self) -> None:
        assert torch.equal(kernel_of(3, seed=5), kernel_of(3, seed=5))
        assert not torch.equal(kernel_of(3, seed=5), kernel_of(3, seed=6))
        assert not torch.equal(kernel_of(3, seed=5), kernel_of(4, seed=5))

    def test_is_thin_connected_and_not_a_point(self) -> None:
        covered = [int((kernel_of(item) > 1e-4).sum()) for item in range(50)]
        assert 10 < np.mean(covered) < 21 * 21 / 4
        assert max(covered) > 30

    def test_winds_more_when_more_intense(self) -> None:
        def straightness(intensity: float) -> float:
            # The share of the spread along the main axis: 1 for a segment.
            shares = []
            for item in range(60):
                kernel = kernel_of(item, size=35, intensity=intensity).double()
                i, j = torch.meshgrid(torch.arange(35.0), torch.arange(35.0), indexing="ij")
                points = torch.stack([i, j]).double().flatten(1) - 17
                spread = torch.linalg.eigvalsh(torch.einsum("ip,p,jp->ij", points, kernel.flatten(), points))
                shares.append(float((spread[1] + 1e-9) / (spread.sum() + 1e-9)))  # a point is a segment
            return float(np.mean(shares))

        assert straightness(0.0) > straightness(0.5) > straightness(1.0)


class TestJPEG:
    @pytest.mark.parametrize(("height", "width"), [(32, 40), (21, 35)])
    def test_agrees_with_pillow(self, height: int, width: int) -> None:
        x = photograph(height, width)
        levels = ((x[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(levels).save(file, "JPEG", quality=50, subsampling=0)
        expected = np.asarray(Image.open(file)).astype(float)
        found = ((JPEG(50)(x)[0] + 1) * 127.5).permute(1, 2, 0).numpy()
        difference = np.abs(found - expected)
        # Pillow's cosine transform is in integers: a coefficient near .5 may fall on the other side.
        assert difference.mean() < 0.5
        assert np.quantile(difference, 0.99) <= 4.0
        assert difference.mean() < 0.12 * np.abs(levels - expected).mean()

    def test_grey_agrees_with_pillow(self) -> None:
        x = photograph(24, 24)[:, :1]
        levels = ((x[0, 0] + 1) * 127.5).round().byte().numpy()
        file = io.BytesIO()
        Image.fromarray(levels).save(file, "JPEG", quality=20)
        expected = np.asarray(Image.open(file)).astype(float)
        assert np.abs(((JPEG(20)(x)[0, 0] + 1) * 127.5).numpy() - expected).mean() < 0.5

    @pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
    @pytest.mark.parametrize(("height", "width"), [(48, 64), (37, 51)])
    def test_the_tables_of_a_file_reproduce_it(self, height: int, width: int, subsampling: str) -> None:
        x = photograph(height, width)
        levels = ((x[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
        file = io.BytesIO()
        Image.fromarray(levels).save(file, "JPEG", quality=30, subsampling=subsampling)
        image = read_image(file.getvalue())
        assert image.coding is not None
        operator = JPEG(tables=image.coding.tables, subsampling=image.coding.subsampling)
        found, expected = ((y + 1) * 127.5 for y in (operator(x)[0], image.pixels))
        error = (found - expected).abs().mean()
        assert error < 0.6
        wrong = ((JPEG(30 if subsampling != "4:4:4" else 20)(x)[0] + 1) * 127.5 - expected).abs().mean()
        assert error < 0.5 * wrong, "else the test would prove nothing"

    def test_error_falls_with_quality(self) -> None:
        x = photograph(32, 32)
        errors = [float((JPEG(quality)(x) - x).square().mean()) for quality in (5, 20, 50, 80, 100)]
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 1e-4 < errors[0]

    def test_gradient_passes_straight_through_the_rounding(self) -> None:
        x = 0.5 * photograph(11, 13).double()
        v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        inside = JPEG(40)(x).abs().amax() < 1
        assert bool(inside)
        # Away from the padding, T^-1 T = I, so the straight-through Jacobian is the identity.
        torch.testing.assert_close(JPEG(40).vjp(x, v), v)

    def test_wrong_number_of_channels_is_refused(self) -> None:
        with pytest.raises(ValueError, match="1 or 3"):
            JPEG(50)(torch.zeros(1, 2, 8, 8))


class TestFamilies:
    @pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
    def test_item_seven_is_the_same_alone_and_in_a_batch(self, family: OperatorFamily) -> None:
        x = torch.rand(1, 3, 16, 12)
        alone = family.draw([7], (3, 16, 12), seed=4)(x)
        among = family.draw([2, 9, 7], (3, 16, 12), seed=4).select(torch.tensor([2]))(x)
        torch.testing.assert_close(among, alone, rtol=0.0, atol=1e-6)

    @pytest.mark.parametrize("family", FAMILIES[:4], ids=lambda family: type(family).__name__)
    def test_items_and_seeds_differ(self, family: OperatorFamily) -> None:
        x = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0)).expand(2, -1, -1, -1)
        y = family.draw([0, 1], (1, 16, 16), seed=0)(x)
        assert not torch.allclose(y[0], y[1])
        assert not torch.allclose(family.draw([0], (1, 16, 16), seed=1)(x[:1]), y[:1])

    def test_rectangle_sides_lie_between_the_fractions(self) -> None:
        missing = ~RandomRectangle(0.4, 0.6).draw(range(60), (3, 50, 100)).mask[:, 0]
        heights, widths = missing.any(2).sum(1), missing.any(1).sum(1)
        assert torch.equal(missing.sum((1, 2)), heights * widths)
        assert 20 <= int(heights.min()) < 24
        assert 26 < int(heights.max()) <= 30
        assert 40 <= int(widths.min()) < 48
        assert 52 < int(widths.max()) <= 60

    def test_missing_pixel_rates_fill_their_range(self) -> None:
        masks = RandomPixels(0.8, 0.9).draw(range(60), (3, 100, 100)).mask
        assert masks.shape == (60, 1, 100, 100)
        rates = 1.0 - masks.double().mean((1, 2, 3))
        assert 0.785 < float(rates.min()) < 0.82 < 0.88 < float(rates.max()) < 0.915

    def test_gaussian_widths_fill_their_range(self) -> None:
        kernels = RandomGaussianBlur(0.5, 2.0).draw(range(40), (1, 32, 32)).kernel.double()
        offsets = torch.arange(kernels.shape[1], dtype=torch.float64) - kernels.shape[1] // 2
        widths = (kernels.sum(2) * offsets**2).sum(1).sqrt()
        assert 0.45 < float(widths.min()) < 0.8 < 1.7 < float(widths.max()) < 2.01

    def test_families_work_on_volumes(self) -> None:
        x = torch.rand(2, 1, 8, 9, 10)
        for family in (RandomRectangle(), RandomPixels(), RandomGaussianBlur(0.3, 0.5), CentreBox()):
            assert family.draw([0, 1], (1, 8, 9, 10))(x).shape == x.shape

    def test_fixed_operator_must_be_one_operator(self) -> None:
        with pytest.raises(ValueError, match="every item"):
            FixedOperator(RandomPixels().draw([0, 1], (1, 4, 4)))

    def test_impossible_range_is_refused(self) -> None:
        for make in (lambda: RandomPixels(0.9, 0.8), lambda: RandomRectangle(0.4, 1.2)):
            with pytest.raises(ValueError, match="low <= high"):
                make()


SHAPE = (1, 4, 6)


def function(
    f: Callable[[Tensor], Tensor], linear: bool = True, **more: Callable[[Tensor], Tensor]
) -> CallableOperator:
    return CallableOperator(f, SHAPE, linear=linear, **more)


class TestCheck:
    @pytest.mark.parametrize(
        ("operator", "words"),
        [
            (function(lambda x: x[..., ::2], adjoint=lambda y: y.repeat_interleave(2, -1)), "dot test"),
            (function(lambda x: 3.0 * x, adjoint=lambda y: 2.99 * y), "the adjoint fails the dot test"),
            (function(lambda x: torch.fft.fft2(x), adjoint=lambda y: torch.fft.fft2(y).real), "conjugate"),
            (function(lambda x: x**2), "set linear=False"),
            (function(lambda x: x + 1.0), "subtract the offset"),
            (function(lambda x: x + 0.1 * torch.randn_like(x), linear=False), "differs between two calls"),
            (function(lambda x: x.float()), "torch.float64 images give torch.float32 measurements"),
            (function(lambda x: x @ torch.ones(6, 2)), "fails on torch.float64 images"),
            (function(lambda x: x - x.mean(0)), "a row of a batch differs"),
            (function(lambda x: x / x.norm(), linear=False), "a row of a batch differs"),
            (function(lambda x: x.sum(0, keepdim=True)), "the first axis must count the images"),
            (function(lambda x: torch.from_numpy(np.sin(x.numpy())), linear=False), "no gradient"),
            (function(lambda x: 2.0 * x.detach()), "no gradient"),
            (function(lambda x: (4.0 * x).round(), linear=False), "gradient of A is 0 everywhere"),
            (function(lambda x: x.mul_(2.0)), "changes its input in place"),
            (function(lambda x: x / 0.0, linear=False), "non-finite"),
            (CallableOperator(lambda x: x[..., 0], (1, 4, 9)), "input_shape"),
        ],
    )  # fmt: skip
    def test_names_what_is_wrong(self, operator: CallableOperator, words: str) -> None:
        report = check(operator, SHAPE)
        assert not report.ok
        assert any(words in problem for problem in report.problems), str(report)
        assert words in str(report)

    def test_wrong_scale_of_an_adjoint_shows_in_many_dimensions(self) -> None:
        operator = CallableOperator(lambda x: x, (3, 64, 64), adjoint=lambda y: 1.001 * y)
        assert check(operator, (3, 64, 64)).adjoint_error == pytest.approx(7e-4, rel=0.2)

    def test_operator_that_always_fails_is_reported_not_raised(self) -> None:
        def broken(x: Tensor) -> Tensor:
            raise KeyError("no such coil")

        report = check(function(broken), SHAPE)
        assert len(report.problems) == 2
        assert "no such coil" in report.problems[0]

    def test_plain_function_that_behaves_linearly_is_told_so(self) -> None:
        report = check(lambda x: x.flip(-1), SHAPE)
        assert report.ok
        assert not report.declared_linear
        assert any("behaves linearly" in note for note in report.notes)

    def test_wrong_custom_gradient_is_noted(self) -> None:
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                return x.sin()

            @staticmethod
            def backward(ctx: object, v: Tensor) -> Tensor:
                return 2.0 * v

        report = check(function(Doubled.apply, linear=False), SHAPE)
        assert report.gradient_error is not None
        assert report.gradient_error > 0.3
        assert any("finite differences" in note for note in report.notes)

    def test_measurement_left_on_another_device_is_found(self) -> None:
        weight = torch.ones(6)
        assert check(function(lambda x: x * weight.to(x)), SHAPE, device="meta").ok

        def strays(x: Tensor) -> Tensor:
            return torch.zeros(x.shape) if x.is_meta else 2.0 * x

        report = check(function(strays), SHAPE, device="meta")
        assert report.device == "meta"
        assert any("give measurements on cpu" in problem for problem in report.problems)

    def test_report_of_a_good_operator_says_ok_and_its_shapes(self) -> None:
        text = str(check(AveragePool(2), (3, 8, 8)))
        assert "AveragePool(factor=2) (linear): ok" in text
        assert "(3, 8, 8) -> measurements (3, 4, 4)" in text


class TestLinearity:
    @pytest.mark.parametrize(
        ("function", "linear"),
        [
            (lambda x: x.cumsum(-1), True),
            (lambda x: torch.fft.fft2(x), True),
            (lambda x: x @ torch.eye(4, dtype=torch.float64), True),  # fails in single precision
            (lambda x: x + 1.0, False),  # affine
            (lambda x: x.clamp(-1.0, 1.0), False),
            (torch.sin, False),
        ],
    )
    def test_linearity_is_tested_unless_it_is_stated(
        self, function: Callable[[Tensor], Tensor], linear: bool
    ) -> None:
        assert CallableOperator(function, (1, 4, 4)).linear == linear
        assert CallableOperator(function, (1, 4, 4), linear=not linear).linear != linear

    def test_a_derivative_states_it(self) -> None:
        def broken(x: Tensor) -> Tensor:
            raise RuntimeError("no licence")

        assert CallableOperator(broken, (1, 4, 4), adjoint=lambda y: y).linear
        assert not CallableOperator(broken, (1, 4, 4), vjp=lambda x, v: v).linear
        with pytest.raises(ValueError, match=r"no licence.*pass linear=True or linear=False"):
            CallableOperator(broken, (1, 4, 4))


class TestLinearAlgebra:
    def test_matrix_of_the_identity(self) -> None:
        assert torch.equal(Identity().matrix((1, 2, 3)), torch.eye(6, dtype=torch.float64))

    def test_matrix_of_several_rows_is_refused(self) -> None:
        with pytest.raises(ValueError, match="take one with select"):
            RandomPixels().draw([0, 1], (1, 4, 4)).matrix((1, 4, 4))

    def test_gradient_under_inference_mode_is_refused_with_the_remedy(self) -> None:
        with torch.inference_mode(), pytest.raises(RuntimeError, match="no_grad"):
            CallableOperator(torch.sin, (1, 4, 4)).vjp(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AveragePool(0), "at least 1"),
        (lambda: PhaseRetrieval(0.5), "oversampling"),
        (lambda: HDRClip(0.0), "positive"),
        (lambda: JPEG(0), "between 1 and 100"),
        (lambda: JPEG(), "a quality or"),
        (lambda: JPEG(tables=((1, 2),)), "64 numbers"),
        (lambda: JPEG(5, subsampling=(4, 1)), "1 or 2"),
        (lambda: Blur(torch.ones(3, 3), "zeros"), "padding"),
        (lambda: Blur(torch.ones(3, 3, dtype=torch.int64)), "real tensor"),
        (lambda: gaussian_kernel(0.0), "positive"),
        (lambda: kernel_of(0, intensity=1.5), "intensity"),
        (lambda: MotionBlur(5).draw([0], (1, 4, 8, 8)), r"\(C, H, W\)"),
        (lambda: RandomGaussianBlur(0.0, 1.0), "positive"),
    ],
)
def test_impossible_parameter_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
