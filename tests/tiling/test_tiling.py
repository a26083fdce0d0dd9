"""Windows fused inside the denoiser: exact where theory says so, seamless, in the memory of one chunk."""

from __future__ import annotations

import weakref
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lavps
from lavps.guidance import Gradient
from lavps.minimizers import WhitenedGradient
from lavps.operators import AveragePool, Mask
from lavps.schedule import Schedule
from lavps.tiling import TiledPrior
from lavps.tiling.windows import reflected, seam_ratio, starts_along, weights_along, windows_of
from lavps.transitions import per_sample
from support.problems import ConvDenoiser, StationaryGaussian, images, network_prior

T = torch.tensor(0.4, dtype=torch.float64)


class PerPixel:
    """A denoiser that looks at one pixel at a time."""

    schedule: Schedule = lavps.VPLinear()

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        return torch.tanh(x_t * per_sample(1.0 + t, x_t))


def naive(tiled: TiledPrior, x: Tensor, t: Tensor) -> Tensor:
    """The formula, all windows at once and with torch's own graph."""
    assert isinstance(tiled.window, int)
    sizes = (tiled.window,) * (x.ndim - 2)
    fused = torch.zeros_like(x)
    for window in windows_of(x.shape[2:], sizes, tiled._shared, (0.0,) * len(sizes)):
        place = (slice(None), *window.place)
        part = torch.zeros_like(x)
        part[place] = window.weight.to(x) * tiled.prior.denoise(x[place], t)
        fused = fused + part
    return fused


# --- windows and weights ----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 39), st.floats(0, 1, exclude_max=True))
def test_windows_cover_an_axis_overlap_and_weigh_one_in_sum(
    size: int, more: int, overlap: int, shift: float
) -> None:
    length, overlap = size + more, min(overlap, size - 1)
    starts = starts_along(length, size, overlap, shift)
    assert starts[0] == 0
    assert starts[-1] == length - size
    assert all(0 < b - a <= size - overlap for a, b in pairwise(starts))
    total = torch.zeros(length, dtype=torch.float64)
    for start, weight in zip(starts, weights_along(length, size, starts), strict=True):
        assert bool((weight > 0).all())
        total[start : start + size] += weight
    torch.testing.assert_close(total, torch.ones_like(total))


@given(st.integers(1, 9), st.integers(1, 40))
def test_reflection_is_that_of_a_mirror_at_any_size(length: int, size: int) -> None:
    x = torch.arange(float(length)).reshape(1, 1, length)
    y = reflected(x, 2, size)[0, 0]
    assert len(y) == max(length, size)
    inside = max(size - length, 0) // 2
    assert torch.equal(y[inside : inside + length], x[0, 0])
    if length > 1:  # a mirror repeats no pixel: neighbours stay neighbours
        assert bool((y.diff().abs() == 1).all())


def test_grids_of_other_times_have_their_borders_elsewhere() -> None:
    tiled = TiledPrior(PerPixel(), window=16, shifted=True)
    times = torch.linspace(0.01, 1.0, 100, dtype=torch.float64)
    starts = {starts_along(64, 16, 8, shift)[1] for (shift, _) in tiled._shifts(times, 2)}
    assert starts == set(range(1, 9))


# --- exact where it can be --------------------------------------------------------------------------------


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("shape", [(3, 50, 37), (1, 16, 16), (1, 1, 1), (2, 5, 41), (1, 30), (1, 9, 20, 18)])
def test_a_denoiser_of_pixels_is_unchanged_by_tiling(shape: tuple[int, ...], shifted: bool) -> None:
    tiled, x = TiledPrior(PerPixel(), window=16, overlap=5, batch=3, shifted=shifted), images(2, shape)
    torch.testing.assert_close(tiled.denoise(x, T), PerPixel().denoise(x, T))


def test_an_image_of_one_window_is_denoised_by_the_prior_alone() -> None:
    prior, x = network_prior(), images(3, (1, 16, 16))
    for tiled in (TiledPrior(prior, 16), TiledPrior(prior, 16, shifted=True)):
        assert torch.equal(tiled.denoise(x, T), prior.denoise(x, T))


def test_short_correlations_are_denoised_as_in_the_whole_image() -> None:
    prior = StationaryGaussian(length=3.0)
    clean = prior.sample(1, 3, 70, 93)
    schedule = prior.schedule
    for t in (0.05, 0.2, 0.5):
        time = torch.tensor(t, dtype=torch.float64)
        x = schedule.alpha(time) * clean + schedule.sigma(time) * images(1, (3, 70, 93)).double() * 2
        whole = prior.denoise(x, time)
        errors = []
        for overlap in (0, 8, 16):
            gap = TiledPrior(prior, 32, overlap).denoise(x, time) - whole
            errors.append(float(gap.square().mean().sqrt() / whole.square().mean().sqrt()))
        assert errors[2] < 0.02
        assert errors[0] > 3 * errors[2]  # what the overlap is for


# --- a prior like any other -------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [(24, 24), (19, 33), (40, 12), (7, 5)])
def test_the_gradient_is_that_of_the_naive_fusion(spatial: tuple[int, int]) -> None:
    tiled = TiledPrior(network_prior(), window=12, overlap=5, batch=4)
    x = images(2, (1, *spatial)).double().requires_grad_()
    tiled.prior.network.double()  # type: ignore[attr-defined]
    weights = images(2, (1, *spatial), seed=1).double()
    fused = tiled.denoise(x, T)
    (ours,) = torch.autograd.grad((weights * fused.square()).sum(), x)
    padded = x
    for axis in (2, 3):
        padded = reflected(padded, axis, 12)
    plain = naive(tiled, padded, T)
    for axis, length in zip((2, 3), spatial, strict=True):
        plain = plain.narrow(axis, max(12 - length, 0) // 2, length)
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(ours, torch.autograd.grad((weights * plain.square()).sum(), x)[0])


def test_the_chunk_does_not_matter_nor_do_the_other_images() -> None:
    x, times = images(3, (1, 21, 26)), torch.tensor([0.1, 0.4, 0.8], dtype=torch.float64)
    for shifted in (False, True):
        one, many = (TiledPrior(network_prior(), 10, 4, batch, shifted) for batch in (1, 64))
        batch = many.denoise(x, times)
        for row in range(3):
            torch.testing.assert_close(one.denoise(x[row : row + 1], times[row])[0], batch[row])


def test_a_second_derivative_is_refused_rather_than_wrong() -> None:
    x = images(1, (1, 12, 12)).requires_grad_()
    fused = TiledPrior(network_prior(), 8).denoise(x, T)
    (gradient,) = torch.autograd.grad(fused.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"not have been used|once_differentiable"):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"window": 8, "overlap": 8}, "below the window's 8"),
        ({"window": (8, 4), "overlap": 5}, "below the window's 4"),
    ],
    ids=str,
)
def test_impossible_windows_are_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        TiledPrior(PerPixel(), **options)  # type: ignore[arg-type]


def test_a_window_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit images with 1 axes"):
        TiledPrior(PerPixel(), (8, 8)).denoise(images(1, (1, 30)), T)


# --- samplers, seams and memory ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda prior: lavps.MGDM(prior, num_steps=4, guidance=Gradient(steps=1)),
        lambda prior: lavps.MMPS(prior, num_steps=3, solver_steps=1),
        lambda prior: lavps.DPS(prior, num_steps=3),
    ],
    ids=["MGDM", "MMPS", "DPS"],
)
def test_every_sampler_runs_on_it_and_a_batch_equals_singles(make: object) -> None:
    sampler = make(TiledPrior(network_prior(), 8, batch=5))  # type: ignore[operator]
    noise = lavps.GaussianNoise(0.1)
    problem = lavps.InverseProblem.simulate(images(2, (1, 14, 22)), AveragePool(2), noise)
    both = sampler.sample(problem, seed=3)
    assert both.samples.shape == (2, 1, 1, 14, 22)
    alone = sampler.sample(problem[1], seed=3, items=[1])
    torch.testing.assert_close(both.samples[1], alone.samples[0], rtol=1e-4, atol=1e-4)


def test_a_large_restored_image_has_no_seams() -> None:
    prior = StationaryGaussian(length=8.0)
    truth = prior.sample(1, 3, 256, 384).float()
    kept = torch.rand(1, 256, 384, generator=torch.Generator().manual_seed(1)) < 0.3
    problem = lavps.InverseProblem.simulate(truth, Mask(kept), lavps.GaussianNoise(0.05))

    def restore(denoiser: lavps.priors.Prior) -> Tensor:
        sampler = lavps.MGDM(denoiser, num_steps=6, guidance=Gradient(2, WhitenedGradient()))
        return sampler.sample(problem).samples[0]

    whole = restore(prior)
    tiled, cut = (restore(TiledPrior(prior, 64, overlap, batch=32)) for overlap in (16, 0))
    assert seam_ratio(tiled, 64, 16) == pytest.approx(1.0, abs=0.05)
    assert seam_ratio(cut, 64, 0) > 1.5  # what the meter says of windows side by side
    assert (tiled - whole).square().mean() < 1e-3 * whole.square().mean()


def test_blocks_of_a_measurement_are_no_seams() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(3, 64, 64, generator=generator).repeat_interleave(4, 1).repeat_interleave(4, 2)
    assert seam_ratio(blocks, 64, 32) > 3.0
    assert seam_ratio(blocks, 64, 32, block=4) == pytest.approx(1.0, abs=0.05)
    windows = torch.randn(3, 8, 8, generator=generator).repeat_interleave(32, 1).repeat_interleave(32, 2)
    assert seam_ratio(blocks + 2.0 * windows, 64, 32, block=4) > 1.5


class _Held:
    """A tensor kept for a backward pass; counts itself as long as it lives."""

    now = most = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, size = tensor, tensor.numel() * tensor.element_size()
        type(self).now += size
        type(self).most = max(self.most, self.now)
        weakref.finalize(self, type(self).free, size)

    @classmethod
    def free(cls, size: int) -> None:
        cls.now -= size


def most_held(prior: lavps.priors.Prior, side: int) -> int:
    """Bytes held for backward passes at the worst moment of one gradient, apart from the image itself."""
    _Held.now = _Held.most = 0
    x = torch.zeros(1, 1, side, side, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(_Held, lambda held: held.tensor):
        prior.denoise(x, T).sum().backward()
    return _Held.most - x.numel() * x.element_size()


def test_the_memory_of_a_gradient_does_not_grow_with_the_image() -> None:
    prior = lavps.NetworkPrior(ConvDenoiser(width=2), lavps.VPLinear(), "v")
    tiled = TiledPrior(prior, 64, overlap=8, batch=8)
    small, large = (most_held(tiled, side) for side in (512, 1024))
    assert large <= 1.3 * small
    assert most_held(prior, 1024) > 3 * large  # the meter sees what a whole image's graph holds


def test_progress_counts_the_windows_of_both_passes() -> None:
    prior = PerPixel()
    reports = list[int]()
    tiled = TiledPrior(prior, window=4, batch=3, progress=reports.append)
    x = torch.zeros(2, 1, 8, 6, requires_grad=True)
    denoised = tiled.denoise(x, torch.tensor(0.5))
    assert tiled.count((8, 6)) == 6
    assert reports == [3, 3, 3, 3]  # after every denoiser call, two rows of 6 windows
    denoised.sum().backward()  # type: ignore[no-untyped-call]
    assert reports == [3] * 8
    assert tiled.count((3, 20)) == len(range(0, 17, 2))  # smaller than a window along one axis
    assert tiled == TiledPrior(prior, window=4, batch=3)  # not a setting
