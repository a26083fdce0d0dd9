"""The supervised rival: a denoiser told of the measurement learns the posterior's, is written and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lavps
from lavps.amortization import ConditionalTask, Conditioning, LikelihoodGradient, Palette, save_conditional
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.amortization.measurements import measure
from lavps.amortization.model import InferenceModel
from lavps.guidance import Amortized
from lavps.nn import HDiTConfig, MLPConfig, build_seeded
from lavps.operators import JPEG, AveragePool, FixedOperator, OperatorFamily, PhaseRetrieval, RandomPixels
from lavps.training.trainer import TrainerConfig, train

SHAPE = (1, 8, 8)
NOISE = lavps.GaussianNoise(0.05)
PIXELS = RandomPixels(0.4, 0.6)


def gaussian() -> lavps.GaussianPrior:
    """Smooth images of 8 x 8 pixels, of standard deviation 0.3."""
    axis = torch.arange(8.0)
    place = torch.cartesian_prod(axis, axis)
    squares = (place[:, None] - place).square().sum(-1)
    return lavps.GaussianPrior(
        torch.zeros(SHAPE), 0.09 * torch.exp(-squares / 18), lavps.Flow(), torch.float32
    )


PRIOR = gaussian()
CHANNELS = (Palette(),)


def task(
    family: OperatorFamily = PIXELS,
    conditioning: tuple[Conditioning, ...] = CHANNELS,
    width: int = 64,
    **options: object,
) -> ConditionalTask:
    channels = lavps.ConditionalDenoiser.in_channels(1, conditioning)
    network = MLPConfig(SHAPE, channels, 1, width=width, depth=2).to_dict()
    model = lavps.ConditionalDenoiser(build_seeded(network, 0), conditioning, lavps.Flow(), "x0")
    return ConditionalTask(model, family, NOISE, SHAPE, description={"network": network}, **options)


def perturbed(model: lavps.ConditionalDenoiser) -> lavps.ConditionalDenoiser:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


# --- what it learns ---------------------------------------------------------------------------------------


class Exact:
    """The posterior's own denoiser, of as many measurements as there are different ones."""

    schedule = PRIOR.schedule

    def __init__(self) -> None:
        self.posteriors: dict[tuple[float, ...], lavps.GaussianMixturePrior] = {}

    def denoise(self, x_t: Tensor, t: Tensor, problem: lavps.InverseProblem) -> Tensor:
        x_0 = torch.zeros_like(x_t)
        for y in set(keys := [tuple(row.flatten().tolist()) for row in problem.y]):
            rows = torch.tensor([key == y for key in keys])
            if y not in self.posteriors:
                one = problem[int(rows.nonzero()[0])]
                (self.posteriors[y],) = lavps.exact_posterior(PRIOR, one)
            x_0[rows] = self.posteriors[y].denoise(x_t[rows], t)
        return x_0


def test_with_the_exact_denoiser_the_sampler_samples_the_exact_posterior() -> None:
    problem = measure(PRIOR.sample(2, seed=5), [0, 1], PIXELS, NOISE, 0)
    sampler = lavps.Supervised(Exact(), num_steps=60, grid_power=2.0)
    samples = sampler.sample(problem, 200, seed=1).samples
    for item, exact in enumerate(lavps.exact_posterior(PRIOR, problem)):
        error = (samples[item].mean(0) - exact.mean).square().mean().sqrt()
        assert error < 3 * exact.std.square().mean().sqrt() / 200**0.5
        assert samples[item].std(0).mean() == pytest.approx(float(exact.std.mean()), rel=0.1)


@pytest.mark.parametrize(
    "conditioning", [(Palette(),), (Palette(), LikelihoodGradient())], ids=["A+y", "and g"]
)
def test_training_beats_the_best_denoiser_that_is_not_told(tmp_path: Path, conditioning) -> None:
    trained = task(FixedOperator(AveragePool(4)), conditioning, width=128)
    config = TrainerConfig(
        tmp_path, steps=150, batch_size=128, learning_rate=3e-3, warmup_steps=20, ema_decay=0.95,
        weight_decay=0.0, log_every=150, validate_every=150, checkpoint_every=150, tensorboard=False,
    )  # fmt: skip
    result = train(trained, list(PRIOR.sample(4096, seed=1)), config, list(PRIOR.sample(64, seed=2)))
    x, items = PRIOR.sample(128, seed=3), range(-1, -129, -1)
    problem = trained.problem(x, items)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    for t in torch.tensor([0.5, 0.8, 1.0], dtype=torch.float64):
        x_t = (1 - t.float()) * x + t.float() * noise
        best, untold = Exact().denoise(x_t, t, problem), PRIOR.denoise(x_t, t)
        with torch.no_grad():
            told = trained.network.denoise(x_t, t, problem)
        assert (told - best).square().mean() < 0.1 * (untold - best).square().mean()
        assert (told - x).square().mean() < 0.5 * (untold - x).square().mean()
    assert result.validation["denoising_mse"] < 0.02
    samples = lavps.Supervised(trained.network, num_steps=20).sample(problem[0], 32).samples
    (exact,) = lavps.exact_posterior(PRIOR, problem[0])
    assert (samples[0].mean(0) - exact.mean).square().mean() < 0.05 * exact.mean.square().mean()


# --- the task ---------------------------------------------------------------------------------------------


def test_loss_of_an_item_does_not_depend_on_its_batch() -> None:
    trained, x = task(), PRIOR.sample(6)
    perturbed(trained.network)
    together = trained.loss(x, range(10, 16))
    alone = torch.cat([trained.loss(x[[i]], [10 + i]) for i in range(6)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together, trained.loss(x, range(6)))


def test_every_sample_has_an_operator_of_its_own() -> None:
    masks = task().problem(PRIOR.sample(6), range(6)).operator(torch.ones(6, *SHAPE))
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == 6


def test_the_task_describes_itself_and_shows_pairs() -> None:
    shown = task(preview_images=PRIOR.sample(3), preview_steps=2)
    described = json.loads(json.dumps(shown.describe()))
    assert described["kind"] == "conditional"
    assert "RandomPixels" in described["family"]
    assert shown.preview().shape == (3, 1, 8, 16)
    torch.testing.assert_close(shown.preview()[..., :8], PRIOR.sample(3))
    assert task().preview() is None


@pytest.mark.parametrize("operator", [AveragePool(2), JPEG(20), PhaseRetrieval()], ids=repr)
def test_nonlinear_operators_are_told_too(operator: lavps.operators.Operator) -> None:
    told = task(FixedOperator(operator), (Palette(), LikelihoodGradient()))
    perturbed(told.network)
    problem = told.problem(PRIOR.sample(2), [0, 1])
    samples = lavps.Supervised(told.network, num_steps=4).sample(problem, 2).samples
    assert samples.isfinite().all()
    assert told.loss(PRIOR.sample(2), [0, 1]).isfinite().all()


def test_a_problem_of_other_rows_is_refused() -> None:
    told = task()
    problem = told.problem(PRIOR.sample(2), [0, 1])
    with pytest.raises(ValueError, match=r"3 images \(1, 8, 8\) do not match a problem of 2"):
        told.network(torch.zeros(3, *SHAPE), torch.zeros(3), problem)


# --- files ------------------------------------------------------------------------------------------------


def fused(family: OperatorFamily = PIXELS) -> tuple[ConditionalTask, dict[str, object]]:
    network = HDiTConfig(
        2, 1, patch=2, widths=(16, 16), depths=(1, 1), attention=(3, None), head_dim=16, mapping_width=16,
        joint=(0,), image_channels=1,
    ).to_dict()  # fmt: skip
    model = lavps.ConditionalDenoiser(build_seeded(network, 0), (Palette(),), lavps.Flow())
    return ConditionalTask(model, family, NOISE, SHAPE), network


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["mlp", "invfusion"])
def test_a_model_written_and_loaded_samples_the_same(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    trained, network = fused() if kind == "invfusion" else ((t := task()), t.description["network"])
    perturbed(trained.network)
    save_conditional(tmp_path / "model", trained, network, {"steps": 1}, dtype)
    loaded = lavps.load_conditional(tmp_path / "model")
    problem = trained.problem(PRIOR.sample(2), [0, 1])
    ours, theirs = (
        lavps.Supervised(model, num_steps=3).sample(problem, 2).samples for model in (loaded, trained.network)
    )
    tolerance = 1e-6 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    assert loaded.conditioning == (Palette(),)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_a_folder_that_is_no_conditional_denoiser_says_so(tmp_path: Path) -> None:
    trained = task()
    written = save_conditional(tmp_path, trained, trained.description["network"])
    assert "RandomPixels" in written.operator["family"]
    with pytest.raises(ValueError, match="kind 'conditional', not a prior"):
        lavps.load_prior(tmp_path)
    with pytest.raises(ValueError, match="not an inference model"):
        lavps.load_inference_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, reason in [
        ({"kind": "inference"}, "not a conditional denoiser"),
        ({"conditioning": {"channels": [], "data_variance": 0.25}}, "takes 2 channels, .* have 1"),
        (
            {"conditioning": {"channels": [{"name": "os.system", "args": {}}]}},
            "unknown conditioning os.system",
        ),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ValueError, match=reason):
            lavps.load_conditional(tmp_path)


# --- mixed precision --------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [JPEG(20), AveragePool(2)], ids=repr)
def test_measurements_keep_their_precision_inside_autocast(operator: lavps.operators.Operator) -> None:
    x, z = PRIOR.sample(3), PRIOR.sample(3, seed=1)
    plain = measure(x, range(3), FixedOperator(operator), NOISE, 0)
    with torch.autocast("cpu", torch.bfloat16):
        half = measure(x, range(3), FixedOperator(operator), NOISE, 0)
        assert torch.equal(half.y, plain.y)
        found = half.log_likelihood(z), half.operator.vjp(z, half.y), half.curvature(z)
        assert half.select(torch.tensor([1])).log_likelihood(z[1:2]) == found[0][1]
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(
        found, (plain.log_likelihood(z), plain.operator.vjp(z, plain.y), plain.curvature(z)), rtol=0, atol=0
    )


@pytest.mark.parametrize("rollout", [0, 1])
def test_gradients_reach_an_inference_model_inside_autocast(rollout: int) -> None:
    channels = InferenceModel.in_channels(1, (Palette(),))
    network = MLPConfig(SHAPE, channels, 2, width=32, depth=1, second_time=True).to_dict()
    model = InferenceModel(build_seeded(network, 0), (Palette(),))
    sampler = lavps.MGDM(PRIOR, guidance=Amortized(model, steps=0, safeguard_every=None))
    source = ContextSource(sampler, FixedOperator(AveragePool(4)), NOISE, rollout)
    with torch.autocast("cpu", torch.bfloat16):
        loss = InferenceTask(source).loss(PRIOR.sample(4), range(4)).mean()
    loss.backward()
    assert loss.dtype == torch.float32
    assert sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None) > 0
