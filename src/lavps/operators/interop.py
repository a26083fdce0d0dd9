r"""Operators from deepinv physics and from NumPy functions.

A deepinv physics is recognized by its methods ``A(x)`` and, if linear, ``A_adjoint(y)``, and by its
``noise_model``; deepinv is never imported. The conventions differ:

- *Range*: images are in [-1, 1] here and in [0, 1] in most deepinv pipelines. Wrap a physics for images in
  [0, 1] as ``lavps.operators.RescaledOperator(physics, 0, 1)``.
- *Noise*: its standard deviation is in units of the measurement in both. A complex measurement is two real
  channels in deepinv, each with noise sigma; as a complex number it has :math:`E|noise|^2 = 2 \sigma^2`.
- *State*: ``physics.A(x, mask=...)`` changes the physics. An operator is immutable: it holds a copy of the
  physics' parameters and does not follow later updates.
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
from .autograd import linear_map
from .base import CallableOperator, Operator

Array = NDArray[Any]

# Parameters of deepinv's physics, and tensors derived from them, that may have a leading item axis.
_PER_ITEM = {"mask", "filter", "filters", "multipliers", "coil_maps", "angle", "Fh", "Fhc", "Fh2"}


def is_physics(candidate: object) -> bool:
    """Return whether an object has the interface of a deepinv physics, ``A`` and ``noise_model``."""
    return callable(getattr(candidate, "A", None)) and hasattr(candidate, "noise_model")


class PhysicsOperator(Operator):
    """Deepinv physics as an operator, evaluated in the precision of the physics.

    The adjoint is ``A_adjoint`` if the physics is linear and has one, else automatic differentiation. Several
    rows of a mask, filter or coil map belong to one item each. A ``sensor_model`` (quantization or saturation
    after the noise) is not part of the operator.

    Args:
        physics: Object with ``A`` and ``noise_model``.
        in_shape: Image shape (C, *spatial); required if there is neither ``A_adjoint`` nor ``img_size``.
        linear: Whether A is linear; by default, whether the physics has ``A_adjoint_A``.
        complex_measurement: Whether measurements with two real channels are represented as complex tensors.
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
            raise TypeError(f"a physics has A(x) and a noise_model; {type(physics).__name__} does not")
        self.physics = _twin(physics)
        self.linear = hasattr(physics, "A_adjoint_A") if linear is None else linear
        self.in_shape = None if in_shape is None else tuple(in_shape)
        if self.in_shape is not None and getattr(physics, "img_size", self) is None:
            self.physics.img_size = self.in_shape  # needed by deepinv's automatic adjoint
        self._as_complex = complex_measurement and hasattr(physics, "to_torch_complex")
        self._rows = _rows(physics)
        self._precision = _precision(physics)
        dtype = getattr(physics, "dtype", None)
        self._complex_images = isinstance(dtype, torch.dtype) and dtype.is_complex
        self._std = _gaussian_std(physics.noise_model, math.sqrt(2.0) if self._as_complex else 1.0)
        self._cache: dict[Any, Any] = {}  # image shapes and observed entries

    def __call__(self, x: Tensor) -> Tensor:
        """Return A(x), without noise."""
        self._require_rows(x)
        return linear_map(x, self._forward, self._backward) if self._has_adjoint else self._forward(x)

    def input_shape(self, measurement_shape: Sequence[int]) -> tuple[int, ...]:
        """Return ``in_shape``, or the shape of ``A_adjoint(y)``, or ``img_size``."""
        if self.in_shape is not None:
            return self.in_shape
        shape = tuple(measurement_shape)
        if shape not in self._cache:
            size = getattr(self.physics, "img_size", None)
            if self._has_adjoint:
                dtype = torch.complex64 if self._as_complex else torch.float32
                zero = torch.zeros(self.batch, *shape, dtype=dtype, device=self._device)
                size = self._backward(zero).shape[1:]
            if size is None:
                raise ValueError(f"the image shape of {self!r} is unknown: pass in_shape=(C, *spatial)")
            self._cache[shape] = tuple(int(n) for n in size)
        return self._cache[shape]  # type: ignore[no-any-return]

    def observed(self, y: Tensor) -> Tensor | None:
        """Return 1 for the entries that are nonzero for a random image, 0 for the masked ones."""
        if not self.linear:
            return None
        if "observed" not in self._cache:
            like = torch.zeros((), device=y.device)
            probe = NoiseStreams.from_seed(1).normal(Purpose.PROBE, self.input_shape(y.shape[1:]), like)
            with torch.no_grad():
                seen = self._forward(probe.expand(self.batch, *probe.shape[1:])) != 0
            self._cache["observed"] = None if bool(seen.all()) else seen
        seen = self._cache["observed"]
        return None if seen is None else seen.to(y.device, y.real.dtype)

    def select(self, rows: Tensor) -> Operator:
        """Return the operator with the masks, filters and coils of these rows."""
        if self.batch == 1:
            return self
        chosen = copy.copy(self)
        chosen.physics, chosen._rows = _twin(self.physics, rows), len(rows)
        std, seen = self._std, self._cache.get("observed")
        chosen._std = std[rows.to(std.device)] if isinstance(std, Tensor) else std
        chosen._cache = dict(self._cache)
        if seen is not None:
            chosen._cache["observed"] = seen[rows.to(seen.device)]
        return chosen

    def to(self, *args: torch.device | str | torch.dtype) -> Operator:
        """Return the operator on another device; its precision remains that of the physics."""
        moved = copy.copy(self)
        for target in args:
            if not isinstance(target, torch.dtype) and torch.device(target) != self._device:
                clone = getattr(moved.physics, "clone", None) or (lambda: copy.deepcopy(self.physics))
                moved.physics, moved._cache = clone().to(target), {}
        return moved

    @property
    def batch(self) -> int:
        """Number of rows of the parameters; 1 if all items share them."""
        return self._rows

    @property
    def noise_std(self) -> float | Tensor | None:
        """Standard deviation of a Gaussian ``noise_model``, in units of the measurement."""
        return self._std

    def adjoint(self, y: Tensor) -> Tensor:
        """Return ``A_adjoint(y)``, or A^T y by automatic differentiation."""
        self._require_linear("an adjoint")
        return linear_map(y, self._backward, self._forward) if self._has_adjoint else super().adjoint(y)

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
        # A copy per call: a call may modify the physics (sizes, caches), which is not thread-safe.
        y = _twin(self.physics).A(self._cast(x, image=True))
        if not isinstance(y, Tensor):
            raise TypeError(f"{self!r} returns a {type(y).__name__}; concatenate its parts into one tensor")
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
    """Return the parameters of A with their names, without those of the noise."""
    if not hasattr(physics, "named_buffers"):
        return []
    named = [*physics.named_buffers(), *physics.named_parameters()]
    return [(name, value) for name, value in named if not name.startswith("noise_model.")]


def _rows(physics: Any) -> int:
    sizes = {len(value) for name, value in _tensors(physics) if _is_per_item(physics, name, value)}
    if len(sizes) > 1:
        raise ValueError(f"the physics has parameters for {sorted(sizes)} items: the numbers must agree")
    return sizes.pop() if sizes else 1


def _is_per_item(physics: Any, name: str, value: Tensor) -> bool:
    *path, last = name.split(".")
    size = getattr(physics, "img_size", None) if not path else None
    axes = 4 if last != "mask" or size is None else min(4, len(size) + 1)
    return "noise_model" not in path and last in _PER_ITEM and value.ndim >= axes and len(value) > 1


def _twin(physics: Any, rows: Tensor | None = None) -> Any:
    """Return a copy of the physics that shares its tensors, or has those of the items ``rows``."""

    def copied(module: Any, prefix: str = "") -> Any:
        twin = copy.copy(module)
        if not isinstance(module, torch.nn.Module):
            return twin
        buffers = dict(module._buffers)
        for name, value in buffers.items():
            if rows is not None and value is not None and _is_per_item(physics, prefix + name, value):
                buffers[name] = value[rows.to(value.device)]
        children = {name: copied(child, f"{prefix}{name}.") for name, child in module._modules.items()}
        twin.__dict__.update(_buffers=buffers, _modules=children)
        return twin

    return copied(physics)


def _precision(physics: Any) -> torch.dtype | None:
    """Return the highest real precision among the parameters of A, if any."""
    dtypes = [value.real.dtype for _, value in _tensors(physics)]
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: torch.finfo(dtype).bits, default=None)


def _gaussian_std(noise_model: Any, factor: float) -> float | Tensor | None:
    """Return sigma of deepinv's GaussianNoise; None for others, whose sigma may have another meaning."""
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
    """Convert a NumPy function (a simulator, another framework) to an operator.

    Args:
        function: Function from arrays (B, C, *spatial) to real or complex arrays (B, *measurement) that
            treats rows independently.
        in_shape: Image shape (C, *spatial).
        linear: Whether the function is linear.
        adjoint: Product y -> A^T y (A^H y) of a linear function.
        vjp: Product (x, v) -> J^T v of a nonlinear function. Without adjoint and vjp, only samplers that
            need no gradient can use the operator.

    Example:
        >>> fourier = from_numpy(np.fft.fft, in_shape=(1, 4))
        >>> fourier(torch.ones(1, 1, 4)).real
        tensor([[[4., 0., 0., 0.]]])
    """
    derivatives = (None if product is None else _on_tensors(product) for product in (adjoint, vjp))
    return CallableOperator(_on_tensors(function), in_shape, linear, *derivatives)


def _on_tensors(function: Callable[..., Array]) -> Callable[..., Tensor]:
    @wraps(function)
    def wrapped(*tensors: Tensor) -> Tensor:
        result = function(*[tensor.detach().cpu().resolve_conj().numpy() for tensor in tensors])
        like, found = tensors[0], torch.from_numpy(np.ascontiguousarray(result))
        precision = like.real.dtype
        return found.to(like.device, precision.to_complex() if found.is_complex() else precision)

    return wrapped
