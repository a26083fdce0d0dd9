"""The base of the networks' configurations."""

from __future__ import annotations

__all__ = ["NetworkConfig"]

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class NetworkConfig:
    """Architecture of a network in plain values; lists, as read from JSON, become tuples."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(value := getattr(self, field.name), list):
                object.__setattr__(self, field.name, tuple(value))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which :func:`~lavps.nn.build_network` rebuilds the network."""
        return {"kind": self.kind, **asdict(self)}
