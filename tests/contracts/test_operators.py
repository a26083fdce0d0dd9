"""The contract every operator keeps, whatever it measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from extend.an_operator import Vignette
from lavps.operators import (
    JPEG,
    MRI,
    AveragePool,
    Blur,
    CallableOperator,
    DecodedOperator,
    HDRClip,
    Identity,
    Mask,
    MotionBlur,
    Operator,
    PhaseRetrieval,
    RandomGaussianBlur,
    RandomPixels,
    RandomRectangle,
    RescaledOperator,
    centre_box,
    check,
    from_numpy,
    gaussian_kernel,
)
from lavps.priors import GaussianPrior, LatentPrior
from lavps.random import NoiseStreams, Purpose

ROWS = 3


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Operator]
    shape: tuple[int, ...]
    smooth: bool = True  # False: the gradient is by design not that of the function (straight-through)
    invertible: bool = True  # False: too ill-conditioned for an undamped pseudo-inverse


def kernel(*size: int, seed: int = 0) -> Tensor:
    """A well-conditioned asymmetric kernel: mostly its origin."""
    noise = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    origin = torch.zeros(size, dtype=torch.float64)
    origin[tuple(n // 2 for n in size)] = 1.0
    return 0.6 * origin + 0.4 * noise / noise.sum()


def kernels(*size: int) -> Tensor:
    return torch.stack([kernel(*size, seed=seed) for seed in range(ROWS)])


def strided_convolution() -> Operator:
    weight = kernel(4, 2, 3, 3)
    return CallableOperator(lambda x: torch.conv2d(x, weight.to(x), stride=2), (2, 7, 9))


def numpy_with_adjoint() -> Operator:
    matrix = np.random.default_rng(0).normal(size=(5, 12))

    def product(x: Tensor, m: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        return torch.from_numpy(x.flatten(1).numpy() @ m.astype(x.numpy().dtype).T).reshape(-1, *shape)

    return CallableOperator(
        lambda x: product(x, matrix, (5,)), (1, 3, 4), adjoint=lambda y: product(y, matrix.T, (1, 3, 4))
    )


def decoding() -> LatentPrior:
    """Latents (1, h, w) of images twice their size, by a nonlinear decoder."""

    def decoder(z: Tensor) -> Tensor:
        return torch.tanh(z.repeat_interleave(2, -1).repeat_interleave(2, -2))

    prior = GaussianPrior(torch.zeros(1, 2, 3), torch.eye(6))
    return LatentPrior(prior, decoder, lambda x: x[..., ::2, ::2].atanh(), 1, 2, scale=0.7, shift=0.1)


def fourier_lines() -> Operator:
    """Complex measurements, fewer of them than pixels, as in magnetic resonance imaging."""
    return CallableOperator(lambda x: torch.fft.fft2(x, norm="ortho")[..., [0, 1, 5]], (1, 4, 7))


def coils(*size: int) -> Tensor:
    return torch.complex(kernel(*size, seed=1), kernel(*size, seed=2) - 0.1) + 0.2


def samples(*size: int) -> Tensor:
    """A mask of frequencies with about half of them."""
    return torch.rand(size, generator=torch.Generator().manual_seed(4)) < 0.5


def numpy_with_vjp() -> Operator:
    return from_numpy(lambda x: np.sin(2 * x), (1, 3, 4), vjp=lambda x, v: 2 * np.cos(2 * x) * v)


LINEAR = [
    Case("identity 2-D", Identity, (3, 4, 5)),
    Case("pool 1-D", lambda: AveragePool(3), (2, 12)),
    Case("pool 2-D", lambda: AveragePool(2), (3, 4, 6)),
    Case("pool 3-D", lambda: AveragePool(2), (1, 2, 4, 6)),
    Case("mask of pixels", lambda: Mask(kernel(4, 5) > 0.02), (3, 4, 5)),
    Case("mask of channels", lambda: Mask(torch.tensor([[[1]], [[0]], [[1]]])), (3, 4, 5)),
    Case("masks, one an item", lambda: Mask(kernels(1, 4, 5) > 0.02, batched=True), (3, 4, 5)),
    Case("centre box 3-D", lambda: centre_box((1, 4, 5, 3)), (1, 4, 5, 3)),
    Case("rectangles", lambda: RandomRectangle().draw(range(ROWS), (3, 6, 5)), (3, 6, 5)),
    Case("pixels 1-D", lambda: RandomPixels(0.2, 0.6).draw(range(ROWS), (2, 9)), (2, 9)),
    Case("blur reflect", lambda: Blur(kernel(3, 5)), (2, 5, 6)),
    Case("blur reflect even", lambda: Blur(kernel(4, 2)), (1, 5, 6)),
    Case("blur reflect 1-D", lambda: Blur(kernel(6)), (2, 11)),
    Case("blur reflect 3-D", lambda: Blur(kernel(3, 2, 3)), (1, 3, 4, 5)),
    Case("blurs reflect, one an item", lambda: Blur(kernels(5, 3), batched=True), (2, 5, 4)),
    Case("blur circular", lambda: Blur(kernel(3, 5), "circular"), (2, 5, 6)),
    Case("blur circular even", lambda: Blur(kernel(4, 2), "circular"), (1, 5, 7)),
    Case("blur circular singular", lambda: Blur(torch.tensor([0.5, 0.5]), "circular"), (1, 8)),
    Case("blur circular 3-D", lambda: Blur(kernel(2, 3, 2), "circular"), (1, 3, 4, 5)),
    Case("blurs circular, one an item", lambda: Blur(kernels(3, 3), "circular", batched=True), (2, 5, 4)),
    Case(
        "motion blurs", lambda: MotionBlur(5, 0.9).draw(range(ROWS), (2, 6, 7)), (2, 6, 7), invertible=False
    ),
    Case("Gaussian blurs", lambda: RandomGaussianBlur(0.3, 0.6).draw(range(ROWS), (1, 6, 7)), (1, 6, 7)),
    Case("Gaussian blur", lambda: Blur(gaussian_kernel(1.0)), (1, 8, 7), invertible=False),
    Case("function with another shape", strided_convolution, (2, 7, 9)),
    Case("NumPy function with adjoint", numpy_with_adjoint, (1, 3, 4)),
    Case("complex Fourier lines", fourier_lines, (1, 4, 7)),
    Case("MRI real", lambda: MRI(samples(4, 5)), (1, 4, 5)),
    Case("MRI coils", lambda: MRI(samples(4, 5), coils(3, 4, 5)), (1, 4, 5)),
    Case("MRI complex image", lambda: MRI(samples(5, 4), coils(2, 5, 4), complex_image=True), (2, 5, 4)),
    Case("MRI 3-D", lambda: MRI(samples(2, 3, 4), coils(2, 2, 3, 4), complex_image=True), (2, 2, 3, 4)),
    Case("MRI 1-D", lambda: MRI(samples(9), complex_image=True), (2, 9)),
    Case("MRIs, one an item", lambda: MRI(samples(ROWS, 4, 5), coils(1, 2, 4, 5), batched=True), (1, 4, 5)),
    Case("lenses, the example", lambda: Vignette(torch.tensor([0.2, 0.5, 0.8])), (2, 5, 4)),
    Case("range symmetric", lambda: RescaledOperator(Blur(kernel(3, 3)), -3.0, 3.0), (2, 5, 6)),
    Case(
        "range symmetric, one an item",
        lambda: RescaledOperator(Blur(kernels(3, 3), batched=True), -2, 2),
        (1, 5, 4),
    ),
]
NONLINEAR = [
    Case("HDR clip", HDRClip, (3, 4, 5)),
    Case("phase retrieval 2-D", lambda: PhaseRetrieval(2.0), (1, 5, 4)),
    Case("phase retrieval 1-D, fraction", lambda: PhaseRetrieval(1.3), (2, 9)),
    Case("JPEG grey", lambda: JPEG(60), (1, 9, 11), smooth=False),
    Case("JPEG 4:2:0", lambda: JPEG(60, subsampling=(2, 2)), (3, 16, 16), smooth=False),
    Case("JPEG colour", lambda: JPEG(30), (3, 8, 5), smooth=False),
    Case("pool of decoded latents", lambda: DecodedOperator(AveragePool(2), decoding()), (1, 2, 3)),
    Case(
        "blurs of decoded latents, one an item",
        lambda: DecodedOperator(Blur(kernels(3, 3), batched=True), decoding()),
        (1, 2, 3),
    ),
    Case("NumPy function with vjp", numpy_with_vjp, (1, 3, 4)),
    Case(
        "range of a linear operator",
        lambda: RescaledOperator(Blur(kernels(3, 3), batched=True), 0, 1),
        (2, 5, 6),
    ),
    Case("range of a nonlinear operator", lambda: RescaledOperator(HDRClip(), 0.0, 1.0), (3, 4, 5)),
    Case("nonlinear function", lambda: CallableOperator(torch.sin, (1, 3, 4), linear=False), (1, 3, 4)),
]


def named(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def images(case: Case, index: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    like = torch.zeros((), dtype=dtype)
    noise = NoiseStreams.from_seed(ROWS).normal(Purpose.PROBE, case.shape, like, index=index)
    return (0.4 * noise).clamp(-1.0, 1.0)


def measurements(y: Tensor, index: int = 7) -> Tensor:
    return NoiseStreams.from_seed(ROWS).normal(Purpose.PROBE, y.shape[1:], y, index=index)


def as_real(y: Tensor) -> Tensor:
    """Measurements as real vectors (B, m): complex ones are twice as many numbers."""
    return torch.view_as_real(y).flatten(1) if y.is_complex() else y.flatten(1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return (as_real(a) * as_real(b)).sum(1)


def row(operator: Operator, i: int) -> Operator:
    return operator.select(torch.tensor([i]))


def dense(operator: Operator, x: Tensor) -> Tensor:
    """The real Jacobian at one image (1, C, *spatial), by torch and not by the operator's own products."""
    jacobian = torch.autograd.functional.jacobian(lambda u: as_real(operator(u)), x)
    return jacobian.reshape(-1, x.numel())


class TestOperatorContract:
    @named(LINEAR + NONLINEAR)
    def test_same_image_gives_same_measurement_and_is_left_alone(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        before = x.clone()
        first = operator(x)
        operator(images(case, 1))
        assert torch.equal(operator(x), first)
        assert torch.equal(x, before)

    @named(LINEAR)
    def test_adjoint_passes_the_dot_test(self, case: Case) -> None:
        operator, u = case.make(), images(case)
        v = measurements(operator(u))
        torch.testing.assert_close(dot(operator(u), v), dot(u, operator.adjoint(v)), rtol=1e-9, atol=1e-10)

    @named(LINEAR)
    def test_linear_operator_is_linear(self, case: Case) -> None:
        operator, x, u = case.make(), images(case), images(case, 1)
        torch.testing.assert_close(operator(2.0 * x - 3.0 * u), 2.0 * operator(x) - 3.0 * operator(u))
        assert operator.linear

    @named(NONLINEAR)
    def test_nonlinear_operator_says_so_and_refuses_linear_algebra(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        assert not operator.linear
        with pytest.raises(TypeError, match="not linear"):
            operator.adjoint(operator(x))
        with pytest.raises(TypeError, match="not linear"):
            operator.pseudo_inverse(operator(x))

    @named(LINEAR + NONLINEAR)
    @pytest.mark.thorough
    def test_jacobian_products_agree_with_the_dense_jacobian(self, case: Case) -> None:
        operator, x, u = case.make(), images(case), images(case, 1)
        v = measurements(operator(x))
        jacobians = torch.stack([dense(row(operator, i), x[i : i + 1]) for i in range(ROWS)])
        pulled = torch.einsum("bmn,bm->bn", jacobians, as_real(v))
        pushed = torch.einsum("bmn,bn->bm", jacobians, u.flatten(1))
        torch.testing.assert_close(operator.vjp(x, v).flatten(1), pulled)
        torch.testing.assert_close(as_real(operator.jvp(x, u)), pushed)

    @named([case for case in LINEAR + NONLINEAR if case.smooth])
    def test_jvp_is_the_directional_derivative(self, case: Case) -> None:
        operator, x, u = case.make(), images(case), images(case, 1)
        step = 1e-6
        difference = (operator(x + step * u) - operator(x - step * u)) / (2 * step)
        torch.testing.assert_close(operator.jvp(x, u), difference, rtol=1e-5, atol=1e-7)

    @named([case for case in LINEAR if case.invertible])
    def test_pseudo_inverse_is_that_of_moore_and_penrose(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        v = measurements(operator(x))
        found = operator.pseudo_inverse(v, iterations=400, tolerance=1e-13)
        for i in range(ROWS):
            matrix = dense(row(operator, i), x[i : i + 1])
            expected = torch.linalg.pinv(matrix) @ as_real(v)[i]
            torch.testing.assert_close(found[i].flatten(), expected, rtol=1e-6, atol=1e-7)

    @named(LINEAR)
    def test_damped_pseudo_inverse_solves_the_damped_normal_equations(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        v = measurements(operator(x))
        found = operator.pseudo_inverse(v, damping=0.1, iterations=400, tolerance=1e-13)
        residual = operator.adjoint(operator(found) - v) + 0.1 * found
        torch.testing.assert_close(residual, torch.zeros_like(found), rtol=0.0, atol=1e-9)

    @named(LINEAR)
    def test_adjoint_and_pseudo_inverse_are_differentiable(self, case: Case) -> None:
        operator, u = case.make(), images(case)
        y = measurements(operator(u))
        v = y.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(operator.adjoint(v), v, u)
        torch.testing.assert_close(gradient, operator(u))
        inverse = operator.pseudo_inverse(v, damping=0.1, iterations=400, tolerance=1e-13)
        (gradient,) = torch.autograd.grad(inverse, v, u)
        # <A^+ w, u> = <w, gradient> for another measurement w, as A^+ is linear.
        w = measurements(y, 8)
        again = operator.pseudo_inverse(w, damping=0.1, iterations=400, tolerance=1e-13)
        torch.testing.assert_close(dot(again, u), dot(w, gradient), rtol=1e-7, atol=1e-8)

    @named(LINEAR + NONLINEAR)
    @pytest.mark.thorough
    def test_norm_is_the_largest_singular_value(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        jacobians = [dense(row(operator, i), x[i : i + 1]) for i in range(ROWS)]
        expected = torch.stack([torch.linalg.matrix_norm(jacobian, 2) for jacobian in jacobians])
        found = operator.norm(x, iterations=300)
        torch.testing.assert_close(found, expected, rtol=5e-3, atol=1e-9)
        assert bool((found <= expected * (1 + 1e-9)).all())

    @named(LINEAR + NONLINEAR)
    def test_row_of_a_batch_is_what_it_would_be_alone(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        assert operator.batch in (1, ROWS)
        y = operator(x)
        for i in (2, 0):
            torch.testing.assert_close(row(operator, i)(x[i : i + 1]), y[i : i + 1])
        turned = torch.tensor([1, 0, 2])
        torch.testing.assert_close(operator.select(turned)(x[turned]), y[turned])

    @named(LINEAR)
    def test_feature_axis_equals_a_loop(self, case: Case) -> None:
        operator = case.make()
        x = torch.stack([images(case, index) for index in range(4)], dim=1)
        y = operator.apply_features(x)
        back = operator.pseudo_inverse_features(y, damping=0.1)
        for f in range(4):
            torch.testing.assert_close(y[:, f], operator(x[:, f]))
            torch.testing.assert_close(back[:, f], operator.pseudo_inverse(y[:, f], damping=0.1))

    @named(LINEAR + NONLINEAR)
    def test_input_shape_undoes_the_measurement(self, case: Case) -> None:
        operator = case.make()
        assert operator.input_shape(operator(images(case)).shape[1:]) == case.shape

    @named(LINEAR + NONLINEAR)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_precision_is_kept(self, case: Case, dtype: torch.dtype) -> None:
        operator, x = case.make(), images(case, dtype=dtype)
        y = operator(x)
        assert y.real.dtype == dtype
        assert operator.vjp(x, y).dtype == dtype
        assert operator.norm(x, 2).dtype == dtype
        torch.testing.assert_close(y.real.double(), operator(x.double()).real, rtol=1e-4, atol=1e-5)
        if operator.linear:
            assert operator.adjoint(y).dtype == operator.pseudo_inverse(y, 0.1).dtype == dtype
        assert operator.to(dtype)(x).dtype == y.dtype

    @named([case for case in LINEAR + NONLINEAR if not isinstance(case.make(), (Mask, MRI))])
    def test_everything_measured_counts_as_observed(self, case: Case) -> None:
        operator = case.make()
        assert operator.observed(operator(images(case))) is None

    @named([case for case in LINEAR if isinstance(case.make(), (Mask, MRI))])
    def test_unobserved_entries_tell_nothing(self, case: Case) -> None:
        operator, x = case.make(), images(case)
        y = operator(x)
        seen = operator.observed(y)
        assert seen is not None
        assert seen.dtype == y.real.dtype
        assert torch.equal(seen.expand_as(y) * y, y)
        if isinstance(operator, Mask):
            assert torch.equal(seen.expand_as(y) * x, y)
        noise = (1.0 - seen) * measurements(y)
        assert torch.equal(operator.pseudo_inverse(y + noise), operator.pseudo_inverse(y))

    @named(LINEAR + NONLINEAR)
    def test_check_finds_nothing_wrong(self, case: Case) -> None:
        report = check(case.make(), case.shape)
        assert report.ok, str(report)
        assert report.differentiable
        assert (report.linearity_error or 0.0) < 1e-6 or not report.declared_linear

    @named([case for case in LINEAR if case.make().batch == ROWS])
    def test_wrong_number_of_rows_is_refused(self, case: Case) -> None:
        with pytest.raises(ValueError, match=f"parameters for {ROWS} items, but the batch has 1"):
            case.make()(images(case)[:1])
