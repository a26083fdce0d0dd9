"""Small checkpoints of every kind that is known, with random weights, each in its library's own format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from support.edm2_reference import Edm2, edm2
from support.foreign_reference import Adm, Edm, Weights, adm, edm
from support.hdit_reference import Hdit, hdit
from support.persistent_pickles import Persistent, precondition, tree, write
from support.restoring import write_prior

SIDE = 16  # of all images here, but for the model folder's
STEPS = 100


def _images(side: int = SIDE) -> Tensor:
    return torch.zeros(1, 3, side, side)


def write_adm(path: Path, classes: int = 0) -> None:
    """guided-diffusion: a torch file of tensors."""
    weights = Weights()
    adm(weights, Adm(classes=classes), _images(), torch.zeros(1), torch.zeros(1, dtype=torch.long))
    torch.save(dict(weights), path)


def write_edm(path: Path) -> None:
    """EDM: a pickle of persistent objects."""
    weights, a = Weights(), Edm(resolution=SIDE)
    edm(weights, a, _images(), torch.zeros(1), None)
    outer = precondition("EDMPrecond", tree("SongUNet", a.kwargs, weights), 0, sigma_data=0.5)
    write(path, {"ema": outer, "loss_fn": None, "augment_pipe": None})


def write_edm2(path: Path) -> None:
    """EDM2: the same, with another network inside."""
    weights, a = Weights(), Edm2(resolution=SIDE)
    edm2(weights, a, _images(), torch.zeros(1), None)
    outer = Persistent("Precond", {}, label_dim=0, sigma_data=0.5)
    outer.add_module("unet", tree("UNet", a.kwargs, weights))
    write(path, {"ema": outer, "encoder": None})


def write_hdit(path: Path) -> None:
    """k-diffusion: safetensors that carry their configuration."""
    weights, head = Weights(), {"d_head": 16}
    hdit(weights, Hdit(), _images(), torch.zeros(1))
    local = {"type": "neighborhood", "kernel_size": 3, **head}
    model = {"type": "image_transformer_v2", "input_channels": 3, "input_size": [SIDE, SIDE]}
    model |= {"self_attns": [local, {"type": "global", **head}], "sigma_data": 0.5}
    save_file(dict(weights), path, metadata={"config": json.dumps({"model": model})})


def write_invfusion(path: Path) -> None:
    """InvFusion: a torch file with names of its own."""
    weights = Weights()
    hdit(weights, Hdit(windows=(7, None), prefix="unet.", layer=".attn"), _images(), torch.zeros(1))
    torch.save({"ema": dict(weights)}, path)


def _unet(channels: int, side: int) -> torch.nn.Module:
    import diffusers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return diffusers.UNet2DModel(
            sample_size=side,
            in_channels=channels,
            out_channels=channels,
            block_out_channels=(8, 16),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
            attention_head_dim=4,
        )


def write_diffusers(path: Path) -> None:
    """diffusers: the folder of a pipeline."""
    import diffusers

    diffusers.DDPMPipeline(_unet(3, SIDE), diffusers.DDPMScheduler(STEPS)).save_pretrained(path)


def write_latent(path: Path) -> None:
    """diffusers: a pipeline with an autoencoder; latents have half the side."""
    import diffusers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        vae = diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
            up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
            block_out_channels=(8, 8),
            latent_channels=4,
            norm_num_groups=4,
        )
    unet = _unet(4, SIDE // 2)
    unet.save_pretrained(path / "unet")
    vae.save_pretrained(path / "vae")
    diffusers.DDIMScheduler(STEPS, clip_sample=False).save_pretrained(path / "scheduler")
    index = {name: ["diffusers", type(part).__name__] for name, part in [("unet", unet), ("vae", vae)]}
    (path / "model_index.json").write_text(json.dumps({"_class_name": "LDMPipeline", **index}))


# By the names of published files, which the README loads.
WRITERS: dict[str, Callable[[Path], object]] = {
    "zoo/photos64": write_prior,
    "google/ddpm-celebahq-256": write_diffusers,
    "CompVis/ldm-celebahq-256": write_latent,
    "256x256_diffusion_uncond.pt": write_adm,
    "256x256_diffusion.pt": lambda path: write_adm(path, classes=8),
    "edm-ffhq-64x64-uncond-vp.pkl": write_edm,
    "edm2-img512-s-2147483-0.130.pkl": write_edm2,
    "oxford_flowers.safetensors": write_hdit,
    "invfusion_ffhq64.pt": write_invfusion,
}


def write_all(folder: Path) -> None:
    """Every kind, under its name in a folder."""
    for name, writer in WRITERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        writer(folder / name)
