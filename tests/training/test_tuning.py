"""Learned schedules: nearer to the exact posterior, and refused for what they were not tuned for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import lavps
from lavps.cli import main
from lavps.data_step import LARGEST_LEVEL, Stationary
from lavps.data_step.schedule_numbers import Properties, Trend
from lavps.evaluation import oracle_mixture, oracle_problem, score
from lavps.operators.families import CentreBox, FixedOperator
from lavps.priors import CountingPrior
from lavps.random import NoiseStreams
from lavps.restoration.schedules import TunedSchedule
from lavps.samplers import Settings
from lavps.samplers.base import Run
from lavps.training.scores import sample_score
from lavps.training.tuning import TuningConfig, tune
from support.restoring import picture, save, write_prior


def test_the_initial_schedule_has_the_levels_of_one_evaluation_more() -> None:
    sampler = lavps.WienerPIR(oracle_mixture(seed=1), num_steps=6)
    schedule = sampler.prior.schedule
    longer = schedule.noise_level(replace(sampler, num_steps=7).times(schedule)[1:]).flip(0)
    ours = lavps.TunedPIR.like(sampler)
    assert ours.levels == ours.data_levels == pytest.approx(longer[1:].tolist(), rel=1e-4)
    assert ours.fresh == pytest.approx([0.8**0.5] * 5, rel=1e-4)


@pytest.mark.parametrize("level", [0.05, 5.0])
def test_one_evaluation_is_exact_for_the_gaussian_of_the_covariance(level: float) -> None:
    """The start is a draw given the measurement: without it, a low first level gives a wrong posterior."""
    spectrum = Stationary(variance=1.0, exponent=2.0)
    basis = torch.eye(64).reshape(64, 1, 8, 8)
    wide = torch.tensor(LARGEST_LEVEL)
    matrix = spectrum.product(wide, basis)(basis).reshape(64, 64).double()
    prior = lavps.GaussianPrior(torch.zeros(1, 8, 8), matrix)
    _, problem = oracle_problem(prior, "sr4", 1, seed=2)
    (exact,) = lavps.exact_posterior(prior, problem)
    sampler = lavps.TunedPIR(
        prior, levels=(level,), data_levels=(level,), relaxations=(), kept=(), fresh=(), covariance=spectrum
    )
    samples = sampler.sample(problem, 4000, batch_size=500).samples[0].flatten(1).double()
    mean, covariance = exact.mean, exact.covariances[0]
    std = covariance.diagonal().sqrt()
    assert ((samples.mean(0) - mean.flatten()) / std).abs().max() < 5 / 4000**0.5
    assert (samples.T.cov() - covariance).norm() / covariance.norm() < 0.1


def test_a_trend_moves_the_numbers_of_each_row_within_the_range_of_its_tuning() -> None:
    start = lavps.TunedPIR.like(lavps.WienerPIR(oracle_mixture(), num_steps=3))
    trend = Trend(0.1, 0.05, 0.2, (0.0, 0.0, 1.0), (0.5,) * 3, (0.1,) * 2, (0.0,) * 2, (-1.0,) * 2)
    sampler = replace(start, by_noise=trend)
    noise = torch.tensor([0.1, 0.2, 0.4, 1e-9])
    numbers = sampler.numbers(Properties(noise, torch.ones(4)))
    assert numbers.levels.shape == (3, 4)
    assert numbers.levels[:, 0].tolist() == pytest.approx(start.levels)
    assert numbers.levels[2].tolist() == pytest.approx([start.levels[2] * c for c in (1.0, 2.0, 2.0, 0.5)])
    assert numbers.fresh[0, 1] == pytest.approx(start.fresh[0] - math.log(2.0))
    assert bool((numbers.levels[1:] < numbers.levels[:-1]).all())
    steep = replace(trend, levels=(0.0, 0.0, 9.0))
    crossed = replace(start, by_noise=steep).numbers(Properties(noise, torch.ones(4)))
    assert bool((crossed.levels[1:] < crossed.levels[:-1]).all())
    with pytest.raises(ValueError, match="lowest <= reference"):
        replace(trend, lowest=0.15)


def test_properties_are_noise_levels_of_an_image() -> None:
    """Noise in units of the image, whatever the operator's gain; a large hole is decided at a high level."""
    sampler = lavps.TunedPIR.like(lavps.WienerPIR(oracle_mixture(), num_steps=3))
    shape, items = (3, 32, 32), [0, 1, 2, 3]

    def properties(operator: lavps.Operator, std: float) -> Properties:
        problem = lavps.InverseProblem.simulate(torch.zeros(4, *shape), operator, lavps.GaussianNoise(std))
        streams = NoiseStreams.from_seed(4, 0, items)
        return sampler.properties(Run(CountingPrior(sampler.prior), problem, streams))

    plain, tenfold = (
        properties(lavps.operators.CallableOperator(lambda x, g=gain: g * x, shape), gain * 0.05)
        for gain in (1.0, 10.0)
    )
    assert plain.noise.tolist() == pytest.approx([0.05] * 4, rel=1e-3)
    for first, second in zip(plain, tenfold, strict=True):
        assert first.tolist() == pytest.approx(second.tolist(), rel=1e-2)
    box = properties(CentreBox().draw([0], shape), 0.05)
    pooling = properties(lavps.operators.AveragePool(4), 0.05)
    assert float(plain.unobserved.max()) < float(pooling.unobserved.min())
    assert 1.5 * float(pooling.unobserved.max()) < float(box.unobserved.min())


def test_a_learned_schedule_is_nearer_to_the_exact_posterior() -> None:
    prior = oracle_mixture(seed=1)
    _, problem = oracle_problem(prior, "sr4", 4, seed=1)
    exact = lavps.exact_posterior(prior, problem)
    covariance = Stationary.fit(prior.sample(512, seed=9))
    initial = lavps.WienerPIR(prior, num_steps=4, covariance=covariance)
    images, std = prior.sample(1024, seed=77), float(problem.noise.std)  # type: ignore[attr-defined]

    def drawn(items: Sequence[int]) -> Tensor:
        return images[[item % len(images) for item in items]]

    result = tune(
        initial,
        drawn,
        prior.sample(64, seed=5),
        FixedOperator(problem.operator),
        (std, std),
        TuningConfig(iterations=80, batch_size=16, validate_every=20),
    )
    assert result.after < 0.95 * result.before  # the start alone is better than WienerPIR
    before, after = (
        score(sampler.sample(problem, 96).samples, problem, exact) for sampler in (initial, result.sampler)
    )
    assert after.sw2 < 0.75 * before.sw2, (before.sw2, after.sw2)
    chi_square = problem.repeat(32).chi_square(result.sampler.sample(problem, 32).samples.flatten(0, 1))
    assert 0.7 < float(chi_square.mean()) < 1.5
    settings = Settings(result.sampler)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_a_perceptual_distance_is_added_as_the_mean_over_both_samples() -> None:
    prior = oracle_mixture(seed=1)
    _, problem = oracle_problem(prior, "sr4", 1)
    images = prior.sample(4, seed=5)
    initial = lavps.WienerPIR(prior, num_steps=2)

    def before(perceptual: Callable[[Tensor, Tensor], Tensor] | None) -> float:
        config = TuningConfig(iterations=1, batch_size=2)
        pick = lambda items: images[[item % 4 for item in items]]  # noqa: E731
        result = tune(initial, pick, images, FixedOperator(problem.operator), (0.1, 0.1), config, perceptual)
        return result.before

    def alternating(a: Tensor, b: Tensor) -> Tensor:
        assert a.shape == b.shape == (4, *images.shape[1:])
        return torch.tensor([0.0, 2.0, 0.0, 2.0])

    assert before(alternating) == pytest.approx(before(None) + 1.0, abs=1e-5)


def test_the_score_is_proper_for_pairs_of_samples() -> None:
    """Samples with the distribution of the truth score better than too narrow or too wide ones."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    truth = normal(4000, 1, 8, 8)
    means = [float(sample_score(std * normal(4000, 2, 1, 8, 8), truth).mean()) for std in (0.5, 1.0, 2.0)]
    assert means[1] < min(means[0], means[2])


def test_the_numbers_must_fit_together() -> None:
    good = lavps.TunedPIR.like(lavps.WienerPIR(oracle_mixture(), num_steps=3))
    with pytest.raises(ValueError, match="descend"):
        lavps.TunedPIR(**vars(good) | {"levels": (1.0, 2.0, 3.0)})
    with pytest.raises(ValueError, match="3 levels need"):
        lavps.TunedPIR(**vars(good) | {"kept": (1.0,)})
    with pytest.raises(ValueError, match="own number of evaluations"):
        Settings(good).with_num_steps(5)
    for other in ({"draw": "full"}, {"relaxation": 1.5}):
        with pytest.raises(ValueError, match="starts from"):
            lavps.TunedPIR.like(lavps.WienerPIR(oracle_mixture(), num_steps=3, **other))


class Waves:
    """The exact denoiser of Gaussian images with the power spectrum of the sampler's covariance."""

    schedule = lavps.schedule.VE()

    def __init__(self, side: int) -> None:
        self.image_shape = (3, side, side)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        level = self.schedule.noise_level(t)
        scale = (self.schedule.alpha(t) * level.square()).to(x_t).reshape(-1, 1, 1, 1)
        return Stationary().product(level, x_t)(x_t / scale)


def test_samples_of_large_images_are_as_close_as_those_of_small_ones() -> None:
    """Thirty steps do not solve the first draw of a large image with few known pixels."""
    errors = []
    for side in (64, 256):
        prior = Waves(side)
        like, noise = (
            torch.randn(1, *prior.image_shape, generator=torch.Generator().manual_seed(n)) for n in (0, 1)
        )
        truth = Stationary().product(torch.tensor(LARGEST_LEVEL), like, 0.5)(noise)
        known = torch.rand(1, side, side, generator=torch.Generator().manual_seed(2)) < 0.17
        problem = lavps.InverseProblem.simulate(truth, lavps.operators.Mask(known), 0.05)
        samples = lavps.TunedPIR.universal(prior, 4).sample(problem).samples
        errors.append(float((samples[:, 0] - truth).square().mean().sqrt()))
    assert errors[1] < 1.3 * errors[0], errors


def test_from_the_command_line_to_a_restored_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    (tmp_path / "images").mkdir()
    for n in range(8):
        Image.fromarray(picture(8, 8, seed=n)).save(tmp_path / "images" / f"{n}.png")
    file = tmp_path / "schedule.json"
    main(
        ["tune", "--prior", str(prior), "--task", "sr2", "--noise", "0.02", "0.1", "--data",
         str(tmp_path / "images"), "--evaluations", "3", "--iterations", "2", "--validation-images", "4",
         "--device", "cpu", "-o", str(file)]
    )  # fmt: skip
    assert "validation score" in capsys.readouterr().out
    schedule = TunedSchedule.read(file)
    assert (schedule.tasks, schedule.noise, schedule.settings.num_steps) == (("sr2",), (0.02, 0.1), 3)
    assert schedule.scores["after"] <= schedule.scores["before"]
    photo = save(tmp_path / "photo.png", picture(4, 4))
    words = ["restore", str(photo), "--prior", str(prior), "--schedule", str(file), "--device", "cpu"]
    out = ["--output", str(tmp_path / "out")]
    main([*words, "--task", "sr2", "--noise", "0.05", *out])
    manifest = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert manifest["settings"] == schedule.settings.to_dict()
    assert manifest["result"]["forwards"] == 3
    capsys.readouterr()
    main(["replay", str(tmp_path / "out" / "photo.json")])
    assert "identical" in capsys.readouterr().out
    bulk = ["restore-bulk", str(photo), str(tmp_path / "bulk"), *words[2:], "--workers", "0"]
    main([*bulk, "--task", "sr2", "--noise", "0.05"])
    restored = (tmp_path / "out" / "photo.png").read_bytes()
    assert (tmp_path / "bulk" / "photo.png").read_bytes() == restored
    with pytest.raises(SystemExit) as ended:
        main([*bulk, "--task", "sr2", "--noise", "0.5", "--overwrite"])
    assert ended.value.code == 3
    for more, reason in (
        (["--task", "sr4", "--noise", "0.05"], "tuned for task sr2, not for sr4"),
        (["--task", "sr2", "--noise", "0.3"], "tuned for noise 0.02 to 0.1, not for 0.3"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*words, *more, *out])
        assert stop.value.code == 3
        assert reason in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([*words, "--task", "sr2", "--noise", "0.05", "--quality", "fast", *out])
    assert stop.value.code == 1
    file.write_text("{}")
    with pytest.raises(SystemExit) as stop:
        main([*words, "--task", "sr2", "--noise", "0.05", *out])
    assert "no schedule of lavps tune" in capsys.readouterr().err


def test_a_schedule_tuned_in_half_precision_is_for_the_same_prior(tmp_path: Path) -> None:
    prior = write_prior(tmp_path / "prior", front=False)
    found = []
    for precision in ("fp32", "bf16"):
        file = tmp_path / f"{precision}.json"
        main(
            ["tune", "--prior", str(prior), "--task", "sr2", "--noise", "0.05", "--evaluations", "3",
             "--iterations", "2", "--count", "4", "--validation-images", "4", "--device", "cpu",
             "--precision", precision, "-o", str(file)]
        )  # fmt: skip
        found.append(TunedSchedule.read(file))
    exact, half = found
    assert half.prior == exact.prior
    assert half.scores["before"] == pytest.approx(exact.scores["before"], rel=0.02)
    assert half.scores["before"] != exact.scores["before"]
