"""Few-step models: the tuned sampler when untrained, a better score when trained, the prior when in doubt."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

import lavps
from lavps.amortization.few_step import few_step_folder, load_few_step, save_few_step
from lavps.amortization.loading import prior_hash
from lavps.apps.service.jobs import Options
from lavps.apps.service.pool import ModelPool
from lavps.checkpoints.folder import read_config, save_model
from lavps.cli import main
from lavps.data_step.residuals import residual_power
from lavps.evaluation import oracle_mixture, oracle_problem
from lavps.operators.families import FixedOperator
from lavps.operators.registry import family_from
from lavps.priors.protocol import WrappedPrior
from lavps.restoration.presets import chosen, front_for
from lavps.restoration.restorer import Restorer
from lavps.samplers import UNBOUND, OutOfDistributionWarning, Settings
from lavps.training.few_step import FewStepTask
from support.restoring import SIZE, picture, save, write_prior

ALL = (math.inf,) * 4


class Shifted(WrappedPrior):
    """A denoiser that is wrong by a constant."""

    def __init__(self, prior: lavps.Prior, shift: float) -> None:
        self.prior, self.shift = prior, shift

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        return self.prior.denoise(x_t, t) + self.shift


def test_without_training_it_is_the_tuned_sampler() -> None:
    prior = oracle_mixture(seed=1)
    _, problem = oracle_problem(prior, "sr4", 3, seed=1)
    plain = replace(lavps.TunedPIR.universal(prior, 4), full_draw=False).sample(problem, 2, seed=5)
    for safeguard in (True, False):
        ours = lavps.FewStep(prior, lavps.FewStepModel(prior, ALL), safeguard=safeguard)
        found = ours.sample(problem, 2, seed=5)
        assert torch.equal(found.samples, plain.samples)
        assert found.trace.forwards == 4


@pytest.mark.parametrize("task", ["sr4", "inpainting"])
def test_samples_with_a_residual_that_is_not_noise_are_the_priors(task: str) -> None:
    prior = oracle_mixture(seed=1)
    _, problem = oracle_problem(prior, task, 3, seed=1)
    plain = lavps.TunedPIR.universal(prior, 4).sample(problem, 2, seed=5)
    wrong = lavps.FewStepModel(Shifted(prior, 30.0), (9.0,) * 4)
    with pytest.warns(OutOfDistributionWarning):
        found = lavps.FewStep(prior, wrong).sample(problem, 2, seed=5)
    assert torch.equal(found.samples, plain.samples)
    assert found.trace.forwards == 8
    assert float(found.trace.acceptance) == 0
    unguarded = lavps.FewStep(prior, wrong, safeguard=False).sample(problem, 2, seed=5)
    assert unguarded.trace.forwards == 4
    assert not torch.allclose(unguarded.samples, plain.samples, atol=0.1)


def test_one_rejected_sample_leaves_the_others_to_the_model() -> None:
    prior = oracle_mixture(seed=1)
    _, problem = oracle_problem(prior, "sr4", 3, seed=1)
    plain = lavps.TunedPIR.universal(prior, 4).sample(problem, 2, seed=5).samples
    model = lavps.FewStep(prior, lavps.FewStepModel(prior, ALL)).sample(problem, 2, seed=5).samples
    limits = (math.inf, math.inf, 1.0, math.inf)  # of the third evaluation alone
    some = lavps.FewStep(prior, lavps.FewStepModel(prior, limits)).sample(problem, 2, seed=5)
    rejected, kept = ((some.samples - x).abs().flatten(2).amax(2) < 1e-5 for x in (plain, model))
    assert torch.equal(rejected, ~kept)
    assert 0 < int(rejected.sum()) < 6
    assert some.trace.forwards == pytest.approx(4 + 4 * float(rejected.double().mean()))


def test_nonlinear_operators_are_left_to_the_prior() -> None:
    prior = oracle_mixture(seed=1)
    x, _ = oracle_problem(prior, "sr4", 3, seed=1)
    problem = lavps.InverseProblem.simulate(x, lavps.operators.HDRClip(), 0.05)
    plain = lavps.TunedPIR.universal(prior, 4).sample(problem, 2, seed=5)
    model = lavps.FewStepModel(Shifted(prior, 1.0), ALL)
    with pytest.warns(OutOfDistributionWarning):
        found = lavps.FewStep(prior, model).sample(problem, 2, seed=5)
    assert torch.equal(found.samples, plain.samples)
    assert found.trace.forwards == 4
    assert float(found.trace.acceptance) == 0


@pytest.mark.parametrize("spatial", [(40,), (24, 40), (16, 18, 20)])
def test_the_residual_of_a_right_prediction_has_the_power_of_noise(spatial: tuple[int, ...]) -> None:
    schedule, t = lavps.VPLinear(), torch.tensor(0.4)
    alpha, sigma = schedule.coefficients(t)
    generator = torch.Generator().manual_seed(3)
    x, z = (torch.randn(200, 2, *spatial, generator=generator) for _ in range(2))
    found = residual_power(alpha * x + sigma * z, x, schedule, t)
    assert found.shape == (200,)
    assert float(found.mean()) == pytest.approx(1.0, abs=0.1)
    smooth = residual_power(alpha * x + sigma * z, x + 3.0 * sigma / alpha, schedule, t)
    assert float(smooth.min()) > 5.0
    rough = 3.0 * sigma / alpha * (-1.0) ** torch.arange(spatial[-1])  # shorter waves do not count
    torch.testing.assert_close(residual_power(alpha * x + sigma * z, x + rough, schedule, t), found)


def test_training_lowers_the_score_and_its_gradient_reaches_every_weight(tmp_path: Path) -> None:
    prior = lavps.load_prior(write_prior(tmp_path / "prior", front=False))
    images = torch.stack([torch.from_numpy(picture(SIZE, SIZE, seed=n)) for n in range(8)])
    images = images.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    families = [FixedOperator(lavps.operators.AveragePool(2)), FixedOperator(lavps.operators.Identity())]
    task = FewStepTask(prior, 4, families, (0.02, 0.1), images, group=2)
    assert task.validate(images)["loss"] == pytest.approx(1.0, abs=1e-3)
    before = {name: weight.clone() for name, weight in prior.network.state_dict().items()}
    optimizer = torch.optim.Adam(task.network.parameters(), 3e-3)
    for step in range(25):
        task.loss(images, range(8 * step, 8 * step + 8)).mean().backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in task.network.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert task.validate(images)["loss"] < 0.9
    assert all(torch.equal(before[name], weight) for name, weight in prior.network.state_dict().items())
    limits = task.limits(images)
    assert len(limits) == 4
    assert all(0.1 < limit < 100 for limit in limits)


def test_a_batch_has_the_losses_of_its_samples(tmp_path: Path) -> None:
    prior = lavps.load_prior(write_prior(tmp_path / "prior", front=False))
    images = 0.3 * torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    families = [FixedOperator(lavps.operators.AveragePool(2)), FixedOperator(lavps.operators.Identity())]
    task = FewStepTask(prior, 4, families, (0.02, 0.1), images, group=2)
    with torch.no_grad():
        whole = task.loss(images, [4, 5, 6, 7])
        single = [task.loss(images[n : n + 1], [4 + n]) for n in range(4)]
    torch.testing.assert_close(whole, torch.cat(single), atol=1e-5, rtol=1e-4)


def test_a_model_serves_the_number_of_evaluations_of_its_training() -> None:
    prior = oracle_mixture()
    model = lavps.FewStepModel(prior, ALL)
    with pytest.raises(ValueError, match="trained for 4 evaluations, not for 8"):
        lavps.FewStep(prior, model, evaluations=8)
    settings = Settings(lavps.FewStep(prior, model))
    assert Settings.from_dict(settings.to_dict()) == settings
    assert settings.models == [UNBOUND]
    assert (settings.counts.forwards, settings.counts.data_steps) == (4, 4)
    _, problem = oracle_problem(prior, "sr4", 1)
    with pytest.raises(ValueError, match="takes 4 evaluations"):
        lavps.restore(problem.y, problem.operator, prior, 0.1, model=model, evaluations=8)


def test_from_training_to_a_restored_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prior, run = write_prior(tmp_path / "prior", front=False), tmp_path / "run"
    (tmp_path / "images").mkdir()
    for n in range(8):
        Image.fromarray(picture(8, 8, seed=n)).save(tmp_path / "images" / f"{n}.png")
    data = ["--data", str(tmp_path / "images"), "--validation", str(tmp_path / "images")]
    train = ["train", "few-step", "--prior", str(prior), "--task", "sr2", "denoise", "--output", str(run)]
    train += ["--batch-size", "8", "--learning-rate", "1e-3", "--warmup-steps", "1", "--ema-decay", "0.5"]
    main([*train, *data, "--steps", "6", "--validate-every", "6", "--preview-every", "6", "--cpu"])
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert any("validation/score_by_task" in line for line in log)
    assert list((run / "previews").iterdir())
    with pytest.raises(ValueError, match="kind 'few-step', not a prior"):
        lavps.load_prior(run / "model")

    again = [
        *train,
        *data,
        "--steps",
        "1",
        "--preview-every",
        "9",
        "--cpu",
        "--init-from",
        str(run / "model"),
    ]
    again[again.index(str(run))], again[again.index("1e-3")] = str(tmp_path / "again"), "1e-12"
    main(again)
    first, second = (load_few_step(folder / "model") for folder in (run, tmp_path / "again"))
    assert first.sampler is not None
    assert first.sampler.full_draw is False
    assert first.sampler == second.sampler
    for old, new in zip(first.prior.network.parameters(), second.prior.network.parameters(), strict=True):
        torch.testing.assert_close(new, old, atol=1e-6, rtol=0)

    newer = lavps.load_prior(prior).network  # a prior that differs from that of the model
    with torch.no_grad():
        next(newer.parameters()).add_(0.5)
    save_model(tmp_path / "newer", newer, read_config(prior))
    again[again.index(str(prior))], again[again.index(str(tmp_path / "again"))] = (
        str(tmp_path / "newer"),
        str(tmp_path / "third"),
    )
    main([*again, "--init-prior", str(prior)])
    third = load_few_step(tmp_path / "third" / "model")
    for old, new in zip(first.prior.network.parameters(), third.prior.network.parameters(), strict=True):
        change = 0.5 if old is next(first.prior.network.parameters()) else 0.0
        torch.testing.assert_close(new, old + change, atol=1e-6, rtol=0)

    config = tmp_path / "third" / "model" / "config.json"
    config.write_text(config.read_text().replace("power_limits", "limits"))
    with pytest.raises(ValueError, match="earlier version: train it again"):
        load_few_step(config.parent)

    capsys.readouterr()
    main(["info", str(run / "model")])
    assert "evaluations: 4" in capsys.readouterr().out

    photo = save(tmp_path / "photo.png", picture(4, 4))
    words = ["restore", str(photo), "--task", "sr2", "--noise", "0.05", "--device", "cpu"]
    with_model = ["--prior", str(prior), "--inference-model", str(run / "model")]
    main([*words, *with_model, "--output", str(tmp_path / "out")])
    manifest = json.loads((tmp_path / "out" / "photo.json").read_text())
    assert manifest["settings"]["sampler"] == "FewStep"
    assert 4 <= manifest["result"]["forwards"] <= 8
    capsys.readouterr()
    main(["replay", str(tmp_path / "out" / "photo.json")])
    assert "identical" in capsys.readouterr().out
    bulk = ["restore-bulk", str(photo), str(tmp_path / "bulk"), *words[2:], *with_model, "--workers", "0"]
    main(bulk)
    assert (tmp_path / "bulk" / "photo.png").read_bytes() == (tmp_path / "out" / "photo.png").read_bytes()

    large = save(tmp_path / "large.png", picture(9, 11))  # restored window by window
    main(["restore", str(large), *words[2:], *with_model, "--output", str(tmp_path / "out")])
    assert Image.open(tmp_path / "out" / "large.png").size == (22, 18)

    other = tmp_path / "other"
    network = lavps.load_prior(prior).network
    with torch.no_grad():
        next(network.parameters()).add_(0.01)
    save_model(other, network, read_config(prior))
    with pytest.raises(SystemExit):
        main([*words, "--prior", str(other), "--inference-model", str(run / "model"), "--overwrite"])
    assert "was trained with prior" in capsys.readouterr().err


@pytest.fixture(scope="module")
def companions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prior and the few-step model that belongs to it."""
    folder = tmp_path_factory.mktemp("zoo")
    prior = lavps.load_prior(write_prior(folder / "faces", front=False))
    images = 0.3 * torch.randn(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    families = [FixedOperator(lavps.operators.Identity())]
    task = FewStepTask(prior, 4, families, (0.02, 0.1), images)
    with torch.no_grad():
        for weight in task.network.parameters():
            weight.mul_(1.01)
    save_few_step(folder / "faces-4steps", task, read_config(folder / "faces"), ALL)
    return folder


def test_fast_takes_the_few_step_model_beside_the_prior(companions: Path, tmp_path: Path) -> None:
    prior, model = companions / "faces", companions / "faces-4steps"
    photo = save(tmp_path / "photo.png", picture(4, 4))

    def restored(output: str, *words: str) -> Path:
        options = ["--noise", "0.05", "--device", "cpu", "--prior", str(prior), *words]
        main(["restore", str(photo), *options, "--output", str(tmp_path / output)])
        return tmp_path / output

    fast = restored("fast", "--task", "sr2", "--quality", "fast")
    manifest = json.loads((fast / "photo.json").read_text())
    assert manifest["settings"]["sampler"] == "FewStep"
    assert manifest["model"]["weights_hash"] == prior_hash(load_few_step(model).prior)
    main(["replay", str(fast / "photo.json")])
    explicit = restored("explicit", "--task", "sr2", "--inference-model", str(model))
    four = restored("four", "--task", "sr2", "--evaluations", "4")
    assert len({(folder / "photo.png").read_bytes() for folder in (fast, explicit, four)}) == 1
    words = ["--task", "sr2", "--noise", "0.05", "--device", "cpu", "--prior", str(prior)]
    main(["restore-bulk", str(photo), str(tmp_path / "bulk"), *words, "--quality", "fast", "--workers", "0"])
    assert (tmp_path / "bulk" / "photo.png").read_bytes() == (fast / "photo.png").read_bytes()
    half = restored("half", "--task", "sr2", "--quality", "fast", "--precision", "bf16")
    assert (half / "photo.png").read_bytes() != (fast / "photo.png").read_bytes()

    for name, options in {"others": ("--quality", "balanced"), "eight": ("--evaluations", "8")}.items():
        manifest = json.loads((restored(name, "--task", "sr2", *options) / "photo.json").read_text())
        assert manifest["settings"]["sampler"] in ("WienerPIR", "TunedPIR")
        assert manifest["model"] is None
    manifest = json.loads((restored("hdr", "--task", "hdr", "--quality", "fast") / "photo.json").read_text())
    assert manifest["settings"]["sampler"] == "TunedPIR"


def test_the_library_and_the_service_take_the_few_step_model_too(companions: Path) -> None:
    prior = lavps.load_prior(companions / "faces")
    model = load_few_step(companions / "faces-4steps", prior)
    y, operator = torch.zeros(2, 3, 4, 4), lavps.operators.AveragePool(2)
    explicit = lavps.restore(y, operator, prior, 0.1, samples=2, model=model)
    for options in ({"quality": "fast"}, {"evaluations": 4}):
        found = lavps.restore(y, operator, prior, 0.1, samples=2, **options)
        assert torch.equal(found.samples, explicit.samples)
    assert lavps.restore(y, operator, prior, 0.1, quality="fast").trace.acceptance is not None
    assert lavps.restore(y, operator, prior, 0.1).trace.forwards == 25
    pool = ModelPool({"faces": (str(companions / "faces"), None)})
    assert isinstance(pool.settings(Options("faces", "sr2", 0.05, quality="fast")).template, lavps.FewStep)
    assert isinstance(pool.settings(Options("faces", "jpeg", 0.05, quality="fast")).template, lavps.TunedPIR)


def test_a_few_step_model_of_another_prior_is_left_out(companions: Path, tmp_path: Path) -> None:
    shutil.copytree(companions, tmp_path / "zoo")
    folder = tmp_path / "zoo" / "faces"
    assert few_step_folder(folder) == tmp_path / "zoo" / "faces-4steps"
    network = lavps.load_prior(folder).network
    with torch.no_grad():
        next(network.parameters()).add_(0.01)
    save_model(folder, network, read_config(folder))
    assert few_step_folder(folder) is None
    assert few_step_folder(None) is None
    assert chosen(front_for(folder, False, "sr2"), "fast").forwards == 8
    settings = Settings(lavps.FewStep(UNBOUND, UNBOUND))
    with pytest.raises(ValueError, match="need a few-step model of the prior"):
        Restorer(lavps.load_prior(folder), settings)


def test_a_smaller_weight_of_lpips_needs_lpips(
    companions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "few-step", "--prior", str(companions / "faces"), "--data", str(tmp_path)]
    with pytest.raises(SystemExit):
        main([*words, "--output", str(tmp_path / "run"), "--lpips-weight", "0.5", "--cpu"])
    assert "give --lpips" in capsys.readouterr().err


def test_autocast_is_for_the_network_alone(tmp_path: Path) -> None:
    # In bfloat16 the data step of a blur does not converge: some losses are many times larger.
    prior = lavps.load_prior(write_prior(tmp_path / "prior", front=False))
    images = 0.3 * torch.randn(8, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    families = [family_from("motion-blur", (3, SIZE, SIZE))]
    task = FewStepTask(prior, 4, families, (0.005, 0.005), images)
    with torch.no_grad():
        exact = task.loss(images, range(8))
        with torch.autocast("cpu", torch.bfloat16):
            half = task.loss(images, range(8))
    assert not torch.equal(half, exact)
    torch.testing.assert_close(half, exact, rtol=0.02, atol=0.0)
