"""Overhead of MGDM: wall time of the sampler relative to the same network passes alone.

    python -m recipes.overhead.run          # about ten minutes on two idle cores

A convolutional denoiser of 5 million parameters at 3x64x64, MGDM with K = 100 and G = 3. Every step of the sampler is
followed by the same number of network passes (forward, or forward and gradient in the input), so that other load on the
machine affects both.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

import lavps
from lavps.benchmark.report import markdown_table

from ..common.pages import read, versions_of, write_json, write_page


@dataclass(frozen=True)
class Config:
    """Settings of the measurement."""

    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    batches: tuple[int, ...] = (1, 8)
    """Batch sizes."""
    num_steps: int = 100
    """Number of diffusion steps K."""
    gradient_steps: int = 3
    """Number of gradient steps G per diffusion step."""
    threads: int = 2
    """Number of torch threads."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without measuring."""


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class Denoiser(nn.Module):
    """Residual convolutions on 4x4 patches: 5 million parameters, 16x16 positions."""

    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.embed = conv(48, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.SiLU(), conv(width, width), nn.SiLU(), conv(width, width)) for _ in range(depth)
        )
        self.time = nn.Linear(1, width)
        self.head = conv(width, 48)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict v."""
        hidden = self.embed(nn.functional.pixel_unshuffle(x, 4)) + self.time(t[:, None])[..., None, None]
        for block in self.blocks:
            hidden = hidden + 0.1 * block(hidden)
        return nn.functional.pixel_shuffle(0.1 * self.head(hidden), 4)


@dataclass(frozen=True)
class Result:
    """Times and counts of one batch size."""

    batch: int
    sampler_seconds: float
    bare_seconds: float
    ratio: float
    median_step_ratio: float
    forwards: float
    backwards: float


def bare_passes(network: nn.Module, x: Tensor, t: Tensor, with_gradient: int, without: int) -> None:
    for _ in range(with_gradient):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            output = network(leaf, t)
        torch.autograd.grad(output, leaf, x)
    with torch.no_grad():
        for _ in range(without):
            network(x, t)


def measure(batch: int, config: Config) -> Result:
    """Alternate steps of the sampler and the same network passes."""
    torch.manual_seed(0)
    network = Denoiser().eval()
    prior = lavps.NetworkPrior(network, lavps.VPLinear(), "v")
    truth = 0.5 * torch.randn(batch, 3, 64, 64)
    problem = lavps.InverseProblem.simulate(truth, lavps.operators.AveragePool(4), lavps.GaussianNoise(0.05))
    guidance = lavps.guidance.Gradient(config.gradient_steps)
    sampler = lavps.MGDM(prior, num_steps=config.num_steps, guidance=guidance)
    x, t = torch.randn_like(truth), torch.full((batch,), 0.5)
    bare_passes(network, x, t, 3, 3)
    ours, bare, costs = [], [], []
    steps = sampler.iterate(problem)
    for _ in range(sampler.total_steps):
        start = time.perf_counter()
        step = next(steps)
        middle = time.perf_counter()
        bare_passes(network, x, t, int(step.backwards), int(step.forwards - step.backwards))
        ours.append(middle - start)
        bare.append(time.perf_counter() - middle)
        costs.append((step.forwards, step.backwards))
    ratios = torch.tensor(ours) / torch.tensor(bare)
    forwards, backwards = (sum(column) for column in zip(*costs, strict=True))
    return Result(
        batch, sum(ours), sum(bare), sum(ours) / sum(bare), float(ratios.median()), forwards, backwards
    )


def main(config: Config) -> None:
    """Measure, or read what was measured, and write the page."""
    torch.set_num_threads(config.threads)
    if config.page_only:
        data = read(config.pages, "overhead")
    else:
        versions = {"lavps": lavps.__version__, "torch": torch.__version__}
        parameters = sum(parameter.numel() for parameter in Denoiser().parameters())
        data = {"versions": versions, "parameters": parameters}
        data["results"] = [asdict(measure(batch, config)) for batch in config.batches]
    write_json(config.pages, "overhead", data)
    head = [
        "batch",
        "sampler, s",
        "network alone, s",
        "ratio",
        "median ratio per step",
        "forward passes",
        "backward passes",
    ]
    rows = [
        [str(r["batch"]), f"{r['sampler_seconds']:.1f}", f"{r['bare_seconds']:.1f}", f"**{r['ratio']:.3f}**",
         f"{r['median_step_ratio']:.3f}", f"{r['forwards']:.0f}", f"{r['backwards']:.0f}"]
        for r in data["results"]
    ]  # fmt: skip
    write_page(
        config.pages, "overhead", versions=versions_of(data), parameters=f"{data['parameters'] / 1e6:.1f}",
        table=markdown_table(head, rows), num_steps=config.num_steps, gradient_steps=config.gradient_steps, threads=config.threads,
    )  # fmt: skip


if __name__ == "__main__":
    main(tyro.cli(Config))
