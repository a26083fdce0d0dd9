"""Checkpoint tensors under the names of this library's networks, with a check that all are used."""

from __future__ import annotations

__all__ = ["Renamer", "canonical_qkv"]

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from .reading import Checkpoint


class Renamer:
    """A map from checkpoint tensors to new names that records which tensors were used.

    Args:
        checkpoint: Source of the tensors.
        found: Tensors that do not come from the checkpoint, by new name.
    """

    def __init__(self, checkpoint: Checkpoint, found: Mapping[str, Tensor] | None = None) -> None:
        self.checkpoint = checkpoint
        self.found: dict[str, Tensor] = dict(found or {})
        self._taken: set[str] = set()

    def take(self, ours: str, theirs: str, optional: bool = False) -> None:
        """Use the weight, and the bias if any, of the layer ``theirs`` for the layer ``ours``."""
        tensors = self.checkpoint.tensors
        if f"{theirs}.weight" not in tensors and not optional:
            raise ValueError(f"{self.checkpoint.path} lacks {theirs}.weight, which its architecture needs")
        for part in ("weight", "bias"):
            if (name := f"{theirs}.{part}") in tensors:
                self.found[f"{ours}.{part}"] = tensors[name]
                self._taken.add(name)

    def tensor(self, ours: str, theirs: str) -> None:
        """Use one tensor under another name."""
        if theirs not in self.checkpoint.tensors:
            raise ValueError(f"{self.checkpoint.path} lacks {theirs}, which its architecture needs")
        self.found[ours] = self.checkpoint.tensors[theirs]
        self._taken.add(theirs)

    def ignore(self, names: Iterable[str]) -> None:
        """Mark tensors of the file as unnecessary for sampling."""
        self._taken |= set(names)

    def finished(self, network: nn.Module) -> dict[str, Tensor]:
        """Return all tensors in the shapes of ``network``; raise for missing, unused or misshapen ones."""
        expected = {name: value.shape for name, value in network.state_dict().items()}
        problems = [f"lacks {name} (as named here)" for name in expected if name not in self.found]
        unused = sorted(self.checkpoint.tensors.keys() - self._taken)
        problems += [f"has {name}, which is not used" for name in unused]
        for name in self.found.keys() & expected.keys():
            value = self.found[name]
            if value.numel() != expected[name].numel():
                problems.append(f"has {name} of shape {tuple(value.shape)}, not {tuple(expected[name])}")
        extra = self.found.keys() - expected.keys()
        problems += [f"has {name}, which its architecture lacks" for name in extra]
        if problems:
            more = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
            raise ValueError(f"{self.checkpoint.path} " + "; ".join(problems[:6]) + more)
        return {name: value.reshape(expected[name]) for name, value in self.found.items()}


def canonical_qkv(found: dict[str, Tensor], prefix: str, heads: int, order: str) -> None:
    """Bring the rows of queries, keys and values into the order (kind, head, channel).

    Args:
        found: Tensors by name, changed in place.
        prefix: Name prefix of the attention layer.
        heads: Number of heads.
        order: Order of the rows in the file, for example "head kind channel".
    """
    axes = order.split()
    for part in ("weight", "bias"):
        if f"{prefix}qkv.{part}" not in found:
            continue
        rows = found[f"{prefix}qkv.{part}"]
        sizes = {"kind": 3, "head": heads, "channel": len(rows) // (3 * heads)}
        split = rows.reshape(*(sizes[axis] for axis in axes), *rows.shape[1:])
        moved = split.movedim([axes.index(axis) for axis in ("kind", "head", "channel")], [0, 1, 2])
        found[f"{prefix}qkv.{part}"] = moved.reshape(rows.shape)
