from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch

import lavps
from lavps.amortization import LikelihoodGradient, Palette
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.amortization.model import InferenceModel
from lavps.evaluation import oracle_problem, score
from lavps.guidance import (
    Amortized,
    Gradient,
    Guidance,
    GuidedStep,
    Linearized,
    MidpointDraw,
    MidpointModel,
    switch,
)
from lavps.nn import MLP, MLPConfig, build_network
from lavps.operators import AveragePool, Blur, HDRClip, Mask
from lavps.operators.families import FixedOperator, RandomPixels
from lavps.priors import CountingPrior
from lavps.random import NoiseStreams, Purpose
from lavps.samplers import UniformMidpoint
from lavps.samplers.base import Run
from lavps.schedule import time_grid
from lavps.transitions import bridge, ddim_step, forward
from support.amortization import ITEMS, NOISE, PRIOR, clean, perturbed

CONDITIONING = (Palette(), LikelihoodGradient())


def model(conditioning=CONDITIONING, likelihood_step: bool = True, width: int = 64) -> InferenceModel:
    channels = InferenceModel.in_channels(1, conditioning, likelihood_step)
    config = MLPConfig((1, 8, 8), channels, 2, width=width, depth=2, second_time=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return InferenceModel(build_network(config.to_dict()), conditioning, likelihood_step)


def guided(model: MidpointModel, window: float = 1.0) -> Guidance:
    """The prediction taken as it is, once t <= window."""
    prediction = Amortized(model, steps=0, safeguard_every=None)
    return prediction if window == 1.0 else switch(Gradient(), prediction, at=window)


def mgdm(network: MidpointModel | None = None, window: float = 1.0, **options) -> lavps.MGDM:
    return lavps.MGDM(PRIOR, guidance=guided(network or model(), window), **options)


def mgps(network: MidpointModel | None = None, window: float = 1.0, **options) -> lavps.MGPS:
    return lavps.MGPS(PRIOR, guidance=guided(network or model(), window), **options)


def source(**options) -> ContextSource:
    settings = {"family": FixedOperator(AveragePool(4)), "noise": NOISE}
    if "sampler" not in options:
        settings["sampler"] = mgdm()
    return ContextSource(**{**settings, **options})


@pytest.mark.parametrize("operator", [AveragePool(4), Mask(torch.rand(8, 8) < 0.5), HDRClip(2.0)], ids=repr)
@pytest.mark.parametrize("likelihood_step", [True, False])
def test_an_untrained_model_is_the_zero_shot_start(operator, likelihood_step: bool) -> None:
    context = source(family=FixedOperator(operator)).draw(clean(), ITEMS)
    q = model(likelihood_step=likelihood_step)(context)
    assert torch.equal(q.mean, context.bridge.mean)
    assert torch.equal(q.log_std, context.bridge.log_std.expand_as(q.mean))


def test_an_untrained_model_leaves_mgdm_as_it_is() -> None:
    _, problem = oracle_problem(PRIOR, "inpainting", 2)
    plain = lavps.MGDM(PRIOR, num_steps=12, guidance=Gradient(1)).sample(problem).samples
    for every in (1, None):
        guidance = Amortized(model(), steps=1, safeguard_every=every)
        warm = lavps.MGDM(PRIOR, num_steps=12, guidance=guidance).sample(problem).samples
        torch.testing.assert_close(warm, plain, atol=1e-6, rtol=1e-5)


def test_the_shortcut_is_the_linearized_step() -> None:
    context = source(family=FixedOperator(Blur(torch.ones(3, 3)))).draw(clean(), ITEMS)
    untrained = model()
    assert untrained.gate is not None
    with torch.no_grad():
        untrained.gate[-1].bias.fill_(1.0)
    bounded = untrained(context).mean.detach()
    untrained.solver_steps = 3
    solved = Linearized(data_variance=0.25, solver_steps=3)(context).mean
    torch.testing.assert_close(untrained(context).mean, solved)
    assert float((solved - bounded).norm() / (solved - context.bridge.mean).norm()) > 0.05


def test_a_row_of_the_model_does_not_depend_on_the_others() -> None:
    trained = perturbed(model())
    context = source(family=RandomPixels(0.4, 0.6)).draw(clean(), ITEMS)
    rows = torch.tensor([5, 1])
    whole, part = trained(context), trained(context.select(rows))
    torch.testing.assert_close(part.mean, whole.mean[rows], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(part.log_std, whole.log_std[rows], atol=1e-5, rtol=1e-5)


def test_contexts_are_those_of_algorithm_1() -> None:
    drawn = source(sampler=mgdm(window=0.3))
    context = drawn.draw(clean(400), range(400))
    (grid,) = drawn.grids
    indices = (context.t * 100).round().long()
    torch.testing.assert_close(grid[indices], context.t)
    assert set(indices.tolist()) == set(range(2, 31)), "uniform on the steps that use the model"
    torch.testing.assert_close(context.s, grid[indices - 1])
    torch.testing.assert_close(context.x_0, PRIOR.denoise(context.x_t, context.t))
    residual = context.problem.y - AveragePool(4)(clean(400))
    assert residual.std() == pytest.approx(0.05, rel=0.1)
    noise = (context.x_t - PRIOR.schedule.alpha(context.t).float().reshape(-1, 1, 1, 1) * clean(400)) / (
        PRIOR.schedule.sigma(context.t).float().reshape(-1, 1, 1, 1)
    )
    assert noise.std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("sampler", [mgdm(), mgps(), mgdm(window=0.5), mgps(window=0.5)])
def test_contexts_of_several_grids_are_those_of_each(sampler: lavps.MGDM | lavps.MGPS) -> None:
    counts = (10, 25)
    context = source(sampler=sampler, step_counts=counts).draw(clean(600), range(600))
    pairs = set(zip(context.t.tolist(), context.s.tolist(), strict=True))
    each = [
        source(sampler=replace(sampler, num_steps=count)).draw(clean(600), range(600)) for count in counts
    ]
    expected = [set(zip(one.t.tolist(), one.s.tolist(), strict=True)) for one in each]
    assert pairs == expected[0] | expected[1]


@pytest.mark.parametrize(("rollout", "counts"), [(0, ()), (2, ()), (2, (10, 25, 100))])
def test_a_context_is_a_function_of_its_item(rollout: int, counts: tuple[int, ...]) -> None:
    drawn, images = source(family=RandomPixels(0.4, 0.6), rollout=rollout, step_counts=counts), clean()
    whole = drawn.draw(images, ITEMS)
    alone = drawn.draw(images[7:8], [47])
    for name in ("x_0", "x_t", "s", "t"):
        torch.testing.assert_close(getattr(alone, name)[0], getattr(whole, name)[7], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone.problem.y[0], whole.problem.y[7])


def test_operators_are_drawn_per_sample() -> None:
    context = source(family=RandomPixels(0.4, 0.6)).draw(clean(), ITEMS)
    masks = context.problem.operator(torch.ones(len(ITEMS), 1, 8, 8))
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(ITEMS)


def test_random_midpoints_are_drawn_as_the_sampler_does() -> None:
    context = source(sampler=mgdm(midpoint=UniformMidpoint())).draw(clean(200), range(200))
    assert (context.s < context.t).all()
    assert (context.s >= 0.01).all()
    assert (context.t - context.s).std() > 0.1


@pytest.mark.parametrize("window", [1.0, 0.5])
def test_contexts_of_mgps_are_its_own(window: float) -> None:
    met = []

    def spy(context: lavps.Context) -> lavps.DiagonalGaussian:
        met.append((float(context.s), float(context.t)))
        return context.bridge

    _, problem = oracle_problem(PRIOR, "sr4", 1)
    mgps(spy, window).sample(problem)
    drawn = source(sampler=mgps(window=window))
    context = drawn.draw(clean(600), range(600))
    pairs = {(round(s, 6), round(t, 6)) for s, t in met}
    assert {
        (round(s, 6), round(t, 6)) for s, t in zip(context.s.tolist(), context.t.tolist(), strict=True)
    } <= pairs
    times = [t for _, t in pairs]
    assert drawn.window == pytest.approx((min(times), max(times)))


def test_a_rollout_ends_where_the_paper_begins() -> None:
    """After a rollout x_0 is no longer D(x_t, t), but t and s are distributed as before."""
    rolled = source(rollout=3).draw(clean(300), range(300))
    plain = source().draw(clean(300), range(300))
    torch.testing.assert_close(rolled.t, plain.t)
    torch.testing.assert_close(rolled.s, plain.s)
    gap = (rolled.x_0 - PRIOR.denoise(rolled.x_t, rolled.t)).abs().flatten(1).mean(1)
    assert (gap > 1e-3).double().mean() > 0.9
    sizes = [c.x_t.flatten(1).std(1).mean() for c in (rolled, plain)]
    assert sizes[0] == pytest.approx(float(sizes[1]), rel=0.1)


def test_guidance_that_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ValueError, match="uses the model at no step of the grid of 100"):
        source(sampler=lavps.MGDM(PRIOR))
    with pytest.raises(ValueError, match="uses the model at no step of the grid of 10"):
        source(sampler=mgdm(window=0.1), step_counts=(100, 10))
    with pytest.raises(ValueError, match="rollout"):
        source(sampler=mgps(), rollout=1)
    two = switch(Amortized(model()), Amortized(model()), at=0.5)
    with pytest.raises(ValueError, match="must have one Amortized part to train, it has 2"):
        InferenceTask(source(sampler=lavps.MGDM(PRIOR, guidance=two)))
    with pytest.raises(TypeError, match="must be a torch module"):
        InferenceTask(source(sampler=mgdm(Linearized())))
    sparse = lavps.MGDM(PRIOR, guidance=Amortized(model(), steps=0, safeguard_every=3))
    source(sampler=sparse)
    with pytest.raises(ValueError, match="use safeguard_every=1 or None"):
        source(sampler=sparse, rollout=1)


def train_briefly(task: InferenceTask, steps: int, batch: int = 128) -> None:
    images = PRIOR.sample(2000, seed=11)
    optimizer = torch.optim.AdamW(task.network.parameters(), lr=2e-3, weight_decay=0.0)
    for step in range(steps):
        rows = torch.arange(step * batch, (step + 1) * batch) % len(images)
        optimizer.zero_grad()
        task.loss(images[rows], range(step * batch, (step + 1) * batch)).mean().backward()
        torch.nn.utils.clip_grad_norm_(task.network.parameters(), 1.0)
        optimizer.step()


def test_a_short_training_beats_the_zero_shot_start_and_pays_in_samples() -> None:
    _, problem = oracle_problem(PRIOR, "inpainting", 2)
    sampler = mgdm(model((Palette(),)))
    task = InferenceTask(source(sampler=sampler, family=FixedOperator(problem.operator)))
    before = task.validate(clean(500))
    assert before["warm"] == pytest.approx(before["zero"])
    train_briefly(task, 150)
    after = task.validate(clean(500))
    assert after["zero"] == before["zero"]
    assert after["warm"] < 0.6 * after["zero"]
    assert after["acceptance"] > 0.9
    assert len(after["warm_by_time"]) == 10
    exact = lavps.exact_posterior(PRIOR, problem)
    warm = sampler.sample(problem, 64)
    cold = lavps.MGDM(PRIOR, guidance=Gradient(0)).sample(problem, 64)
    assert warm.trace.backwards == 0
    assert score(warm.samples, problem, exact).sw2 < 0.5 * score(cold.samples, problem, exact).sw2


def test_the_task_describes_itself_in_plain_values() -> None:
    import json

    described = json.loads(json.dumps(InferenceTask(source()).describe()))
    assert described["kind"] == "inference"
    assert described["window"] == pytest.approx([0.02, 0.99])
    assert InferenceTask(source()).preview() is None


@pytest.mark.parametrize(
    "make", [partial(mgdm, window=0.5, num_steps=8), partial(mgps, num_steps=8)], ids=["mgdm", "mgps"]
)
def test_a_preview_restores_with_the_model(make: Callable[[InferenceModel], lavps.MGDM | lavps.MGPS]) -> None:
    images = clean(3)
    shown, other = (
        InferenceTask(source(sampler=make(network)), preview_images=images).preview()
        for network in (model(), perturbed(model()))
    )
    assert torch.equal(shown[..., :8], images)
    assert shown[..., 8:].isfinite().all()
    assert not torch.equal(shown[..., 8:], other[..., 8:])


def test_gradients_reach_every_parameter_of_a_perturbed_model() -> None:
    task = InferenceTask(source(sampler=mgdm(perturbed(model()))))
    task.loss(clean(), ITEMS).mean().backward()
    for name, parameter in task.network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0, name
    assert isinstance(task.network.network, MLP)


# --- rollouts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded(Guidance):
    """Another guidance, with the contexts of its draws on record."""

    inner: Guidance
    contexts: list[lavps.Context] = field(default_factory=list)

    def draw(self, step: GuidedStep) -> MidpointDraw:
        self.contexts.append(step.context)
        return self.inner.draw(step)

    def part(self, t: float) -> Guidance:
        return self.inner.part(t)


@torch.no_grad()
def algorithm_2(sampler: lavps.MGDM, c: lavps.Context, steps: int, item: int) -> lavps.Context:
    """The sampler's loop, written out for one row: from the context of step k to that of step k - J."""
    run = Run(CountingPrior(PRIOR), c.problem, NoiseStreams.from_seed(1, 0, [item]))
    schedule, grid = PRIOR.schedule, time_grid(sampler.num_steps)
    k = int((c.t * sampler.num_steps).round())
    u = grid[k + 1]
    x_u = forward(schedule, c.x_t, c.t, u).sample(run.normal(Purpose.TRAINING, index=1))
    for step in range(1, steps + 1):
        s, t = grid[k - 1], grid[k]
        for r in range(sampler.repetitions):
            x_s = sampler.guidance.part(float(t)).draw(run.guided_step(c, step, r)).x_s
            x, M = x_s, sampler.denoising_steps
            for m in range(M, 0, -1):
                x_0 = PRIOR.denoise(x, s * m / M)
                if m > 1:
                    noise = run.normal(Purpose.DDIM, step, r * M + m)
                    kernel = ddim_step(schedule, x_0, x, s * (m - 1) / M, s * m / M, sampler.eta)
                    x = kernel.sample(noise)
            noise = run.normal(Purpose.RENOISE, step, r)
            if sampler.renoise == "forward":
                x_t = forward(schedule, x_s, s, t).sample(noise)
            else:
                x_t = bridge(schedule, x_s, x_u, s, t, u).sample(noise)
            c = replace(c, x_0=x_0, x_t=x_t)
        x_u, u, k = x_t, t, k - 1
        noise = run.normal(Purpose.TRANSITION, step)
        x_t = bridge(schedule, c.x_0, x_u, torch.zeros_like(t), grid[k], u).sample(noise)
        c = replace(c, x_t=x_t, s=grid[k - 1], t=grid[k])
    return c


def small(early: Guidance = Gradient(1), late: Guidance | None = None, **options) -> lavps.MGDM:
    """Steps at t = 5/6, ..., 2/6; the model at the last two of them."""
    guidance = switch(early, prediction(steps=0, safeguard_every=None) if late is None else late, at=0.5)
    return lavps.MGDM(PRIOR, num_steps=6, guidance=guidance, **options)


def prediction(**options) -> Amortized:
    return Amortized(perturbed(model()), **options)


ROLLED_OUT = {
    "plain": small(),
    "renoise": small(renoise="bridge"),
    "denoising_steps": small(denoising_steps=3),
    "eta": small(denoising_steps=3, eta=0.0),
    "repetitions": small(repetitions=2),
    "early guidance": small(early=Gradient(2)),
    "linearized early": small(early=Linearized()),
    "refined": small(late=prediction(steps=2, safeguard_every=None)),
    "safeguarded": small(late=prediction(steps=0)),
    "safeguarded and refined": small(late=prediction(steps=1)),
    "all": small(Linearized(), prediction(steps=1), renoise="bridge", denoising_steps=2, repetitions=2),
}


@pytest.mark.parametrize("name", ROLLED_OUT)
def test_a_rollout_is_the_sampler_s_own_loop(name: str) -> None:
    sampler, recorded = ROLLED_OUT[name], Recorded(ROLLED_OUT[name].guidance)
    images, items = clean(6), range(6)
    drawn = source(sampler=replace(sampler, guidance=recorded), rollout=2, family=RandomPixels(0.4, 0.6))
    rolled = drawn.draw(images, items)
    beginning = recorded.contexts[0]
    steps = ((beginning.t - rolled.t) * 6).round().long()
    assert len(set(rolled.t.tolist())) > 1, "rows at different times"
    for row in items:
        c = beginning.select(torch.tensor([row]))
        expected = algorithm_2(sampler, replace(c, s=c.s[0], t=c.t[0]), int(steps[row]), row)
        assert float(rolled.t[row]) == pytest.approx(float(expected.t))
        assert float(rolled.s[row]) == pytest.approx(float(expected.s))
        torch.testing.assert_close(rolled.x_0[row], expected.x_0[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rolled.x_t[row], expected.x_t[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in ROLLED_OUT if name not in ("plain", "all")])
def test_a_rollout_depends_on_every_setting_of_the_sampler(name: str) -> None:
    rolled, plain = (
        source(sampler=ROLLED_OUT[key], rollout=2).draw(clean(6), range(6)) for key in (name, "plain")
    )
    beginnings = [source(sampler=ROLLED_OUT[key]).draw(clean(6), range(6)) for key in (name, "plain")]
    torch.testing.assert_close(beginnings[0].x_t, beginnings[1].x_t)
    torch.testing.assert_close(rolled.t, plain.t)
    assert (rolled.x_0 - plain.x_0).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("options", "per_step"),
    [
        ({}, 1),
        ({"denoising_steps": 3}, 3),
        ({"repetitions": 2}, 2),
        ({"guidance": {"steps": 2, "safeguard_every": None}}, 3),
        ({"guidance": {"steps": 2, "safeguard_every": None}, "repetitions": 2, "denoising_steps": 2}, 8),
        ({"guidance": {"steps": 0, "safeguard_every": 1}}, 2),
        ({"guidance": {"steps": 0, "safeguard_every": 1}, "denoising_steps": 2}, 4),
    ],
)
@pytest.mark.parametrize("rollout", [1, 3])
def test_a_rollout_evaluates_the_denoiser_as_often_as_the_sampler(
    options: dict[str, object], per_step: int, rollout: int
) -> None:
    metered, options = CountingPrior(PRIOR), dict(options)
    guidance = Amortized(model(), **(options.pop("guidance", None) or {"steps": 0, "safeguard_every": None}))
    sampler = lavps.MGDM(metered, num_steps=12, guidance=guidance, **options)
    source(sampler=sampler, rollout=rollout).draw(clean(), ITEMS)
    assert metered.forwards == len(ITEMS) * (1 + rollout * per_step)
    trace = sampler.sample(source(sampler=sampler).problem(clean(1), [0])).trace
    assert trace.step_forwards[1:].tolist() == [float(per_step)] * 9, "the first one evaluates D(x_1, 1) too"
