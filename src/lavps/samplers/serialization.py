"""Conversion between nested dataclasses and plain JSON values; networks are placeholders."""

from __future__ import annotations

__all__ = ["NETWORKS", "UNBOUND", "Unbound", "decode", "encode"]

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn, get_type_hints

from torch import Tensor

from ..guidance import Linearized
from ..schedule import Schedule
from ..variational import Context, DiagonalGaussian
from .annotations import accepts, fits

NETWORKS = ("prior", "model", "denoiser")  # fields that hold a network


@dataclass(frozen=True)
class Unbound:
    """Placeholder for a network in settings: the prior, an inference model or a conditional denoiser.

    Args:
        name: Folder or Hub id of the network; None for the one that the caller supplies.
    """

    name: str | None = None

    @property
    def schedule(self) -> Schedule:
        """Not available: settings hold no network."""
        self._refuse()

    def denoise(self, *args: object) -> Tensor:
        """Not available: settings hold no network."""
        self._refuse()

    def __call__(self, context: Context) -> DiagonalGaussian:
        """Not available: settings hold no network."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise TypeError("settings hold no network: build the sampler with settings.sampler(prior, model)")


UNBOUND = Unbound()


def encode(value: Any) -> Any:
    """Return plain JSON values; a dataclass becomes its fields and its class name, "kind"."""
    if isinstance(value, Unbound):
        return value.name
    if is_dataclass(value):
        encoded = {field.name: encode(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__} | encoded
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{value!r} cannot be stored as settings: only plain values and dataclasses of them can")


def decode(cls: type, values: Mapping[str, Any], known: Mapping[str, type]) -> object:
    """Build an object of a dataclass from plain JSON values.

    Args:
        cls: Class of the object.
        values: Its fields; a field that is left out has its default.
        known: Classes that nested objects may have, by name.

    Raises:
        ValueError: A name is unknown, or a value has the wrong type.
    """
    hints = get_type_hints(cls, None, {"KW_ONLY": object})  # Python 3.10 takes the marker for no type
    names = [field.name for field in fields(cls)]
    decoded: dict[str, Any] = {"prior": UNBOUND} if "prior" in names else {}
    names = [name for name in names if name != "prior"]
    if unknown := sorted(set(values) - set(names)):
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}: it has {', '.join(names)}")
    for name, value in values.items():
        if isinstance(value, Mapping):
            kind, hint = value.get("kind"), hints[name]
            choices = [other for other, part in known.items() if _accepts(name, hint, part)]
            if kind not in choices:
                allowed = f"one of {', '.join(choices)}" if choices else "a plain value"
                raise ValueError(f"{cls.__name__}.{name} must be {allowed}, got {kind!r}")
            rest = {key: item for key, item in value.items() if key != "kind"}
            decoded[name] = decode(known[kind], rest, known)
        elif name in NETWORKS and (value is None or isinstance(value, str)):
            decoded[name] = Unbound(value)
        elif fits(value, hints[name]):
            decoded[name] = tuple(value) if isinstance(value, list) else value
        else:
            raise ValueError(f"{cls.__name__}.{name} cannot be {value!r}")
    try:
        return cls(**decoded)
    except TypeError as error:
        raise ValueError(f"{cls.__name__} cannot be built from {sorted(decoded)}: {error}") from error


def _accepts(name: str, hint: Any, part: type) -> bool:
    """Return whether a field may hold an object of this class; linearized guidance may replace a model."""
    return name == "model" and part is Linearized if name in NETWORKS else accepts(hint, part)
