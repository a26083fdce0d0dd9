"""The tensors of a file under the names of our networks, none lost and none invented."""

from __future__ import annotations

__all__ = ["Renamer", "canonical_qkv"]

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from .reading import Checkpoint


class Renamer:
    """Collects tensors by new names, and knows which of the file's were taken.

    Args:
        checkpoint: the file.
        found: tensors that are known without it.
    """

    def __init__(self, checkpoint: Checkpoint, found: Mapping[str, Tensor] | None = None) -> None:
        self.checkpoint = checkpoint
        self.found: dict[str, Tensor] = dict(found or {})
        self._taken: set[str] = set()

    def take(self, ours: str, theirs: str, optional: bool = False) -> None:
        """The weight, and the bias if any, of the layer ``theirs`` as the layer ``ours``."""
        tensors = self.checkpoint.tensors
        if f"{theirs}.weight" not in tensors and not optional:
            raise ValueError(f"{self.checkpoint.path} lacks {theirs}.weight, which its other tensors ask for")
        for part in ("weight", "bias"):
            if (name := f"{theirs}.{part}") in tensors:
                self.found[f"{ours}.{part}"] = tensors[name]
                self._taken.add(name)

    def tensor(self, ours: str, theirs: str) -> None:
        """One tensor under another name."""
        if theirs not in self.checkpoint.tensors:
            raise ValueError(f"{self.checkpoint.path} lacks {theirs}, which its other tensors ask for")
        self.found[ours] = self.checkpoint.tensors[theirs]
        self._taken.add(theirs)

    def ignore(self, names: Iterable[str]) -> None:
        """Tensors of the file that sampling does not need."""
        self._taken |= set(names)

    def finished(self, network: nn.Module) -> dict[str, Tensor]:
        """All that was taken, in the shapes of ``network``; refuses what is missing, left over or unlike."""
        expected = {name: value.shape for name, value in network.state_dict().items()}
        problems = [f"lacks {name} (as named here)" for name in expected if name not in self.found]
        left = sorted(self.checkpoint.tensors.keys() - self._taken)
        problems += [f"has {name}, for which there is no place" for name in left]
        for name in self.found.keys() & expected.keys():
            value = self.found[name]
            if value.numel() != expected[name].numel():
                problems.append(f"has {name} of shape {tuple(value.shape)}, not {tuple(expected[name])}")
        problems += [
            f"has {name}, which its architecture has not" for name in self.found.keys() - expected.keys()
        ]
        if problems:
            more = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
            raise ValueError(f"{self.checkpoint.path} " + "; ".join(problems[:6]) + more)
        return {name: value.reshape(expected[name]) for name, value in self.found.items()}


def canonical_qkv(found: dict[str, Tensor], prefix: str, heads: int, order: str) -> None:
    """Bring the rows of queries, keys and values into the order (kind, head, channel).

    Args:
        found: tensors, changed in place.
        prefix: of the attention layer.
        heads: of it.
        order: of the rows as they are, "head kind channel" say.
    """
    axes = order.split()
    for part in ("weight", "bias"):
        if f"{prefix}qkv.{part}" not in found:
            continue
        rows = found[f"{prefix}qkv.{part}"]
        sizes = {"kind": 3, "head": heads, "channel": len(rows) // (3 * heads)}
        apart = rows.reshape(*(sizes[axis] for axis in axes), *rows.shape[1:])
        moved = apart.movedim([axes.index(axis) for axis in ("kind", "head", "channel")], [0, 1, 2])
        found[f"{prefix}qkv.{part}"] = moved.reshape(rows.shape)
