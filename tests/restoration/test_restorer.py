"""The function and the class behind the command: tiling, warm starts, exact posteriors."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import lavps
from lavps.amortization import Palette
from lavps.guidance import Amortized, Gradient
from lavps.nn import HDiT, HDiTConfig
from lavps.operators import AveragePool, RescaledOperator
from lavps.problem import PixelRangeWarning
from lavps.restoration import Restorer, restore
from lavps.restoration.manifest import assessment
from lavps.samplers import UNBOUND, Settings
from lavps.schedule import as_time
from lavps.tiling import TiledPrior, tiled_model
from lavps.tiling.tiled import TiledNetwork
from lavps.variational import Context
from support.checkpoints import write_latent
from support.problems import StationaryGaussian, images
from support.restoring import SIZE, write_model, write_prior


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    prior = write_prior(folder / "prior")
    return prior, write_model(folder / "model", prior)


def test_measurements_are_restored_in_a_few_lines() -> None:
    prior = StationaryGaussian(length=6.0, std=0.4)
    truth = prior.sample(1, 1, 12, 16).float()
    y = lavps.InverseProblem.simulate(truth, AveragePool(2), lavps.GaussianNoise(0.1)).y
    posterior = restore(y, AveragePool(2), prior, noise=0.1, samples=8, quality="fast")
    assert posterior.samples is not None
    assert posterior.samples.shape == (1, 8, 1, 12, 16)
    problem = lavps.InverseProblem(y, AveragePool(2), lavps.GaussianNoise(0.1))
    misfit = [float(problem.chi_square(x[None])) for x in posterior.samples[0]]
    assert 0.5 < sum(misfit) / 8 < 2.0
    assert assessment(misfit, 0.1).startswith("explains")
    error = (posterior.mean - truth).square().mean().sqrt()
    assert float(error) < 0.6 * float(truth.square().mean().sqrt())
    assert 0.5 < float(posterior.std.mean()) / float(error) < 1.5


def test_plain_functions_and_folders_will_do(folders: tuple[Path, Path]) -> None:
    posterior = restore(images(1, (3, SIZE, SIZE)), lambda x: x.flip(-1), folders[0], 0.05, quality="fast")
    assert posterior.mean.shape == (1, 3, SIZE, SIZE)
    assert posterior.std.isnan().all()  # of one sample


def test_one_measurement_needs_no_batch_axis(folders: tuple[Path, Path]) -> None:
    y = images(1, (3, SIZE // 2, SIZE // 2))
    batch = restore(y, AveragePool(2), folders[0], 0.05, quality="fast")
    one = restore(y[0], AveragePool(2), folders[0], 0.05, quality="fast")
    assert torch.equal(one.mean, batch.mean)
    assert one.mean.shape == (1, 3, SIZE, SIZE)


def test_measurements_in_another_range_are_refused_or_reported(folders: tuple[Path, Path]) -> None:
    y = images(1, (3, SIZE // 2, SIZE // 2))
    with pytest.raises(ValueError, match=r"must be in \[-1, 1\].* y / 127.5 - 1"):
        restore(127.5 * (y + 1), AveragePool(2), folders[0], 0.05, quality="fast")
    with pytest.raises(ValueError, match="contains NaN"):
        restore(torch.full_like(y, float("nan")), AveragePool(2), folders[0], 0.05, quality="fast")
    with pytest.raises(ValueError, match="replicates grey measurements"):
        restore(y[:, :1], AveragePool(2), folders[0], 0.05, quality="fast")
    unit = (y.clamp(-1, 1) + 1) / 2
    with pytest.warns(PixelRangeWarning, match=r"RescaledOperator\(operator, 0, 1\)") as caught:
        restore(unit, AveragePool(2), folders[0], 0.05, quality="fast")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", PixelRangeWarning)
        restore(y, AveragePool(2), folders[0], 0.05, quality="fast")
        restore(unit, RescaledOperator(AveragePool(2), 0, 1), folders[0], 0.05, quality="fast")


def test_noise_must_be_given_unless_the_operator_states_it(folders: tuple[Path, Path]) -> None:
    y = images(1, (3, SIZE // 2, SIZE // 2))
    with pytest.raises(ValueError, match="states no Gaussian noise: pass noise=std"):
        restore(y, AveragePool(2), folders[0], quality="fast")


def test_sizes_other_than_the_priors_are_tiled(folders: tuple[Path, Path]) -> None:
    restorer = Restorer.load(
        *folders, Settings(lavps.MGDM(UNBOUND, num_steps=4, guidance=Amortized(UNBOUND, 0))), tile_batch=3
    )
    assert restorer.image_shape == (3, SIZE, SIZE)
    own, model = restorer.on((3, SIZE, SIZE))
    assert own is restorer.prior
    assert model is restorer.model
    for shape in ((3, 5, 20), (3, 12, 8)):
        tiled, model = restorer.on(shape)
        assert isinstance(tiled, TiledPrior)
        assert (tiled.window, tiled.batch) == ((SIZE, SIZE), 3)
        assert model is not None
        assert isinstance(model.network, TiledNetwork)
        problem = lavps.InverseProblem(images(2, shape), lavps.operators.Identity(), lavps.GaussianNoise(0.2))
        both = restorer.restore(problem, seed=3).mean
        single = restorer.restore(problem[1], seed=3, items=[1]).mean
        torch.testing.assert_close(both[1:], single, atol=1e-4, rtol=1e-4)


def test_a_tiled_model_is_the_model_on_one_window_and_local_on_many(folders: tuple[Path, Path]) -> None:
    prior = lavps.load_prior(folders[0])
    model = lavps.load_inference_model(folders[1], prior)

    def predicted(model: lavps.InferenceModel, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        problem = lavps.InverseProblem(x, lavps.operators.Identity(), lavps.GaussianNoise(0.2))
        context = Context(0.5 * x, x, 0.9 * times, times, problem, prior.schedule)
        with torch.no_grad():
            return model(context).mean

    tiled = tiled_model(model, (SIZE, SIZE), batch=2)
    small, times = images(3, (3, SIZE, SIZE)), torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64)
    torch.testing.assert_close(predicted(tiled, small, times), predicted(model, small, times))
    torch.testing.assert_close(predicted(tiled, small, as_time(0.4)), predicted(model, small, as_time(0.4)))
    wide = images(1, (3, SIZE, 4 * SIZE))
    changed = wide.clone()
    changed[..., -1] += 1.0
    difference = (predicted(tiled, wide, as_time(0.4)) - predicted(tiled, changed, as_time(0.4))).abs()
    assert float(difference[..., -1].max()) > 0
    assert float(difference[..., : 2 * SIZE].max()) == 0.0  # no window of theirs sees the change
    flat = torch.full((1, 3, SIZE, 3 * SIZE), 0.2)
    once = torch.full((1, 3, SIZE, SIZE), 0.2)
    middle = predicted(tiled, flat, as_time(0.4))[..., SIZE + 4]
    alone = predicted(model, once, as_time(0.4))
    # Fused, a pixel is a mean of what windows say of it with its place in them: within their range.
    assert bool((middle <= alone.amax((2, 3))[..., None] + 1e-6).all())
    assert bool((middle >= alone.amin((2, 3))[..., None] - 1e-6).all())


def test_a_model_is_refused_for_another_prior_tiled_or_not(
    tmp_path: Path, folders: tuple[Path, Path]
) -> None:
    other = write_prior(tmp_path / "other", channels=1)
    with pytest.raises(ValueError, match=r"trained with prior \w+, not with other \([0-9a-f]{12}\)"):
        Restorer.load(other, folders[1])
    model = tiled_model(lavps.load_inference_model(folders[1]), (SIZE, SIZE))
    with pytest.raises(ValueError, match="trained with prior"):
        lavps.LAVPS(TiledPrior(lavps.load_prior(other), SIZE), model)


def test_a_network_that_looks_at_the_problem_is_not_tiled() -> None:
    config = HDiTConfig(
        12, 6, patch=2, widths=(16,), depths=(1,), attention=(None,), head_dim=16, image_channels=3,
        joint=(0,), second_time=True,
    )  # fmt: skip
    model = lavps.InferenceModel(HDiT(config), [Palette()])
    with pytest.raises(ValueError, match="InvFusion applies the operator inside its network"):
        tiled_model(model, (SIZE, SIZE))


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (9.0, "does not explain"),
        (2.0, "leave out --noise, or try 0.071"),
        (1.1, "explains"),
        (0.01, "overstated: try 0.005"),
    ],
)
def test_a_misfit_far_from_one_is_explained(level: float, words: str) -> None:
    assert words in assessment([level, level], 0.05)


def test_a_misfit_far_below_one_may_be_as_it_should() -> None:
    assert assessment([0.1], 0.01).startswith("follows the measurement more closely")
    assert assessment([0.1], 0.01, below=True).startswith("explains the measurement")


def test_latents_are_sampled_and_decoded(tmp_path: Path) -> None:
    write_latent(tmp_path)
    prior = lavps.load_prior(tmp_path)
    assert isinstance(prior, lavps.priors.LatentPrior)
    assert prior.image_shape == (3, 16, 16)
    y, noise = 0.1 * torch.ones(1, 3, 4, 6), lavps.GaussianNoise(0.1)
    settings = Settings(lavps.MGDM(UNBOUND, num_steps=4, guidance=Gradient(1)))
    found = Restorer(prior, settings).restore(lavps.InverseProblem(y, AveragePool(4), noise), 2, batch_size=1)
    operator = lavps.operators.DecodedOperator(AveragePool(4), prior)
    latents = (
        settings.sampler(prior).sample(lavps.InverseProblem(y, operator, noise), 2, batch_size=1).samples
    )
    assert latents is not None
    assert latents.shape == (1, 2, 4, 8, 12)
    with torch.no_grad():
        expected = prior.decode(latents[0])
    torch.testing.assert_close(found.samples[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.std[0], expected.std(0), rtol=1e-3, atol=1e-4)
