r"""Operators from elsewhere: deepinv's physics as they are, and NumPy functions.

A deepinv physics has ``A(x)``, where it is linear ``A_adjoint(y)``, and a ``noise_model``. It is recognised
by these, whatever module it comes from; deepinv itself is never imported. What differs between the houses:

- *range*: lavps has images in [-1, 1]; most deepinv pipelines have them in [0, 1]. A physics applied to
  images in [0, 1] is ``lavps.operators.Ranged(physics, 0, 1)``.
- *noise*: the noise's standard deviation is in units of the measurement in both. Complex measurements
  are two real channels in deepinv, each with noise sigma; as complex numbers they have
  :math:`E|noise|^2 = 2 \sigma^2`.
- *state*: ``physics.A(x, mask=...)`` changes the physics. An operator is immutable: it works on its own
  copy of the physics' parameters, and later updates of the physics do not reach it.
"""

from __future__ import annotations

__all__ = ["PhysicsOperator", "from_numpy", "is_physics"]

import copy
import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..random import NoiseStreams, Purpose
from .base import CallableOperator, Operator
from .derivatives import linear_map

Array = NDArray[Any]

# Parameters of deepinv's physics that may lead with an axis of items (and what it derives from them).
_PER_ITEM = {"mask", "filter", "filters", "multipliers", "coil_maps", "angle", "Fh", "Fhc", "Fh2"}


def is_physics(candidate: object) -> bool:
    """Whether an object looks like a physics of deepinv: it has ``A`` and a ``noise_model``."""
    return callable(getattr(candidate, "A", None)) and hasattr(candidate, "noise_model")


class PhysicsOperator(Operator):
    """A deepinv physics as an operator, computed in the physics' own precision.

    The adjoint is ``A_adjoint`` where the physics is linear and has one, otherwise it is found by automatic
    differentiation. A mask, filter or set of coils with more than one row is one per item. A ``sensor_model``
    (quantisation, saturation after the noise) is not part of the operator.

    Args:
        physics: any object with ``A`` and ``noise_model``.
        in_shape: image shape (C, *spatial); needed where neither ``A_adjoint`` nor ``img_size`` tells.
        linear: by default whether it has ``A_adjoint_A``, as deepinv's linear physics do.
        complex_measurement: measurements with two real channels are read and given as complex tensors.
    """

    linear: bool  # type: ignore[misc]

    def __init__(
        self,
        physics: Any,
        in_shape: Sequence[int] | None = None,
        *,
        linear: bool | None = None,
        complex_measurement: bool = False,
    ) -> None:
        if not is_physics(physics):
            raise TypeError(f"a physics has A(x) and a noise_model; {type(physics).__name__} has not")
        self.physics = _twin(physics)
        self.linear = hasattr(physics, "A_adjoint_A") if linear is None else linear
        self.in_shape = None if in_shape is None else tuple(in_shape)
        if self.in_shape is not None and getattr(physics, "img_size", self) is None:
            self.physics.img_size = self.in_shape  # what deepinv's automatic adjoint needs
        self._as_complex = complex_measurement and hasattr(physics, "to_torch_complex")
        self._rows = _rows(physics)
        self._precision = _precision(physics)
        dtype = getattr(physics, "dtype", None)
        self._complex_images = isinstance(dtype, torch.dtype) and dtype.is_complex
        self._std = _gaussian_std(physics.noise_model, math.sqrt(2.0) if self._as_complex else 1.0)
        self._known: dict[Any, Any] = {}  # shapes and the observed entries, found when first asked for

    def __call__(self, x: Tensor) -> Tensor:
        """A(x), without noise."""
        self._require_rows(x)
        return linear_map(x, self._forward, self._backward) if self._has_adjoint else self._forward(x)

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """The stated ``in_shape``, or the shape of ``A_adjoint(y)``, or ``img_size``."""
        shape = tuple(measurement_shape)
        if self.in_shape is None and shape not in self._known:
            size = getattr(self.physics, "img_size", None)
            if self._has_adjoint:
                dtype = torch.complex64 if self._as_complex else torch.float32
                zero = torch.zeros(self.batch, *shape, dtype=dtype, device=self._device)
                size = self._backward(zero).shape[1:]
            if size is None:
                raise ValueError(
                    f"{self!r} does not tell the shape of its images: pass in_shape=(C, *spatial)"
                )
            self._known[shape] = tuple(int(n) for n in size)
        known: tuple[int, ...] = self._known[shape] if self.in_shape is None else self.in_shape
        return known

    def observed(self, y: Tensor) -> Tensor | None:
        """Where some image gives a value other than 0: the rest of a masked measurement is no data."""
        if not self.linear:
            return None
        if "observed" not in self._known:
            like = torch.zeros((), device=y.device)
            probe = NoiseStreams.of(1).normal(Purpose.PROBE, self.input_shape(y.shape[1:]), like)
            with torch.no_grad():
                seen = self._forward(probe.expand(self.batch, *probe.shape[1:])) != 0
            self._known["observed"] = None if bool(seen.all()) else seen
        seen = self._known["observed"]
        return None if seen is None else seen.to(y.device, y.real.dtype)

    def select(self, rows: Tensor) -> Operator:
        """The masks, filters and coils of these rows."""
        if self.batch == 1:
            return self
        chosen = copy.copy(self)
        chosen.physics, chosen._rows = _twin(self.physics, rows), len(rows)
        std, seen = self._std, self._known.get("observed")
        chosen._std = std[rows.to(std.device)] if isinstance(std, Tensor) else std
        chosen._known = dict(self._known)
        if seen is not None:
            chosen._known["observed"] = seen[rows.to(seen.device)]
        return chosen

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """The operator on another device; its precision remains that of the physics."""
        moved = copy.copy(self)
        for target in args:
            if not isinstance(target, torch.dtype) and torch.device(target) != self._device:
                clone = getattr(moved.physics, "clone", None) or (lambda: copy.deepcopy(self.physics))
                moved.physics, moved._known = clone().to(target), {}
        return moved

    @property
    def batch(self) -> int:
        """Rows of the parameters: 1 when shared by all items."""
        return self._rows

    @property
    def noise_std(self) -> float | Tensor | None:
        """Sigma of a Gaussian ``noise_model``, in units of the measurement."""
        return self._std

    def adjoint(self, y: Tensor) -> Tensor:
        """``A_adjoint(y)``, or A^T y by VJP."""
        self._require_linear("an adjoint")
        return linear_map(y, self._backward, self._forward) if self._has_adjoint else super().adjoint(y)

    def looks_unit_ranged(self, y: Tensor, std: float) -> bool:
        """Whether y shows nothing darker than mid-grey, as of images in [0, 1] rather than [-1, 1]."""
        if not self.linear or y.is_complex() or bool((y < -4.0 * std).any()):
            return False
        with torch.no_grad():
            white = self(torch.ones(self.batch, *self.input_shape(y.shape[1:]), device=y.device))
        if white.is_complex() or bool((white < -1e-6 * white.abs().max()).any()):
            return False
        if 4.0 * std > 0.5 * float(white.max()):  # noise would hide the difference
            return False
        return bool(y.mean() > 0.1 * white.mean())

    @property
    def _has_adjoint(self) -> bool:
        return self.linear and callable(getattr(self.physics, "A_adjoint", None))

    @property
    def _device(self) -> torch.device:
        return next((value.device for _, value in _tensors(self.physics)), torch.device("cpu"))

    def _cast(self, z: Tensor, image: bool = False) -> Tensor:
        dtype = self._precision or z.real.dtype
        return z.to(dtype.to_complex() if z.is_complex() or (image and self._complex_images) else dtype)

    def _forward(self, x: Tensor) -> Tensor:
        # A call may store things in the physics (sizes, caches): it gets a copy, so that threads do not meet.
        y = _twin(self.physics).A(self._cast(x, image=True))
        if not isinstance(y, Tensor):
            raise TypeError(f"{self!r} measures a {type(y).__name__}; concatenate its parts into one tensor")
        if self._as_complex:
            y = torch.complex(y[:, 0], y[:, 1])
        return y.to(x.dtype.to_complex() if y.is_complex() else x.dtype)

    def _backward(self, y: Tensor) -> Tensor:
        v = torch.stack([y.real, y.imag], 1) if self._as_complex else y
        x: Tensor = _twin(self.physics).A_adjoint(self._cast(v))
        return (x.real if x.is_complex() else x).to(y.real.dtype)

    def __repr__(self) -> str:
        return f"PhysicsOperator({type(self.physics).__name__})"


def _tensors(physics: Any) -> list[tuple[str, Tensor]]:
    """The parameters of A, by name; not those of the noise."""
    named = (
        [*physics.named_buffers(), *physics.named_parameters()] if hasattr(physics, "named_buffers") else []
    )
    return [(name, value) for name, value in named if not name.startswith("noise_model.")]


def _rows(physics: Any) -> int:
    sizes = {len(value) for name, value in _tensors(physics) if _is_per_item(physics, name, value)}
    if len(sizes) > 1:
        raise ValueError(f"the parameters of the physics are for {sorted(sizes)} items: give one number")
    return sizes.pop() if sizes else 1


def _is_per_item(physics: Any, name: str, value: Tensor) -> bool:
    *path, last = name.split(".")
    size = getattr(physics, "img_size", None) if not path else None
    axes = 4 if last != "mask" or size is None else min(4, len(size) + 1)
    return "noise_model" not in path and last in _PER_ITEM and value.ndim >= axes and len(value) > 1


def _twin(physics: Any, rows: Tensor | None = None) -> Any:
    """A copy that shares tensors, not the places that hold them; with ``rows``, of these items."""
    if not isinstance(physics, torch.nn.Module):
        return copy.copy(physics)
    return _copied(physics, physics, "", rows)


def _copied(root: torch.nn.Module, module: torch.nn.Module, prefix: str, rows: Tensor | None) -> Any:
    twin = copy.copy(module)
    buffers = dict(module._buffers)
    for name, value in buffers.items():
        if rows is not None and value is not None and _is_per_item(root, prefix + name, value):
            buffers[name] = value[rows.to(value.device)]
    twin.__dict__["_buffers"] = buffers
    twin.__dict__["_modules"] = {
        name: child if child is None else _copied(root, child, f"{prefix}{name}.", rows)
        for name, child in module._modules.items()
    }
    return twin


def _precision(physics: Any) -> torch.dtype | None:
    """The widest real precision among the parameters of A; None where it has none."""
    kinds = [
        value.real.dtype if value.is_complex() else value.dtype
        for _, value in _tensors(physics)
        if value.is_floating_point() or value.is_complex()
    ]
    return max(kinds, key=lambda kind: torch.finfo(kind).bits, default=None)


def _gaussian_std(noise_model: Any, factor: float) -> float | Tensor | None:
    """Sigma of deepinv's GaussianNoise; None for any other law (several have a sigma of another meaning)."""
    if not any(kind.__name__ == "GaussianNoise" for kind in type(noise_model).__mro__):
        return None
    sigma = factor * torch.as_tensor(noise_model.sigma).detach()
    return float(sigma) if sigma.numel() == 1 else sigma.flatten()


def from_numpy(
    function: Callable[[Array], Array],
    in_shape: Sequence[int],
    linear: bool = False,
    adjoint: Callable[[Array], Array] | None = None,
    vjp: Callable[[Array, Array], Array] | None = None,
) -> CallableOperator:
    """A NumPy function (a simulator, another framework) as an operator.

    Args:
        function: maps arrays (B, C, *spatial) to (B, *measurement), row by row, real or complex.
        in_shape: image shape (C, *spatial).
        linear: whether it is linear.
        adjoint: A^T y (A^H y) of a linear function.
        vjp: (x, v) -> J^T v of any other. Without adjoint and vjp there is no gradient, and only samplers
            that need none can use the operator.
    """
    back = None if adjoint is None else _on_tensors(adjoint)
    pull = None if vjp is None else _on_tensors(vjp)
    return CallableOperator(_on_tensors(function), in_shape, linear, back, pull)


def _on_tensors(function: Callable[..., Array]) -> Callable[..., Tensor]:
    @wraps(function)
    def wrapped(*tensors: Tensor) -> Tensor:
        result = function(*[tensor.detach().cpu().resolve_conj().numpy() for tensor in tensors])
        like, found = tensors[0], torch.from_numpy(np.ascontiguousarray(result))
        precision = like.real.dtype
        return found.to(like.device, precision.to_complex() if found.is_complex() else precision)

    return wrapped
