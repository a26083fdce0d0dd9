"""The contract every sampler keeps, whatever its algorithm."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import lavps
from extend.a_sampler import PulledDDIM
from lavps import Context, DiagonalGaussian
from lavps.data_step import Isotropic, Stationary
from lavps.data_step.schedule_numbers import Trend
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.operators import AveragePool, CallableOperator
from lavps.samplers import (
    Cancelled,
    FractionMidpoint,
    MixedMidpoint,
    NonFiniteError,
    Sampler,
    UniformMidpoint,
)
from lavps.transitions import per_sample
from support.problems import images, masking_problem, network_prior, pooling_problem

# These tests use predictions that suit some rows only, and networks that were never trained.
pytestmark = pytest.mark.filterwarnings("ignore::lavps.samplers.OutOfDistributionWarning")


def halfway(context: Context) -> DiagonalGaussian:
    """A prediction better for some rows than for others: it depends on the row's own image."""
    level = per_sample(context.x_t.flatten(1).mean(1), context.x_0)
    shift = 0.2 * torch.tanh(context.x_0) + 0.05 * level
    return DiagonalGaussian(context.bridge.mean + shift, context.bridge.log_std - 0.1)


class Corrected:
    """A prior as a conditional denoiser: it corrects what the measurement contradicts."""

    def __init__(self, prior: lavps.Prior) -> None:
        self.prior = prior

    @property
    def schedule(self) -> lavps.schedule.Schedule:
        return self.prior.schedule

    def denoise(self, x_t: Tensor, t: Tensor, problem: lavps.InverseProblem) -> Tensor:
        x_0 = self.prior.denoise(x_t, t)
        return x_0 + 0.5 * problem.operator.vjp(x_0, problem.residual(problem.operator(x_0)))


def with_trends(sampler: lavps.WienerPIR) -> lavps.TunedPIR:
    """Return a schedule whose numbers depend on the problem, by made-up slopes."""
    start = lavps.TunedPIR.like(sampler)
    steps = start.num_steps
    levels, factors = tuple(0.3 for _ in range(steps)), tuple(0.05 for _ in range(steps - 1))
    trend = Trend(0.1, 0.01, 10.0, levels, levels, factors, factors, factors)
    return replace(start, by_noise=trend, by_unobserved=replace(trend, reference=1.0))


K = 10
WHITENED = lavps.WhitenedGradient()
SAMPLERS: dict[str, Callable[[lavps.Prior], Sampler]] = {
    "MGDM": lambda p: lavps.MGDM(p, num_steps=K, guidance=Gradient(steps=2)),
    "MGDM-whitened": lambda p: lavps.MGDM(p, num_steps=K, guidance=Gradient(1, WHITENED)),
    "MGDM-bridge-repeated": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=Gradient(1), renoise="bridge", repetitions=2, denoising_steps=3, eta=0.5
    ),
    "MGDM-switched": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=switch(Gradient(0), Gradient(2), at=0.4), midpoint=UniformMidpoint()
    ),
    "MGDM-mixed": lambda p: lavps.MGDM(p, num_steps=K, guidance=Gradient(1), midpoint=MixedMidpoint()),
    "MGDM-fraction": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=Gradient(1), midpoint=FractionMidpoint(), grid_power=1.5
    ),
    "LAVPS": lambda p: lavps.LAVPS(p, halfway, num_steps=K, r_switch=0.5),
    "LAVPS-unguarded": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=Amortized(halfway, steps=0, safeguard_every=None)
    ),
    "linearized-safeguarded": lambda p: lavps.MGDM(p, num_steps=K, guidance=Amortized(Linearized(), steps=0)),
    "linearized-damped": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=switch(Linearized(data_variance=0.01), Linearized(), at=0.5)
    ),
    "linearized-then-gradients": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=Amortized(Linearized(), steps=1, safeguard_every=None)
    ),
    "LAVPS-then-linearized": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=switch(Amortized(halfway, steps=0), Linearized(), at=0.5)
    ),
    "LAVPS-safeguarded-G0": lambda p: lavps.MGDM(p, num_steps=K, guidance=Amortized(halfway, steps=0)),
    "LAVPS-safeguarded-G2": lambda p: lavps.MGDM(p, num_steps=K, guidance=Amortized(halfway, steps=2)),
    "LAVPS-safeguarded-every-third": lambda p: lavps.MGDM(
        p, num_steps=K, guidance=Amortized(halfway, steps=0, safeguard_every=3)
    ),
    "LAVPS-late-gradients": lambda p: lavps.MGDM(
        p,
        num_steps=K,
        guidance=switch(Amortized(halfway, 0, WHITENED), Amortized(halfway, 1, WHITENED), at=0.3),
    ),
    "MGPS": lambda p: lavps.MGPS(p, num_steps=K, guidance=Gradient(2, WHITENED)),
    "MGPS-amortized": lambda p: lavps.MGPS(p, num_steps=K, guidance=Amortized(halfway, 1, WHITENED)),
    "MGPS-linearized": lambda p: lavps.MGPS(p, num_steps=K, guidance=Linearized()),
    "DPS": lambda p: lavps.DPS(p, num_steps=K),
    "DPS-ddim": lambda p: lavps.DPS(p, num_steps=K, eta=0.0, step_size=0.3),
    "MMPS": lambda p: lavps.MMPS(p, num_steps=K, solver_steps=2),
    "DiffPIR": lambda p: lavps.DiffPIR(p, num_steps=K),
    "DiffPIR-strong": lambda p: lavps.DiffPIR(
        p, num_steps=K, covariance=Isotropic(7.0), zeta=1.0, grid_power=1.5, last_time=0.02
    ),
    "WienerPIR": lambda p: lavps.WienerPIR(p, num_steps=K),
    "FusedPIR": lambda p: lavps.FusedPIR(p, num_steps=K),
    "FusedPIR-full": lambda p: lavps.FusedPIR(p, num_steps=K, draw="full", zeta=1.0, relaxation=1.2),
    "TunedPIR": lambda p, steps=K: lavps.TunedPIR.like(lavps.WienerPIR(p, num_steps=steps)),
    "TunedPIR-trends": lambda p, steps=K: with_trends(lavps.WienerPIR(p, num_steps=steps)),
    "FewStep": lambda p: lavps.FewStep(p, lavps.FewStepModel(p, limits=(1.0,) * 4)),
    "WienerPIR-full": lambda p: lavps.WienerPIR(p, num_steps=K, draw="full", zeta=1.0),
    "PiGDM": lambda p: lavps.PiGDM(p, num_steps=K),
    "PiGDM-stationary": lambda p: lavps.PiGDM(p, num_steps=K, covariance=Stationary(1.0, 1.0), eta=0.5),
    "DDNM": lambda p: lavps.DDNM(p, num_steps=K),
    "DDNM-ancestral": lambda p: lavps.DDNM(p, num_steps=K, eta=1.0, grid_power=1.5),
    "DAPS": lambda p: lavps.DAPS(p, num_steps=K, denoising_steps=3),
    "DAPS-Langevin": lambda p: lavps.DAPS(p, num_steps=K, denoising_steps=2, langevin_steps=10),
    "DDIM": lambda p: lavps.DDIM(p, num_steps=K),
    "PulledDDIM, the example": lambda p: PulledDDIM(p, num_steps=K),
    "Supervised": lambda p: lavps.Supervised(Corrected(p), num_steps=K),
    "Supervised-deterministic": lambda p: lavps.Supervised(
        Corrected(p), num_steps=K, eta=0.0, grid_power=1.5
    ),
}
EVERY = pytest.mark.parametrize("name", SAMPLERS)


class CountingPrior:
    """Counts images forward and backward on its own, below the library's meter."""

    def __init__(self, prior: lavps.Prior) -> None:
        self.prior = prior
        self.forwards = self.backwards = 0

    @property
    def schedule(self) -> lavps.schedule.Schedule:
        return self.prior.schedule

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        self.forwards += len(x_t)
        result: Tensor = _Tap.apply(self.prior.denoise(x_t, t), self)
        return result


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, counter):
        ctx.counter = counter
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.counter.backwards += len(gradient)
        return gradient, None


@EVERY
@pytest.mark.parametrize("make", [pooling_problem, masking_problem])
def test_a_row_of_a_batch_equals_the_single_run(
    name: str, make: Callable[[int], lavps.InverseProblem]
) -> None:
    sampler, problem = SAMPLERS[name](network_prior()), make(4)
    batch = sampler.sample(problem, seed=3).samples
    assert batch is not None
    for item in (0, 3):
        single = sampler.sample(problem[item], seed=3, items=[item]).samples
        assert single is not None
        torch.testing.assert_close(single[0], batch[item], atol=1e-5, rtol=1e-5)
    changed = sampler.sample(problem.select(torch.tensor([2, 3, 3])), seed=3, items=[7, 3, 9]).samples
    assert changed is not None
    torch.testing.assert_close(changed[1], batch[3], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(changed[2], batch[3], atol=1e-3), "another item id is another draw"


@EVERY
def test_samples_do_not_depend_on_chunks_or_on_their_number(name: str) -> None:
    sampler, problem = SAMPLERS[name](network_prior()), pooling_problem(2)
    whole = sampler.sample(problem, 5, seed=1)
    chunked = sampler.sample(problem, 5, seed=1, batch_size=3)
    fewer = sampler.sample(problem, 2, seed=1)
    torch.testing.assert_close(whole.samples, chunked.samples, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(whole.samples[:, :2], fewer.samples, atol=1e-5, rtol=1e-5)
    assert chunked.trace.forwards == pytest.approx(whole.trace.forwards, abs=0.8)
    assert chunked.trace.losses.shape == whole.trace.losses.shape


@EVERY
@pytest.mark.thorough
def test_eight_threads_on_one_object_equal_the_serial_result(name: str) -> None:
    sampler = SAMPLERS[name](network_prior())
    problems = [pooling_problem(2, seed=n) for n in range(8)]

    def run(n: int) -> Tensor:
        return sampler.sample(problems[n], seed=n).samples

    serial = [run(n) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        threaded = list(pool.map(run, range(8)))
    for a, b in zip(serial, threaded, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


def live_bytes() -> int:
    gc.collect()
    # Scalars of the schedule come and go, and are remembered; what counts is images.
    return sum(o.nbytes for o in gc.get_objects() if type(o) is Tensor and o.numel() > 4)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "FewStep"])  # which has 4 steps
@pytest.mark.thorough
def test_memory_after_50_steps_equals_that_after_5(name: str) -> None:
    prior = network_prior()
    if name.startswith("TunedPIR"):
        sampler = SAMPLERS[name](prior, 60)
    else:
        sampler = replace(SAMPLERS[name](prior), num_steps=60)
    sizes = {}
    for step in sampler.iterate(pooling_problem(2), seed=0):
        if step.index in (5, 50):
            sizes[step.index] = live_bytes()
    assert sizes[50] == sizes[5]


@EVERY
@pytest.mark.parametrize("batch", [1, 4])
def test_counts_equal_a_counting_denoiser(name: str, batch: int) -> None:
    prior = CountingPrior(network_prior())
    trace = SAMPLERS[name](prior).sample(pooling_problem(batch), 2, seed=0).trace
    assert trace.forwards * batch * 2 == pytest.approx(prior.forwards)
    assert trace.backwards * batch * 2 == pytest.approx(prior.backwards)
    assert prior.forwards > 0


@EVERY
def test_the_last_step_is_the_sample_and_steps_can_be_watched(name: str) -> None:
    sampler, problem = SAMPLERS[name](network_prior()), pooling_problem(2)
    steps = list(sampler.iterate(problem, 3, seed=4))
    assert [step.index for step in steps] == list(range(sampler.total_steps))
    assert all(step.total == sampler.total_steps for step in steps)
    samples = sampler.sample(problem, 3, seed=4).samples
    torch.testing.assert_close(steps[-1].x_0.reshape(samples.shape), samples)


@EVERY
def test_a_callback_can_cancel_within_one_step(name: str) -> None:
    sampler, seen = SAMPLERS[name](network_prior()), []

    def callback(step: lavps.samplers.Step) -> bool:
        seen.append(step.index)
        return step.index == 2

    with pytest.raises(Cancelled):
        sampler.sample(pooling_problem(1), callback=callback)
    assert seen == [0, 1, 2]


@EVERY
def test_non_finite_values_raise_naming_step_and_item(name: str) -> None:
    class Broken:
        schedule = lavps.VPLinear()

        def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
            out = 0.5 * x_t
            bad = torch.zeros(len(x_t), dtype=torch.bool)
            bad[-1] = float(t.max()) < 0.22
            return torch.where(bad.reshape(-1, 1, 1, 1), float("nan"), out)

    sampler = SAMPLERS[name](Broken())
    with pytest.raises(NonFiniteError, match=r"item\(s\) \[42\]") as error:
        sampler.sample(pooling_problem(2), items=[7, 42])
    assert error.value.items == (42,)
    assert error.value.step > 0
    assert error.value.sampler == sampler.name
    assert str(error.value).startswith(f"{sampler.name}: x_0 is not finite at step {error.value.step} (t = ")


@EVERY
def test_no_trace_is_left_on_the_world(name: str) -> None:
    prior = network_prior()
    state, np_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    samples = SAMPLERS[name](prior).sample(pooling_problem(2)).samples
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], np_state)
    assert not samples.requires_grad
    assert all(parameter.grad is None for parameter in prior.network.parameters())
    assert torch.is_grad_enabled()


@EVERY
@pytest.mark.parametrize("schedule", [lavps.Flow(), lavps.Cosine(), lavps.VE(sigma_max=20.0)], ids=repr)
def test_schedules_without_signal_at_the_end_are_sampled(
    name: str, schedule: lavps.schedule.Schedule
) -> None:
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.25 * torch.eye(64), schedule)
    posterior = SAMPLERS[name](prior).sample(pooling_problem(2), 2)
    assert posterior.samples.isfinite().all()
    assert posterior.samples.abs().max() < 10


@EVERY
@pytest.mark.parametrize("shape", [(2, 12), (1, 6, 4), (1, 4, 6, 2)], ids=str)
def test_any_number_of_spatial_axes(name: str, shape: tuple[int, ...]) -> None:
    prior = network_prior(dims=len(shape) - 1, channels=shape[0])
    problem = lavps.InverseProblem.simulate(images(2, shape), AveragePool(2), lavps.GaussianNoise(0.1))
    assert SAMPLERS[name](prior).sample(problem).samples.shape == (2, 1, *shape)


@EVERY
def test_double_precision_stays_double(name: str) -> None:
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.25 * torch.eye(64))
    problem = lavps.InverseProblem.simulate(images(1).double(), AveragePool(2), lavps.GaussianNoise(0.1))
    assert SAMPLERS[name](prior).sample(problem).samples.dtype == torch.float64


@EVERY
def test_complex_measurements_are_sampled(name: str) -> None:
    operator = CallableOperator(lambda x: torch.fft.fft2(x, norm="ortho")[..., ::2], (1, 8, 8))
    problem = lavps.InverseProblem.simulate(images(2), operator, lavps.GaussianNoise(0.1))
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), 0.25 * torch.eye(64))
    posterior = SAMPLERS[name](prior).sample(problem)
    assert posterior.samples.isfinite().all()
    assert not posterior.samples.is_complex()


@EVERY
def test_inference_mode_is_refused_with_advice(name: str) -> None:
    sampler, problem = SAMPLERS[name](network_prior()), pooling_problem(1)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        sampler.sample(problem)


@EVERY
def test_a_bar_shows_the_time_left(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    sampler = SAMPLERS[name](network_prior())
    sampler.sample(pooling_problem(1), progress=True)
    out = capsys.readouterr().err
    assert f"{sampler.total_steps}/{sampler.total_steps}" in out
    sampler.sample(pooling_problem(1))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [n for n in SAMPLERS if n != "DDIM"])
def test_a_measurement_is_needed(name: str) -> None:
    with pytest.raises(TypeError, match="InverseProblem"):
        SAMPLERS[name](network_prior()).sample(lavps.Unconditional((1, 8, 8)))
