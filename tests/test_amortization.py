from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lavps
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.amortization.model import InferenceModel
from lavps.evaluation import oracle_mixture, oracle_problem, score
from lavps.networks import MLP, LikelihoodGradient, MLPConfig, Palette, build_network
from lavps.operators import AveragePool, Blur, HDRClip, Mask
from lavps.operators.families import FixedOperator, RandomPixels
from lavps.samplers import UniformMidpoint

PRIOR = oracle_mixture()
NOISE = lavps.GaussianNoise(0.05)
ITEMS = range(40, 52)
CONDITIONING = (Palette(), LikelihoodGradient())


def model(conditioning=CONDITIONING, likelihood_step: bool = True, width: int = 64) -> InferenceModel:
    channels = InferenceModel.in_channels(1, conditioning, likelihood_step)
    config = MLPConfig((1, 8, 8), channels, 2, width=width, depth=2, second_time=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return InferenceModel(build_network(config.to_dict()), conditioning, likelihood_step)


def source(**options) -> ContextSource:
    settings = {"sampler": lavps.MGDM(PRIOR), "family": FixedOperator(AveragePool(4)), "noise": NOISE}
    return ContextSource(**{**settings, **options})


def clean(count: int = len(ITEMS), seed: int = 3) -> Tensor:
    return PRIOR.sample(count, seed=seed)


@pytest.mark.parametrize("operator", [AveragePool(4), Mask(torch.rand(8, 8) < 0.5), HDRClip(2.0)], ids=repr)
@pytest.mark.parametrize("likelihood_step", [True, False])
def test_an_untrained_model_is_the_zero_shot_start(operator, likelihood_step: bool) -> None:
    context = source(family=FixedOperator(operator)).draw(clean(), ITEMS)
    q = model(likelihood_step=likelihood_step)(context)
    assert torch.equal(q.mean, context.bridge.mean)
    assert torch.equal(q.log_std, context.bridge.log_std.expand_as(q.mean))


def test_an_untrained_model_leaves_mgdm_as_it_is() -> None:
    _, problem = oracle_problem(PRIOR, "inpainting", 2)
    options = {"num_steps": 12, "gradient_steps_start": 1}
    plain = lavps.MGDM(PRIOR, **options).sample(problem).samples
    for safeguard in (True, False):
        warm = lavps.LAVPS(PRIOR, model(), safeguard=safeguard, **options).sample(problem).samples
        torch.testing.assert_close(warm, plain, atol=1e-6, rtol=1e-5)


def test_the_shortcut_is_the_likelihood_step_solved() -> None:
    context = source(family=FixedOperator(Blur(torch.ones(3, 3)))).draw(clean(), ITEMS)
    untrained = model()
    assert untrained.gate is not None
    with torch.no_grad():
        untrained.gate[-1].bias.fill_(1.0)
    bounded = untrained(context).mean.detach()
    untrained.solver_steps = 3
    solved = lavps.LikelihoodStep(data_variance=0.25, solver_steps=3)(context).mean
    torch.testing.assert_close(untrained(context).mean, solved)
    assert float((solved - bounded).norm() / (solved - context.bridge.mean).norm()) > 0.05


def test_a_row_of_the_model_knows_nothing_of_the_others() -> None:
    trained = perturbed(model())
    context = source(family=RandomPixels(0.4, 0.6)).draw(clean(), ITEMS)
    rows = torch.tensor([5, 1])
    whole, part = trained(context), trained(context.select(rows))
    torch.testing.assert_close(part.mean, whole.mean[rows], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(part.log_std, whole.log_std[rows], atol=1e-5, rtol=1e-5)


def perturbed(network: InferenceModel) -> InferenceModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return network


def test_contexts_are_those_of_algorithm_1() -> None:
    drawn = source(sampler=lavps.MGDM(PRIOR, r_switch=0.7))
    context = drawn.draw(clean(400), range(400))
    (grid,) = drawn.grids
    places = (context.t * 100).round().long()
    torch.testing.assert_close(grid[places], context.t)
    assert set(places.tolist()) == set(range(2, 31)), "uniform on the grid inside the window"
    torch.testing.assert_close(context.s, grid[places - 1])
    torch.testing.assert_close(context.x_0, PRIOR.denoise(context.x_t, context.t))
    residual = context.problem.y - AveragePool(4)(clean(400))
    assert residual.std() == pytest.approx(0.05, rel=0.1)
    noise = (context.x_t - PRIOR.schedule.alpha(context.t).float().reshape(-1, 1, 1, 1) * clean(400)) / (
        PRIOR.schedule.sigma(context.t).float().reshape(-1, 1, 1, 1)
    )
    assert noise.std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("sampler", [lavps.MGDM(PRIOR), lavps.MGPS(PRIOR)])
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
    whole = drawn.draw(images, ITEMS, model())
    alone = drawn.draw(images[7:8], [47], model())
    for name in ("x_0", "x_t", "s", "t"):
        torch.testing.assert_close(getattr(alone, name)[0], getattr(whole, name)[7], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone.problem.y[0], whole.problem.y[7])


def test_operators_are_drawn_per_sample() -> None:
    context = source(family=RandomPixels(0.4, 0.6)).draw(clean(), ITEMS)
    masks = context.problem.operator(torch.ones(len(ITEMS), 1, 8, 8))
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(ITEMS)


def test_random_midpoints_are_drawn_as_the_sampler_does() -> None:
    context = source(sampler=lavps.MGDM(PRIOR, midpoint=UniformMidpoint())).draw(clean(200), range(200))
    assert (context.s < context.t).all()
    assert (context.s >= 0.01).all()
    assert (context.t - context.s).std() > 0.1


def test_contexts_of_mgps_are_its_own() -> None:
    sampler = lavps.MGPS(PRIOR)
    met = []

    def spy(context: lavps.Context) -> lavps.DiagonalGaussian:
        met.append((float(context.s), float(context.t)))
        return context.bridge

    _, problem = oracle_problem(PRIOR, "sr4", 1)
    lavps.MGPS(PRIOR, model=spy, safeguard=False, gradient_steps=0).sample(problem)
    context = source(sampler=sampler).draw(clean(300), range(300))
    pairs = {(round(s, 6), round(t, 6)) for s, t in met}
    assert {
        (round(s, 6), round(t, 6)) for s, t in zip(context.s.tolist(), context.t.tolist(), strict=True)
    } <= pairs


def test_a_rollout_ends_where_the_paper_begins() -> None:
    """Rolled out, x_0 is no longer D(x_t, t), but t and s are distributed as before."""
    rolled = source(rollout=3).draw(clean(300), range(300), model())
    plain = source().draw(clean(300), range(300))
    torch.testing.assert_close(rolled.t, plain.t)
    torch.testing.assert_close(rolled.s, plain.s)
    gap = (rolled.x_0 - PRIOR.denoise(rolled.x_t, rolled.t)).abs().flatten(1).mean(1)
    assert (gap > 1e-3).double().mean() > 0.9
    sizes = [c.x_t.flatten(1).std(1).mean() for c in (rolled, plain)]
    assert sizes[0] == pytest.approx(float(sizes[1]), rel=0.1)


def test_windows_and_rollouts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        source(sampler=lavps.MGDM(PRIOR, r_switch=1.0))
    with pytest.raises(ValueError, match="rollout"):
        source(sampler=lavps.MGPS(PRIOR), rollout=1)


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
    task = InferenceTask(model((Palette(),)), source(family=FixedOperator(problem.operator)))
    before = task.validate(clean(500))
    assert before["warm"] == pytest.approx(before["zero"])
    train_briefly(task, 150)
    after = task.validate(clean(500))
    assert after["zero"] == before["zero"]
    assert after["warm"] < 0.6 * after["zero"]
    assert after["acceptance"] > 0.9
    assert len(after["warm_by_time"]) == 10
    exact = lavps.exact_posterior(PRIOR, problem)
    free = {"gradient_steps_start": 0}
    warm = lavps.LAVPS(PRIOR, task.network, safeguard=False, **free).sample(problem, 64)
    cold = lavps.MGDM(PRIOR, **free).sample(problem, 64)
    assert warm.trace.backwards == 0
    assert score(warm.samples, problem, exact).sw2 < 0.5 * score(cold.samples, problem, exact).sw2


def test_the_task_describes_itself_in_plain_values() -> None:
    import json

    described = json.loads(json.dumps(InferenceTask(model(), source()).describe()))
    assert described["kind"] == "inference"
    assert described["window"] == pytest.approx([0.02, 0.99])
    assert InferenceTask(model(), source()).preview() is None


@pytest.mark.parametrize(
    "sampler",
    [lavps.MGDM(PRIOR, num_steps=8, r_switch=0.5), lavps.MGPS(PRIOR, num_steps=8)],
    ids=["mgdm", "mgps"],
)
def test_a_preview_restores_with_the_model(sampler: lavps.MGDM | lavps.MGPS) -> None:
    images, contexts = clean(3), source(sampler=sampler)
    shown = InferenceTask(model(), contexts, preview_images=images).preview()
    other = InferenceTask(perturbed(model()), contexts, preview_images=images).preview()
    assert torch.equal(shown[..., :8], images)
    assert shown[..., 8:].isfinite().all()
    assert not torch.equal(shown[..., 8:], other[..., 8:])


def test_gradients_reach_every_parameter_of_a_perturbed_model() -> None:
    task = InferenceTask(perturbed(model()), source())
    task.loss(clean(), ITEMS).mean().backward()
    for name, parameter in task.network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0, name
    assert isinstance(task.network.network, MLP)
