"""Folders of diffusers load with no flags and denoise as diffusers itself does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import lavps
from lavps.checkpoints.hub import wanted
from lavps.restoration import Restorer
from lavps.samplers import Settings

diffusers = pytest.importorskip("diffusers")

TIMES = [0, 1, 50, 99]
STEPS = 100
UNET = {
    "sample_size": 8,
    "in_channels": 3,
    "out_channels": 3,
    "block_out_channels": (8, 16),
    "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
    "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    "norm_num_groups": 4,
    "attention_head_dim": 4,
}


def awake(module: nn.Module, seed: int = 0) -> Any:
    """The module with random weights everywhere, none of them zero, in eval mode."""
    random = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        scale = 0.3 if parameter.ndim < 2 else parameter[0].numel() ** -0.5
        parameter.data.copy_(scale * torch.randn(parameter.shape, generator=random))
    return module.eval()


class Malicious:
    """Makes a folder when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def images(channels: int = 3, size: int = 8) -> Tensor:
    return torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))


def pipeline(folder: Path, scheduler: Any, **changes: Any) -> Any:
    unet = awake(diffusers.UNet2DModel(**{**UNET, **changes}))
    diffusers.DDPMPipeline(unet, scheduler).save_pretrained(folder)
    return unet


def x0_by_diffusers(scheduler: Any, output: Tensor, index: int, x: Tensor) -> Tensor:
    """The library's own x_0; its step is never asked to clip."""
    scheduler.set_timesteps(scheduler.config.num_train_timesteps)
    return scheduler.step(output[:, : x.shape[1]], index, x).pred_original_sample


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    assert (ours - theirs).norm() <= tolerance * theirs.norm(), float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize(
    "chain",
    [
        {"beta_schedule": "linear", "beta_end": 0.05},
        {"beta_schedule": "scaled_linear", "beta_start": 0.001, "beta_end": 0.1},
        {"beta_schedule": "squaredcos_cap_v2"},
        {"beta_schedule": "sigmoid", "beta_end": 0.08},
        {"trained_betas": [0.001 + 0.0003 * i for i in range(STEPS)]},
    ],
    ids=lambda chain: chain.get("beta_schedule", "trained_betas"),
)
def test_a_pipeline_denoises_as_diffusers_does(
    tmp_path: Path, chain: dict[str, Any], prediction: str
) -> None:
    scheduler = diffusers.DDPMScheduler(STEPS, prediction_type=prediction, clip_sample=False, **chain)
    unet, x = pipeline(tmp_path, scheduler), images()
    prior = lavps.load_prior(tmp_path)
    with torch.no_grad():
        for index in TIMES:
            if prediction == "epsilon" and scheduler.alphas_cumprod[index] < 1e-6:
                continue  # predictions of the noise are read no further than noise level 1000
            theirs = x0_by_diffusers(scheduler, unet(x, index).sample, index, x)
            ours = prior.denoise(x, torch.tensor((index + 1) / STEPS, dtype=torch.float64))
            # Their product of float32 variances is off by a few units in the sixth digit at the end.
            assert_same(ours, theirs, 1e-5 if index < 99 else 4e-5)


def test_zero_terminal_snr_is_followed_to_the_last_step(tmp_path: Path) -> None:
    scheduler = diffusers.DDIMScheduler(
        STEPS, prediction_type="v_prediction", rescale_betas_zero_snr=True, clip_sample=False
    )
    unet, x = pipeline(tmp_path, scheduler), images()
    prior = lavps.load_prior(tmp_path)
    with torch.no_grad():
        for index in TIMES:
            theirs = x0_by_diffusers(scheduler, unet(x, index).sample, index, x)
            ours = prior.denoise(x, torch.tensor((index + 1) / STEPS, dtype=torch.float64))
            assert_same(ours, theirs, 1e-5 if index < 99 else 5e-4)  # alpha_bar ends at 2^-24, not at 0


def test_the_line_says_what_was_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline(tmp_path, diffusers.DDPMScheduler(50, beta_schedule="squaredcos_cap_v2"))
    capsys.readouterr()
    lavps.load_prior(tmp_path)
    said = capsys.readouterr().err.strip().splitlines()[-1]
    for word in ("UNet2DModel", "unconditional", "DDPMScheduler", "squaredcos_cap_v2", "50 steps", "epsilon"):
        assert word in said


def test_a_class_conditional_model_asks_for_its_class(tmp_path: Path) -> None:
    scheduler = diffusers.DDPMScheduler(STEPS, clip_sample=False)
    unet, x = pipeline(tmp_path, scheduler, num_class_embeds=5), images()
    with pytest.raises(ValueError, match=r"label=0\.\.4"):
        lavps.load_prior(tmp_path)
    with pytest.raises(ValueError, match=r"classes 0\.\.4"):
        lavps.load_prior(tmp_path, label=5)
    prior = lavps.load_prior(tmp_path, label=3)
    with torch.no_grad():
        output = unet(x, 40, class_labels=torch.tensor([3, 3])).sample
        ours = prior.denoise(x, torch.tensor(0.41, dtype=torch.float64))
        assert_same(ours, x0_by_diffusers(scheduler, output, 40, x))


def test_learned_variances_are_cut_off(tmp_path: Path) -> None:
    scheduler = diffusers.DDPMScheduler(STEPS, variance_type="learned_range", clip_sample=False)
    unet, x = pipeline(tmp_path, scheduler, out_channels=6), images()
    with torch.no_grad():
        ours = lavps.load_prior(tmp_path).denoise(x, torch.tensor(0.31, dtype=torch.float64))
        theirs = (x - (1 - scheduler.alphas_cumprod[30]).sqrt() * unet(x, 30).sample[:, :3]) / (
            scheduler.alphas_cumprod[30].sqrt()
        )
    assert_same(ours, theirs)


def test_a_score_network_of_unit_pixels_is_a_prior_of_ours(tmp_path: Path) -> None:
    unet = awake(diffusers.UNet2DModel(**{**UNET, "time_embedding_type": "fourier"}))
    scheduler = diffusers.ScoreSdeVeScheduler(sigma_min=0.01, sigma_max=50.0)
    unet.save_pretrained(tmp_path)
    scheduler.save_pretrained(tmp_path)
    prior = lavps.load_prior(tmp_path)
    x_0, noise = images().clamp(-1, 1), images(3).flip(0)
    for t in (0.4, 0.8):
        time = torch.tensor(t, dtype=torch.float64)
        sigma = float(prior.schedule.sigma(time))
        unit_sigma = sigma / 2  # of pixels in [0, 1], half as far apart
        noisy = (x_0 + 1) / 2 + unit_sigma * noise
        with torch.no_grad():
            score = unet(noisy, torch.tensor([unit_sigma, unit_sigma])).sample
            theirs = 2 * (noisy + unit_sigma**2 * score) - 1
            assert_same(prior.denoise(x_0 + sigma * noise, time), theirs, 2e-5)


def test_latents_are_decoded_before_they_are_measured(tmp_path: Path) -> None:
    vae = awake(
        diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
            block_out_channels=(8, 8),
            latent_channels=4,
            norm_num_groups=4,
            scaling_factor=0.3,
        )
    )
    unet = awake(diffusers.UNet2DModel(**{**UNET, "in_channels": 4, "out_channels": 4}))
    scheduler = diffusers.DDIMScheduler(STEPS, beta_schedule="scaled_linear", clip_sample=False)
    unet.save_pretrained(tmp_path / "unet")
    vae.save_pretrained(tmp_path / "vae")
    scheduler.save_pretrained(tmp_path / "scheduler")
    index = {name: ["diffusers", type(part).__name__] for name, part in [("unet", unet), ("vae", vae)]}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "LDMPipeline", **index}))

    prior = lavps.load_prior(tmp_path)
    assert isinstance(prior, lavps.priors.LatentPrior)
    z = images(4, 8)
    with torch.no_grad():
        theirs = x0_by_diffusers(scheduler, unet(z, 30).sample, 30, z)
        assert_same(prior.denoise(z, torch.tensor(0.31, dtype=torch.float64)), theirs)
        assert_same(prior.decode(z), vae.decode(z / 0.3).sample)
        assert_same(
            prior.encode(prior.decode(z)), 0.3 * vae.encode(vae.decode(z / 0.3).sample).latent_dist.mean
        )

    operator = lavps.operators.DecodedOperator(lavps.operators.AveragePool(4), prior)
    y = lavps.operators.AveragePool(4)(prior.decode(z)).detach()
    assert operator.input_shape(y.shape[1:]) == (4, 8, 8)
    problem = lavps.InverseProblem(y, operator, lavps.GaussianNoise(0.1))
    at_truth, elsewhere = problem.log_likelihood(z), problem.log_likelihood(z + 0.1)
    assert (at_truth > elsewhere).all()
    posterior = lavps.DPS(prior, num_steps=2).sample(problem, num_samples=1, seed=0)
    assert prior.decode(posterior.samples.flatten(0, 1)).shape == (2, 3, 16, 16)


def test_a_diffusion_transformer_denoises_with_and_without_class(tmp_path: Path) -> None:
    transformer = awake(
        diffusers.DiTTransformer2DModel(
            num_attention_heads=2,
            attention_head_dim=8,
            in_channels=4,
            out_channels=8,
            num_layers=2,
            sample_size=8,
            patch_size=2,
            num_embeds_ada_norm=7,
        )
    )
    scheduler = diffusers.DDIMScheduler(STEPS, clip_sample=False)
    transformer.save_pretrained(tmp_path / "transformer")
    scheduler.save_pretrained(tmp_path / "scheduler")
    index = {"transformer": ["diffusers", "DiTTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "DiTPipeline", **index}))
    z = images(4, 8)
    for label, null in [(None, 7), (2, 2)]:
        prior = lavps.load_prior(tmp_path, label=label)
        with torch.no_grad():
            labels = torch.tensor([null, null])
            output = transformer(z, timestep=torch.tensor([60, 60]), class_labels=labels).sample
            theirs = x0_by_diffusers(scheduler, output, 60, z)
            assert_same(prior.denoise(z, torch.tensor(0.61, dtype=torch.float64)), theirs)


def test_presets_beside_the_weights_are_used(tmp_path: Path) -> None:
    pipeline(tmp_path, diffusers.DDPMScheduler(num_train_timesteps=STEPS))
    settings = {"sampler": "DiffPIR", "num_steps": 3, "zeta": 0.7}
    entry = {"settings": settings, "score": 0.1, "forwards": 3, "backwards": 0, "model_forwards": 0}
    (tmp_path / "fronts.json").write_text(json.dumps([entry]))
    assert Restorer.load(tmp_path).settings == Settings.from_dict(settings)
    pooling = lavps.operators.AveragePool(2)
    found = lavps.restore(torch.zeros(1, 3, 4, 4), pooling, lavps.load_prior(tmp_path), noise=0.1)
    assert found.trace.forwards == 3


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    pipeline(tmp_path, diffusers.DDPMScheduler(STEPS))
    weights = tmp_path / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    del tensors["conv_in.weight"]
    save_file(tensors, weights)
    with pytest.raises(ValueError, match=r"conv_in\.weight"):
        lavps.load_prior(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="no weights"):
        lavps.load_prior(tmp_path)


def test_old_weights_are_read_and_malicious_ones_are_not(tmp_path: Path) -> None:
    unet = awake(diffusers.UNet2DModel(**UNET))
    unet.save_pretrained(tmp_path / "model", safe_serialization=False)
    weights = tmp_path / "model" / "diffusion_pytorch_model.bin"
    assert weights.exists()
    prior = lavps.load_prior(tmp_path / "model")
    index, chain = 50, lavps.VPLinear()
    t = torch.tensor((index + 1) / 1000, dtype=torch.float64)
    with torch.no_grad():
        eps = unet(images(), index).sample
        expected = (images() - float(chain.sigma(t)) * eps) / float(chain.alpha(t))
        assert_same(prior.denoise(images(), t), expected)
    mark = tmp_path / "executed"
    torch.save({"conv_in.weight": Malicious(mark)}, weights)
    with pytest.raises((OSError, ValueError)):
        lavps.load_prior(tmp_path / "model")
    assert not mark.exists()


def test_pipelines_that_are_no_priors_say_so(tmp_path: Path) -> None:
    index = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="UNet2DConditionModel"):
        lavps.load_prior(tmp_path)


def test_from_the_hub_only_what_is_needed_is_fetched() -> None:
    files = [
        "README.md",
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/model.safetensors",
        "pipeline.py",
        "unet/config.json",
        "unet/modeling.py",
        "unet/diffusion_pytorch_model.bin",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "unet/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.bin",
    ]
    assert set(files) - set(wanted(files)) == {
        "pipeline.py",
        "unet/modeling.py",
        "text_encoder/model.safetensors",
        "unet/diffusion_pytorch_model.bin",
        "unet/diffusion_pytorch_model.fp16.safetensors",
    }
