"""Inference models: trained by the trainer, written, loaded, refused where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lavps
from lavps.amortization import LikelihoodGradient, Palette
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.amortization.loading import load_inference_model, prior_hash, save_inference_model
from lavps.amortization.model import InferenceModel
from lavps.evaluation import oracle_mixture, oracle_problem
from lavps.guidance import Amortized, Gradient, Linearized, switch
from lavps.nn import MLPConfig, build_seeded
from lavps.operators import AveragePool
from lavps.operators.families import FixedOperator
from lavps.training.trainer import TrainerConfig, train
from support.amortization import NOISE, PRIOR, clean, perturbed

CONDITIONING = (Palette(damping=0.02), LikelihoodGradient())
NETWORK = MLPConfig(
    (1, 8, 8), InferenceModel.in_channels(1, CONDITIONING), 2, width=32, depth=1, second_time=True
).to_dict()


def task() -> InferenceTask:
    model = Amortized(InferenceModel(build_seeded(NETWORK, 0), CONDITIONING), steps=0, safeguard_every=None)
    sampler = lavps.MGDM(PRIOR, guidance=switch(Gradient(), model, at=0.5))
    return InferenceTask(ContextSource(sampler, FixedOperator(AveragePool(4)), NOISE))


def saved(folder: Path, dtype: torch.dtype = torch.float32) -> InferenceTask:
    trained = task()
    perturbed(trained.network)
    save_inference_model(folder, trained, NETWORK, (1, 8, 8), {"steps": 1}, dtype)
    return trained


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_written_and_loaded_predicts_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    trained = saved(tmp_path / "model", dtype)
    loaded = lavps.load_inference_model(tmp_path / "model", PRIOR)
    context = trained.source.draw(clean(), range(12))
    tolerance = 1e-6 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(
        loaded(context).mean, trained.network(context).mean, atol=tolerance, rtol=tolerance
    )
    assert loaded.conditioning == CONDITIONING
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    _, problem = oracle_problem(PRIOR, "sr4", 1)
    lavps.MGDM(PRIOR, num_steps=5, guidance=Amortized(loaded, steps=0)).sample(problem)


def test_the_shortcut_is_loaded_as_it_was_trained(tmp_path: Path) -> None:
    trained = task()
    trained.network.solver_steps = 3
    save_inference_model(tmp_path / "model", trained, NETWORK, (1, 8, 8))
    assert load_inference_model(tmp_path / "model").solver_steps == 3
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    del config["conditioning"]["solver_steps"]  # a folder of the first release
    file.write_text(json.dumps(config))
    assert load_inference_model(tmp_path / "model").solver_steps == 0


def test_the_folder_says_what_the_model_is_for(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["kind"] == "inference"
    assert config["prior_hash"] == prior_hash(PRIOR)
    assert "AveragePool" in config["operator"]["family"]
    assert config["window"]["window"] == pytest.approx([0.02, 0.5])
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


def test_another_prior_is_refused_at_loading_and_by_the_sampler(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    other = oracle_mixture(seed=1)
    with pytest.raises(ValueError, match="trained with prior"):
        load_inference_model(tmp_path / "model", other)
    loaded = load_inference_model(tmp_path / "model")
    everywhere, late = Amortized(loaded), switch(Gradient(), Amortized(loaded), at=0.5)
    early = switch(switch(Amortized(loaded), Linearized(), at=0.6), Linearized(), at=0.3)
    for guidance in (everywhere, late, early):
        for kind in (lavps.MGDM, lavps.MGPS):
            kind(PRIOR, guidance=guidance)
            with pytest.raises(ValueError, match="trained with prior"):
                kind(other, guidance=guidance)
    with pytest.raises(ValueError, match="trained with prior"):
        lavps.LAVPS(other, loaded)
    rescheduled = lavps.Rescheduled(PRIOR, lavps.Flow())
    with pytest.raises(ValueError, match="trained under"):
        lavps.LAVPS(rescheduled, loaded)


def test_a_prior_is_not_an_inference_model(tmp_path: Path) -> None:
    saved(tmp_path / "model")
    with pytest.raises(ValueError, match="not a prior"):
        lavps.load_prior(tmp_path / "model")


def test_the_trainer_trains_inference_models(tmp_path: Path) -> None:
    trained = task()
    data = list(PRIOR.sample(512, seed=1))
    config = TrainerConfig(
        tmp_path / "run", steps=60, batch_size=64, learning_rate=2e-3, warmup_steps=5, ema_decay=0.9,
        validate_every=30, checkpoint_every=30,
    )  # fmt: skip
    result = train(trained, data, config, list(PRIOR.sample(256, seed=2)))
    assert result.step == 60
    assert result.validation["warm"] < 0.85 * result.validation["zero"]
    assert result.validation["acceptance"] > 0.8
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert any("warm_by_time" in key for line in lines for key in line)
