"""Memory of the networks, computed from the sizes of their tensors; nothing is allocated.

    python -m recipes.memory.run

A network runs on tensors without data (the device "meta"). The bytes of all tensors that are alive are added up after
every operation, and the largest sum is recorded: once for a forward pass, once for a forward pass and the gradient in the
input. No GPU is involved. What a GPU needs beyond it (libraries, fragmentation, workspaces) is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
import tyro
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.nn import build_network, hdit_ffhq256
from lavps.nn.adm_unet import ResidualUNetConfig

from ..common.pages import read, write_json, write_page

# The layout of 256x256_diffusion_uncond.pt of guided-diffusion.
ADM = ResidualUNetConfig(
    3, 6, 256, (256, 256, 512, 512, 1024, 1024), (2,) * 6, (False, False, False, True, True, True), 256, 1024
)
GIGABYTE = 2**30


@dataclass(frozen=True)
class Config:
    """Settings of the table."""

    zoo: Path = Path("zoo")
    """Folder of the trained models."""
    pages: Path = Path("benchmarks")
    """Folder of the pages."""
    cards: tuple[int, ...] = (8, 24, 80)
    """Memory of the GPUs in GB."""
    page_only: bool = False
    """Page from the stored numbers."""


class LiveBytes(TorchDispatchMode):
    """Sum of the bytes of all storages made while the mode is active, and its largest value."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation and count its new storages."""
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def activations(network: nn.Module, shape: tuple[int, ...], gradient: bool) -> int:
    """Return the peak of live bytes beyond weights and input, for one image of a shape (C, H, W)."""
    x = torch.empty(1, *shape, requires_grad=gradient)
    with LiveBytes() as live, torch.set_grad_enabled(gradient):
        out = network(x, torch.ones(1))
        if gradient:
            torch.autograd.grad(out.sum(), x)
    return live.peak


def measured(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return parameters and bytes per image of a network."""
    found: dict[str, Any] = {"shape": shape}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        torch.set_default_dtype(dtype)
        try:
            with torch.device("meta"):
                network = build().requires_grad_(False).to("meta")
                found |= {f"{name}_forward": activations(network, shape, False)}
                found |= {f"{name}_gradient": activations(network, shape, True)}
        finally:
            torch.set_default_dtype(torch.float32)
    return found | {"parameters": sum(parameter.numel() for parameter in network.parameters())}


def networks(zoo: Path) -> dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    """Return the networks of the table with the shape of their images."""
    small = {name: read_config(zoo / name) for name in ("synthfaces64", "photos64")}
    found: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        f"{name}, {config.network['kind']}": (lambda c=config: build_network(c.network), config.image_shape)
        for name, config in small.items()
    }
    large = {"paper's faces, hdit": hdit_ffhq256(), "guided-diffusion, U-Net": ADM}
    return found | {
        name: (lambda c=config: build_network(c.to_dict()), (3, 256, 256)) for name, config in large.items()
    }


def images_in(row: Mapping[str, Any], precision: str, kind: str, gigabytes: int) -> str:
    """Return how many images fit beside the weights in nine tenths of a GPU's memory."""
    weights = row["parameters"] * (4 if precision == "fp32" else 2)
    count = int((0.9 * gigabytes * GIGABYTE - weights) // row[f"{precision}_{kind}"])
    return f"{count:,}" if count > 0 else "-"


def main(config: Config) -> None:
    """Compute the table and write its page."""
    if not config.page_only:
        rows = {name: measured(*given) for name, given in networks(config.zoo).items()}
        write_json(config.pages, "memory", rows)
    rows = read(config.pages, "memory")
    sizes = [
        [name, f"{row['shape'][1]} x {row['shape'][2]}", f"{row['parameters'] / 1e6:.1f}"]
        + [f"{row[f'{p}_{kind}'] / 2**20:,.0f}" for p in ("fp32", "bf16") for kind in ("forward", "gradient")]
        for name, row in rows.items()
    ]
    counts = [
        [name, precision]
        + [images_in(row, precision, k, size) for k in ("forward", "gradient") for size in config.cards]
        for name, row in rows.items()
        for precision in ("fp32", "bf16")
    ]
    heads = [f"{what}, {size} GB" for what in ("no gradient", "gradient") for size in config.cards]
    write_page(
        config.pages,
        "memory",
        sizes=markdown_table(
            ["network", "pixels", "parameters, millions", "fp32", "fp32, gradient", "bf16", "bf16, gradient"],
            sizes,
        ),
        counts=markdown_table(["network", "precision", *heads], counts),
    )


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
