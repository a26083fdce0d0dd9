"""A prior, models, LPIPS weights and images, all tiny and random, and a benchmark begun with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import lavps
from lavps.amortization import ConditionalTask, Palette, save_conditional, save_inference_model
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.benchmark import Benchmark, MeasurementSet, MeasurementSettings, Models, Runner
from lavps.checkpoints import save_model
from lavps.checkpoints.folder import ModelConfig
from lavps.evaluation import LPIPS
from lavps.guidance import Amortized, Gradient, Guidance
from lavps.nn import UNetConfig, build_seeded
from lavps.operators.registry import family_from
from lavps.samplers import UNBOUND, Settings
from lavps.training.data import ImageData
from support.lpips_weights import random_weights

SHAPE = (3, 32, 32)
NOISE = lavps.GaussianNoise(0.05)


@dataclass(frozen=True)
class Assets:
    """Where the shared files lie."""

    folder: Path

    @property
    def prior(self) -> str:
        return str(self.folder / "prior")

    @property
    def inference(self) -> str:
        return str(self.folder / "inference")

    @property
    def conditional(self) -> str:
        return str(self.folder / "conditional")

    @property
    def lpips(self) -> Path:
        return self.folder / "lpips.safetensors"

    def data(self, split: str) -> ImageData:
        return ImageData.open(self.folder / split, SHAPE[1], cache=False)

    def begin(self, path: Path, count: int = 4, task: str = "sr4", **options: str) -> Benchmark:
        """A benchmark with both sets measured."""
        benchmark = Benchmark.create(path, task, 0.05, self.prior, **options)
        for split in ("validation", "test"):
            settings = MeasurementSettings(task, 0.05, split, count, 0, SHAPE)
            MeasurementSet.create(path / "measurements", settings, self.data(split))
        return benchmark

    def runner(self, benchmark: Benchmark, split: str = "validation", **options: object) -> Runner:
        models: Models = benchmark.models()
        return benchmark.runner(split, models, LPIPS.load(self.lpips), progress=False, **options)


def gibbs(num_steps: int, guidance: Guidance | None = None, **options: object) -> Settings:
    """Settings of MGDM, by default with one Adam step; with an inference model's guidance, of LAVPS."""
    guidance = Gradient(1) if guidance is None else guidance
    return Settings(lavps.MGDM(UNBOUND, num_steps=num_steps, guidance=guidance, **options))


def perturbed(module: nn.Module, seed: int) -> nn.Module:
    """Outputs start at zero: without this every network would predict nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def unet(in_channels: int, out_channels: int, second_time: bool = False) -> dict[str, object]:
    return UNetConfig(
        in_channels,
        out_channels,
        patch=4,
        widths=(16,),
        depth=1,
        attention=(),
        head_dim=16,
        condition_width=16,
        second_time=second_time,
    ).to_dict()


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    folder = tmp_path_factory.mktemp("assets")
    save_file(random_weights(), folder / "lpips.safetensors")
    for split, seed in (("validation", 0), ("test", 1)):
        (folder / split).mkdir()
        pixels = np.random.default_rng(seed).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
        for number, coarse in enumerate(pixels):
            picture = Image.fromarray(coarse).resize(SHAPE[1:], Image.Resampling.BICUBIC)
            picture.save(folder / split / f"{number}.png")
    network = unet(3, 3)
    config = ModelConfig("prior", network, lavps.Flow(), SHAPE, "velocity", "time")
    save_model(folder / "prior", perturbed(build_seeded(network, 0), 1), config)
    prior, family = lavps.load_prior(folder / "prior"), family_from("sr4", SHAPE)

    channels = (Palette(),)
    network = unet(lavps.InferenceModel.in_channels(3, channels), 6, second_time=True)
    model = lavps.InferenceModel(build_seeded(network, 0), channels)
    perturbed(model, 2)
    sampler = lavps.MGDM(prior, guidance=Amortized(model, 0))
    inference = InferenceTask(ContextSource(sampler, family, NOISE))
    save_inference_model(folder / "inference", inference, network, SHAPE)

    network = unet(lavps.ConditionalDenoiser.in_channels(3, channels), 3)
    denoiser = lavps.ConditionalDenoiser(build_seeded(network, 0), channels, lavps.Flow())
    perturbed(denoiser, 3)
    save_conditional(folder / "conditional", ConditionalTask(denoiser, family, NOISE, SHAPE), network)
    return Assets(folder)
