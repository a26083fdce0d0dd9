"""A tiny prior and a tiny inference model on disk, and pictures to restore, shared by the tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import lavps
from lavps.amortization import LikelihoodGradient, Palette
from lavps.amortization.contexts import ContextSource
from lavps.amortization.inference import InferenceTask
from lavps.amortization.loading import save_inference_model
from lavps.checkpoints.folder import ModelConfig, save_model
from lavps.guidance import Amortized, Gradient
from lavps.nn import build_seeded
from lavps.operators import AveragePool
from lavps.operators.families import FixedOperator
from lavps.samplers import UNBOUND, Settings

SIZE = 8
COUNTS = {"forwards": 1, "backwards": 1, "model_forwards": 0}
TINY = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}
# Few steps: what is tested is not how good the pictures are.
FRONT_STEPS = (4, 6, 9)


def front_entry(num_steps: int, score: float = 0.1, **counts: float) -> dict[str, object]:
    """An entry of fronts.json: MGDM with one whitened gradient per step."""
    guidance = Gradient(1, lavps.WhitenedGradient())
    settings = Settings(lavps.MGDM(UNBOUND, num_steps=num_steps, guidance=guidance))
    return {"settings": settings.to_dict(), "score": score} | COUNTS | counts


def perturb(network: torch.nn.Module, size: float = 0.03) -> None:
    """Away from the zero outputs with which networks are born."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def write_prior(folder: Path, channels: int = 3, front: bool = True) -> Path:
    description = TINY | {"in_channels": channels, "out_channels": channels}
    network = build_seeded(description, 0)
    perturb(network)
    shape = (channels, SIZE, SIZE)
    save_model(folder, network, ModelConfig("prior", description, lavps.Flow(), shape, "velocity", "time"))
    if front:
        entries = [front_entry(k, 1 / k, forwards=k) for k in FRONT_STEPS]
        (folder / "fronts.json").write_text(json.dumps(entries))
    return folder


def write_model(folder: Path, prior_folder: Path, front: bool = True) -> Path:
    prior = lavps.load_prior(prior_folder)
    conditioning = (Palette(), LikelihoodGradient())
    channels = lavps.InferenceModel.in_channels(3, conditioning)
    description = TINY | {"in_channels": channels, "out_channels": 6, "second_time": True}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = lavps.InferenceModel(build_seeded(description, 0), conditioning)
    perturb(model, 0.01)
    sampler = lavps.MGDM(prior, guidance=Amortized(model, 0))
    source = ContextSource(sampler, FixedOperator(AveragePool(4)), lavps.GaussianNoise(0.05))
    save_inference_model(folder, InferenceTask(source), description, (3, SIZE, SIZE))
    if front:
        settings = Settings(lavps.MGDM(UNBOUND, num_steps=5, guidance=Amortized(UNBOUND, 0)))
        counts = {"forwards": 7, "backwards": 0, "model_forwards": 3}
        entry = {"settings": settings.to_dict(), "score": 0.1} | counts
        (folder / "fronts.json").write_text(json.dumps([entry]))
    return folder


def picture(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Random levels (H, W, C), or (H, W) for one channel."""
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return levels[..., 0] if channels == 1 else levels


def save(file: Path, levels: np.ndarray, **options: object) -> Path:
    Image.fromarray(levels).save(file, **options)
    return file
