"""What MGDM costs beyond its network: wall time over that of exactly the same bare network passes.

    python recipes/overhead.py          # about ten minutes on two idle cores

A convolutional denoiser of 5 million parameters at 3x64x64, MGDM with K = 100 and G = 3. Every step of the
sampler is followed by the same number of bare passes (forward, or forward and gradient in the input), so that
both see the machine in the same mood. Writes ``overhead.json`` and ``overhead.md``.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from torch import Tensor, nn

import lavps


@dataclass(frozen=True)
class Config:
    """Settings of the measurement."""

    output: Path = Path("benchmarks")
    """Folder for the page and its data."""
    batches: tuple[int, ...] = (1, 8)
    """Batch sizes."""
    num_steps: int = 100
    """K."""
    gradient_steps: int = 3
    """G."""
    threads: int = 2
    """Threads of torch."""


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
        """v-prediction."""
        hidden = self.embed(nn.functional.pixel_unshuffle(x, 4)) + self.time(t[:, None])[..., None, None]
        for block in self.blocks:
            hidden = hidden + 0.1 * block(hidden)
        return nn.functional.pixel_shuffle(0.1 * self.head(hidden), 4)


@dataclass(frozen=True)
class Result:
    """One batch size."""

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
    """Interleave the sampler's steps with the same bare passes."""
    torch.manual_seed(0)
    network = Denoiser().eval()
    prior = lavps.NetworkPrior(network, lavps.VPLinear(), "v")
    truth = 0.5 * torch.randn(batch, 3, 64, 64)
    problem = lavps.InverseProblem.simulate(truth, lavps.operators.AveragePool(4), lavps.GaussianNoise(0.05))
    sampler = lavps.MGDM(prior, num_steps=config.num_steps, gradient_steps_start=config.gradient_steps)
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
    torch.set_num_threads(config.threads)
    parameters = sum(parameter.numel() for parameter in Denoiser().parameters())
    results = [measure(batch, config) for batch in config.batches]
    config.output.mkdir(parents=True, exist_ok=True)
    versions = {"lavps": lavps.__version__, "torch": torch.__version__}
    data = {"command": "python recipes/overhead.py", "versions": versions, "parameters": parameters}
    data["results"] = [asdict(result) for result in results]
    (config.output / "overhead.json").write_text(json.dumps(data, indent=1))
    rows = "\n".join(
        f"| {r.batch} | {r.sampler_seconds:.1f} | {r.bare_seconds:.1f} | **{r.ratio:.3f}** "
        f"| {r.median_step_ratio:.3f} | {r.forwards:.0f} | {r.backwards:.0f} |"
        for r in results
    )
    (config.output / "overhead.md").write_text(
        f"""# What MGDM costs beyond its network

Made by `python recipes/overhead.py` (lavps {versions["lavps"]}, torch {versions["torch"]}).

MGDM with K = {config.num_steps}, G = {config.gradient_steps} on a convolutional denoiser of
{parameters / 1e6:.1f} million parameters at 3x64x64 (float32), 4x block means, {config.threads} CPU threads:
wall time of the sampler over the wall time of exactly the same bare network passes (forward, or forward and
gradient in the input). Steps and bare passes alternate in one run.

| batch | sampler, s | bare passes, s | ratio | median ratio of a step | forwards | backwards |
|---|---|---|---|---|---|---|
{rows}
"""
    )
    print((config.output / "overhead.md").read_text())


if __name__ == "__main__":
    main(tyro.cli(Config))
