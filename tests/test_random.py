"""Noise is a pure function of its address (seed, item, sample, purpose, step, index)."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from lavps.random import NoiseStreams, Purpose, generator

SINGLE, DOUBLE = torch.empty(0), torch.empty(0, dtype=torch.float64)
COMPLEX = torch.empty(0, dtype=torch.complex128)
LARGE = NoiseStreams.from_seed(4, seed=11)
integers = st.integers(-(2**63), 2**64 - 1)

GOLDEN_NORMAL = [
    [0.6955443620681763, -0.38627538084983826, 1.010432481765747],
    [-0.1657250076532364, 1.1852449178695679, -0.6879842281341553],
]
GOLDEN_UNIFORM = [0.32985863900090673, 0.5139577913117602]
GOLDEN_COUNTS = [[14.0, 13.0, 15.0, 11.0], [12.0, 6.0, 13.0, 19.0]]
GOLDEN_PATH = [0.8429717363050394, 0.9403534007277933]
GOLDEN_PURPOSES = {
    "PRIOR": 0,
    "MEASUREMENT": 1,
    "OPERATOR": 2,
    "INITIAL": 3,
    "MIDPOINT": 4,
    "TRANSITION": 5,
    "OBJECTIVE": 6,
    "VARIATIONAL": 7,
    "DDIM": 8,
    "RENOISE": 9,
    "PROBE": 10,
    "COMPONENT": 11,
}


def draw(
    seed: int = 1,
    item: int = 2,
    sample: int = 3,
    purpose: Purpose = Purpose.MIDPOINT,
    step: int = 4,
    index: int = 5,
) -> Tensor:
    return NoiseStreams((seed,), (item,), (sample,)).normal(purpose, (16,), SINGLE, step, index)


@settings(deadline=None)
@given(integers, integers, st.integers(0, 10_000), st.sampled_from(Purpose), st.integers(0, 10_000))
def test_the_same_address_gives_the_same_draw(
    seed: int, item: int, sample: int, purpose: Purpose, step: int
) -> None:
    first, again = (draw(seed, item, sample, purpose, step) for _ in range(2))
    assert torch.equal(first, again)
    assert bool(first.isfinite().all())


def test_every_coordinate_of_the_address_changes_the_draw() -> None:
    changes = {"seed": 7, "item": 7, "sample": 7, "purpose": Purpose.PROBE, "step": 7, "index": 7}
    draws = [draw(), *[draw(**{name: value}) for name, value in changes.items()]]  # type: ignore[arg-type]
    for a, b in itertools.combinations(draws, 2):
        assert not bool((a == b).any())


def test_coordinates_are_not_interchangeable() -> None:
    rows = [draw(*address) for address in itertools.permutations((1, 2, 3))]
    for a, b in itertools.combinations(rows, 2):
        assert not bool((a == b).any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (3,), (7,), (1, 1, 1), (3, 5, 7), (3, 16, 16), (1, 33, 31), (2, 3, 4, 5)]
)
def test_a_row_of_a_batch_is_bit_identical_to_a_single_run(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    streams = NoiseStreams.from_seed(5, seed=9, num_samples=2)
    like = torch.empty(0, dtype=dtype)
    batch = streams.normal(Purpose.INITIAL, shape, like, step=3)
    assert batch.shape == (10, *shape)
    assert batch.dtype == dtype
    for row in range(10):
        single = streams.select([row]).normal(Purpose.INITIAL, shape, like, step=3)
        assert torch.equal(batch[row], single[0])


@pytest.mark.parametrize("size", [8191, 65_536, 100_003])
def test_a_large_row_of_a_batch_is_bit_identical_whatever_the_number_of_threads(size: int) -> None:
    batch = LARGE.normal(Purpose.INITIAL, (size,), SINGLE)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        parallel = LARGE.normal(Purpose.INITIAL, (size,), SINGLE)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(batch, parallel)
    for row in range(4):
        assert torch.equal(batch[row], LARGE.select([row]).normal(Purpose.INITIAL, (size,), SINGLE)[0])


def test_normals_are_standard_normal() -> None:
    z = LARGE.normal(Purpose.PRIOR, (3, 250, 250), DOUBLE).flatten()
    n = len(z)
    assert abs(z.mean().item()) < 4 / n**0.5
    assert abs(z.var().item() - 1) < 4 * (2 / n) ** 0.5
    assert abs(z.pow(3).mean().item()) < 4 * (15 / n) ** 0.5
    assert abs(z.pow(4).mean().item() - 3) < 4 * (96 / n) ** 0.5
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    assert 4.3 < z.abs().max().item() < 6.0


def test_both_halves_of_the_box_muller_pair_are_normal_and_independent() -> None:
    z = NoiseStreams.from_seed(1, seed=5).normal(Purpose.PRIOR, (100_000,), DOUBLE)[0]
    first, second = z[:50_000], z[50_000:]
    for half in (first, second):
        assert stats.kstest(half.numpy(), "norm").pvalue > 1e-3
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 4 / 50_000**0.5
    assert abs(torch.corrcoef(torch.stack([first.abs(), second.abs()]))[0, 1].item()) < 4 / 50_000**0.5


def test_neighbouring_addresses_are_independent() -> None:
    def neighbour(**change: int) -> Tensor:
        address = {"seed": 0, "item": 0, "sample": 0, "step": 0, "index": 0} | change
        streams = NoiseStreams((address["seed"],), (address["item"],), (address["sample"],))
        return streams.normal(
            Purpose.INITIAL, (20_000,), DOUBLE, step=address["step"], index=address["index"]
        )[0]

    draws = [neighbour()]
    for name in ("seed", "item", "sample", "step", "index"):
        draws += [neighbour(**{name: value}) for value in (1, 2)]
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws), dtype=torch.float64)
    assert correlation.abs().max().item() < 4.5 / 20_000**0.5


def test_the_first_number_of_many_addresses_is_normal() -> None:
    streams = NoiseStreams.from_seed(4000, seed=3)
    z = streams.normal(Purpose.PRIOR, (1,), DOUBLE).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > 1e-3
    assert abs(torch.corrcoef(torch.stack([z[1:], z[:-1]]))[0, 1].item()) < 4 / 4000**0.5


def bits(seed: int, item: int = 0, step: int = 0) -> np.ndarray:
    """4096 words as bits, (4096, 64)."""
    words = NoiseStreams((seed,), (item,), (0,))._words(Purpose.INITIAL, step, 0, 0, 4096)[0]
    return np.unpackbits(words.view(np.uint8).reshape(4096, 8), axis=1)


def test_every_bit_of_a_word_is_fair_and_neighbouring_words_share_none() -> None:
    one = bits(1)
    margin = 5 * 0.5 / 4096**0.5
    assert np.abs(one.mean(0) - 0.5).max() < margin
    for lag in (1, 2, 3, 64):
        assert np.abs((one[lag:] ^ one[:-lag]).mean(0) - 0.5).max() < margin * 1.01
    correlation = np.corrcoef(one.T) - np.eye(64)
    assert np.abs(correlation).max() < 5.5 / 4096**0.5


@pytest.mark.parametrize("bit", [0, 1, 7, 31, 32, 47, 63])
def test_one_bit_of_the_address_changes_half_of_the_bits_of_the_draw(bit: int) -> None:
    base = bits(1)
    for changed in (bits(1 ^ (1 << bit)), bits(1, item=1 << bit), bits(1, step=1 << bit)):
        flipped = base ^ changed
        assert abs(flipped.mean() - 0.5) < 5 * 0.5 / flipped.size**0.5
        assert np.abs(flipped.mean(0) - 0.5).max() < 5 * 0.5 / 4096**0.5


def test_bytes_of_a_long_draw_are_equally_frequent() -> None:
    words = NoiseStreams.from_seed(1, seed=4)._words(Purpose.PRIOR, 0, 0, 0, 50_000)
    assert len(np.unique(words)) == 50_000
    assert stats.chisquare(np.bincount(words.view(np.uint8).ravel(), minlength=256)).pvalue > 1e-3


def test_numbers_of_one_draw_are_uncorrelated_at_every_short_distance() -> None:
    z = NoiseStreams.from_seed(1, seed=6).normal(Purpose.PRIOR, (100_000,), DOUBLE)[0]
    for values in (z, z.square() - 1):
        for lag in range(1, 20):
            product = values[lag:] * values[:-lag]
            assert abs(product.mean().item()) < 4.5 * (product.var() / len(product)).sqrt().item()


def test_no_rows_and_no_numbers_are_no_special_case() -> None:
    nobody = NoiseStreams.from_seed(0)
    assert nobody.normal(Purpose.INITIAL, (3, 2), SINGLE).shape == (0, 3, 2)
    assert nobody.uniform(Purpose.COMPONENT).shape == (0,)
    assert nobody.poisson(Purpose.MEASUREMENT, torch.ones(0, 3)).shape == (0, 3)
    assert LARGE.normal(Purpose.INITIAL, (0, 2), SINGLE).shape == (4, 0, 2)


def test_precisions_share_their_numbers() -> None:
    z = LARGE.normal(Purpose.INITIAL, (33,), SINGLE)
    assert torch.equal(LARGE.normal(Purpose.INITIAL, (33,), DOUBLE), z.double())
    assert torch.equal(LARGE.normal(Purpose.INITIAL, (33,), SINGLE.to(torch.bfloat16)), z.to(torch.bfloat16))


def test_noise_goes_where_the_image_is() -> None:
    z = LARGE.normal(Purpose.INITIAL, (3,), torch.empty(0, device="meta"))
    assert z.device.type == "meta"
    assert z.shape == (4, 3)


def test_complex_noise_has_unit_variance_split_evenly() -> None:
    z = LARGE.normal(Purpose.MEASUREMENT, (20_000,), COMPLEX).flatten()
    assert z.abs().square().mean().item() == pytest.approx(1.0, abs=0.02)
    assert z.real.var().item() == pytest.approx(0.5, abs=0.01)
    assert z.imag.var().item() == pytest.approx(0.5, abs=0.01)
    assert abs((z.real * z.imag).mean().item()) < 0.01
    assert abs(z.mean().item()) < 0.02


def test_uniforms_fill_the_unit_interval() -> None:
    u = NoiseStreams.from_seed(5000, seed=2).uniform(Purpose.COMPONENT)
    assert u.shape == (5000,)
    assert u.dtype == torch.float64
    assert u.min().item() >= 0.0
    assert u.max().item() < 1.0
    assert stats.kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert abs(torch.corrcoef(torch.stack([u[1:], u[:-1]]))[0, 1].item()) < 4 / 5000**0.5
    assert torch.equal(NoiseStreams.from_seed(5000, seed=2).select([17]).uniform(Purpose.COMPONENT), u[17:18])


@pytest.mark.parametrize("rate", [0.0, 0.3, 4.0, 1000.0])
def test_counts_have_the_mean_and_variance_of_poisson(rate: float) -> None:
    counts = LARGE.poisson(Purpose.MEASUREMENT, torch.full((4, 50, 100), rate, dtype=torch.float64))
    n = counts.numel()
    assert counts.shape == (4, 50, 100)
    assert bool((counts == counts.round()).all())
    assert abs(counts.mean().item() - rate) <= 4 * (rate / n) ** 0.5
    assert abs(counts.var().item() - rate) <= 4 * ((rate + 2 * rate**2) / n) ** 0.5


def test_counts_are_a_function_of_the_row_and_of_its_own_rate() -> None:
    rate = torch.linspace(0.5, 60, 4 * 30).reshape(4, 30)
    counts = LARGE.poisson(Purpose.MEASUREMENT, rate)
    assert counts.dtype == torch.float32
    for row in range(4):
        assert torch.equal(
            LARGE.select([row]).poisson(Purpose.MEASUREMENT, rate[row : row + 1])[0], counts[row]
        )


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**63, 2**64 - 1, 2**80 + 12345])
def test_huge_and_negative_seeds_are_seeds_like_any_other(seed: int) -> None:
    z = NoiseStreams.from_seed(2, seed=seed).normal(Purpose.PRIOR, (1000,), DOUBLE)
    assert abs(z.mean().item()) < 0.1
    assert not torch.equal(z, NoiseStreams.from_seed(2, seed=0).normal(Purpose.PRIOR, (1000,), DOUBLE))
    assert generator(seed, seed, Purpose.OPERATOR).random() != generator(0, 0, Purpose.OPERATOR).random()


def test_the_item_id_and_not_the_place_decides_the_noise() -> None:
    forwards = NoiseStreams.from_seed(3, items=[10, 20, 30]).normal(Purpose.INITIAL, (5,), SINGLE)
    backwards = NoiseStreams.from_seed(3, items=[30, 20, 10]).normal(Purpose.INITIAL, (5,), SINGLE)
    assert torch.equal(forwards.flip(0), backwards)
    assert torch.equal(
        NoiseStreams.from_seed(1, items=[20]).normal(Purpose.INITIAL, (5,), SINGLE)[0], forwards[1]
    )
    default = NoiseStreams.from_seed(3).normal(Purpose.INITIAL, (5,), SINGLE)
    assert torch.equal(
        default, NoiseStreams.from_seed(3, items=[0, 1, 2]).normal(Purpose.INITIAL, (5,), SINGLE)
    )


def test_every_item_may_have_its_own_seed() -> None:
    seeds = [5, 6, 5]
    streams = NoiseStreams.from_seed(3, seed=seeds, items=[1, 1, 1])
    z = streams.normal(Purpose.INITIAL, (5,), SINGLE)
    assert torch.equal(z[0], z[2])
    for row, seed in enumerate(seeds):
        assert torch.equal(
            NoiseStreams.from_seed(1, seed, [1]).normal(Purpose.INITIAL, (5,), SINGLE)[0], z[row]
        )
    assert NoiseStreams.from_seed(2, seed=np.int64(4)) == NoiseStreams.from_seed(2, seed=4)
    assert NoiseStreams.from_seed(2, seed=np.array([4, 5])) == NoiseStreams.from_seed(2, seed=[4, 5])


def test_samples_of_an_item_lie_side_by_side_and_extend_each_other() -> None:
    streams = NoiseStreams.from_seed(2, seed=1, items=[7, 9], num_samples=3)
    assert len(streams) == 6
    assert streams.items == (7, 7, 7, 9, 9, 9)
    assert streams.samples == (0, 1, 2, 0, 1, 2)
    few, many = (
        NoiseStreams.from_seed(1, num_samples=n).normal(Purpose.INITIAL, (4,), SINGLE) for n in (2, 5)
    )
    assert torch.equal(many[:2], few)
    assert len({tuple(row.tolist()) for row in many}) == 5


@pytest.mark.parametrize(("seed", "items"), [([1, 2], None), (0, [1, 2]), ([1, 2, 3], [1]), ([], None)])
def test_wrong_lengths_are_refused(seed: int | list[int], items: list[int] | None) -> None:
    with pytest.raises(ValueError, match="3 items need"):
        NoiseStreams.from_seed(3, seed, items)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=8))
def test_select_takes_rows_in_any_order_and_number(rows: list[int]) -> None:
    streams = NoiseStreams.from_seed(3, seed=[4, 5, 6], num_samples=2)
    picked = streams.select(rows)
    assert len(picked) == len(rows)
    z = streams.normal(Purpose.DDIM, (3,), SINGLE)
    assert torch.equal(picked.normal(Purpose.DDIM, (3,), SINGLE), z[rows])


def test_global_generators_are_neither_read_nor_advanced() -> None:
    streams = NoiseStreams.from_seed(2)

    def everything() -> list[Tensor]:
        return [
            streams.normal(Purpose.INITIAL, (6,), SINGLE),
            streams.normal(Purpose.INITIAL, (6,), COMPLEX),
            streams.uniform(Purpose.COMPONENT),
            streams.poisson(Purpose.MEASUREMENT, torch.ones(2, 6)),
            torch.from_numpy(generator(0, 0, Purpose.OPERATOR).normal(size=4)),
        ]

    torch.manual_seed(0)
    np.random.seed(0)
    first, torch_state, numpy_state = everything(), torch.get_rng_state(), np.random.get_state()[1]
    torch.manual_seed(1)
    np.random.seed(1)
    for a, b in zip(first, everything(), strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(0)
    np.random.seed(0)
    everything()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_generators_are_found_by_their_address() -> None:
    def numbers(*address: int) -> list[float]:
        return generator(*address).normal(size=3).tolist()  # type: ignore[arg-type]

    base = numbers(1, 2, Purpose.OPERATOR, 3)
    assert base == numbers(1, 2, Purpose.OPERATOR, 3)
    for other in ((0, 2, Purpose.OPERATOR, 3), (1, 0, Purpose.OPERATOR, 3), (1, 2, Purpose.PRIOR, 3)):
        assert numbers(*other) != base
    assert numbers(1, 2, Purpose.OPERATOR) != base


def test_published_seeds_keep_their_meaning() -> None:
    streams = NoiseStreams.from_seed(2, seed=2024, items=[3, 4])
    normal = streams.normal(Purpose.INITIAL, (3,), SINGLE, step=5, index=6)
    uniform = streams.uniform(Purpose.COMPONENT, step=1)
    counts = streams.poisson(Purpose.MEASUREMENT, torch.full((2, 4), 10.0))
    path = generator(2024, 3, Purpose.OPERATOR).random(2)
    # Measured once, never to change: every published result depends on them.
    torch.testing.assert_close(normal, torch.tensor(GOLDEN_NORMAL), rtol=1e-5, atol=1e-6)
    assert uniform.tolist() == GOLDEN_UNIFORM
    assert counts.tolist() == GOLDEN_COUNTS
    assert path.tolist() == GOLDEN_PATH
    assert {purpose.name: purpose.value for purpose in Purpose}.items() >= GOLDEN_PURPOSES.items()


def test_threads_do_not_disturb_each_other() -> None:
    def work(_: int) -> list[Tensor]:
        return [
            streams.normal(Purpose.DDIM, (3, 32, 32), SINGLE, step=step)
            for step in range(10)
            for streams in (NoiseStreams.from_seed(2, seed=1), NoiseStreams.from_seed(1, seed=2))
        ]

    expected = work(0)
    with ThreadPoolExecutor(8) as pool:
        for result in pool.map(work, range(8)):
            for a, b in zip(result, expected, strict=True):
                assert torch.equal(a, b)
