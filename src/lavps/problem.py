r"""Inverse problems: a measurement, its operator and its noise (the paper's Eqs. 5-7).

.. math:: y \sim l(\cdot | A(x_0)), \qquad \pi(x_0 | y) \propto l(y | A(x_0)) \, p(x_0)

An :class:`InverseProblem` holds a batch of measurements and turns images into log-likelihoods, one
number per row. The noise's standard deviation is always in the units of the measurement.
"""

from __future__ import annotations

__all__ = [
    "GaussianNoise",
    "InverseProblem",
    "NoiseModel",
    "PixelRangeWarning",
    "PoissonNoise",
    "Unconditional",
    "exact_posterior",
]

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .noise import GaussianNoise, NoiseModel, PoissonNoise
from .operators import Operator, PhysicsOperator, Ranged, as_operator
from .operators.conjugate import largest_singular_value
from .priors import GaussianMixturePrior
from .random import NoiseStreams


class PixelRangeWarning(UserWarning):
    """Measurements look as if they were made of images in another pixel range."""


@dataclass(frozen=True, init=False)
class InverseProblem:
    """A batch of measurements to be explained.

    Args:
        y: measurements (B, *measurement), floating point or complex, on the device to compute on.
        operator: an :class:`~lavps.operators.Operator`, a deepinv physics, or any torch function (then give
            ``in_shape``). One that reads pixels in another range than [-1, 1] is wrapped in
            :class:`~lavps.operators.Ranged`; where that is affine and the noise Gaussian, the problem holds
            the linear part and the measurement without the offset.
        noise: the noise model; None takes the Gaussian noise stated by the operator.
        in_shape: image shape (C, *spatial), needed for a plain function only.

    Warns:
        PixelRangeWarning: the measurements of a physics look like those of images in [0, 1].
    """

    y: Tensor
    operator: Operator
    noise: NoiseModel
    in_shape: tuple[int, ...] | None = None

    def __init__(
        self,
        y: Tensor,
        operator: Operator | Callable[[Tensor], Tensor],
        noise: NoiseModel | None = None,
        in_shape: Sequence[int] | None = None,
    ) -> None:
        if not (y.is_floating_point() or y.is_complex()):
            raise TypeError(
                f"measurements must be floating point, got {y.dtype}. 8-bit images: y = image / 127.5 - 1 "
                "brings [0, 255] to [-1, 1], the range of every prior"
            )
        if y.ndim < 2:
            raise ValueError(f"measurements need a batch axis: got shape {tuple(y.shape)}, use y[None]")
        given, operator = operator, as_operator(operator, in_shape, y.is_complex())
        noise = _stated_noise(operator) if noise is None else noise
        if given is not operator:
            _warn_of_range(y, operator, noise)
        if isinstance(operator, Ranged) and isinstance(noise, GaussianNoise):
            y, operator = operator.centred(y)
        for what, batch in (("operator", operator.batch), ("noise", noise.batch)):
            if batch not in (1, len(y)):
                raise ValueError(f"the {what} has parameters for {batch} items, y has {len(y)}")
        shape = operator.input_shape(tuple(y.shape[1:]))
        if in_shape is not None and tuple(in_shape) != shape:
            raise ValueError(f"in_shape {tuple(in_shape)} does not fit y: {operator!r} expects {shape}")
        observed = operator.observed(y)
        # What lies in the unobserved part of a file (a painted hole, noise) must not be read as data.
        object.__setattr__(self, "y", y if observed is None else torch.where(observed.bool(), y, 0.0))
        object.__setattr__(self, "operator", operator)
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "in_shape", shape)

    @classmethod
    def simulate(
        cls,
        x: Tensor,
        operator: Operator | Callable[[Tensor], Tensor],
        noise: NoiseModel | None = None,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
    ) -> InverseProblem:
        """Measurements of known images x (B, C, *spatial); the noise is a function of (seed, item)."""
        operator = as_operator(operator, x.shape[1:])
        noise = _stated_noise(operator) if noise is None else noise
        if noise.batch not in (1, len(x)):
            raise ValueError(f"the noise has parameters for {noise.batch} items, x has {len(x)}")
        with torch.no_grad():
            y = noise.sample(operator(x), NoiseStreams.of(len(x), seed, items))
        return cls(y, operator, noise, tuple(x.shape[1:]))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape (C, *spatial) of the images sought."""
        assert self.in_shape is not None
        return self.in_shape

    @property
    def like(self) -> Tensor:
        """An empty real tensor with the device and dtype of the images sought."""
        return (self.y.real if self.y.is_complex() else self.y).new_empty(0)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> InverseProblem:
        """The problem of one item, as a batch of one."""
        return self.select(torch.arange(len(self))[index].reshape(1))

    def select(self, rows: Tensor) -> InverseProblem:
        """The problem whose row i is row ``rows[i]`` of this one."""
        operator = self.operator if self.operator.batch == 1 else self.operator.select(rows)
        return InverseProblem(
            self.y[rows.to(self.y.device)], operator, self.noise.select(rows), self.in_shape
        )

    def repeat(self, times: int) -> InverseProblem:
        """Every item ``times`` in a row."""
        return self if times == 1 else self.select(torch.arange(len(self)).repeat_interleave(times))

    def _observed(self, entries: Tensor) -> Tensor:
        observed = self.operator.observed(self.y)
        return entries if observed is None else entries * observed.to(entries)

    def log_likelihood(self, x: Tensor) -> Tensor:
        """log l(y | A(x)) per row, shape (B,), over the observed entries."""
        return self._observed(self.noise.log_prob(self.y, self.operator(x))).flatten(1).sum(1)

    def residual(self, prediction: Tensor) -> Tensor:
        """What a prediction A(x) leaves unexplained of y, 0 where nothing was observed."""
        return self._observed(self.noise.residual(self.y, prediction))

    def pull(self, x: Tensor) -> Tensor:
        r"""Where the measurement pulls x: :math:`J^T W (y - A(x))`, (B, C, *spatial).

        For Gaussian noise the gradient of the log-likelihood; else W, the residuals' precision, is taken as
        constant.
        """
        prediction = self.operator(x)
        weight = self.noise.precision(prediction) * (2.0 if prediction.is_complex() else 1.0)
        return self._back(x, weight * self.residual(prediction))

    def stiffness(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        r"""How :meth:`pull` weakens along u: :math:`u \mapsto J^T W J u`, J the Jacobian of A at x."""
        prediction = self.operator(x)
        weight = self.noise.precision(prediction) * (2.0 if prediction.is_complex() else 1.0)
        return lambda u: self._back(x, weight * self._observed(self.operator.jvp(x, u)))

    def _back(self, x: Tensor, z: Tensor) -> Tensor:
        """J^T z at x; a linear operator's adjoint needs no graph."""
        if self.operator.linear and not z.is_complex():
            return self.operator.adjoint(z)
        return self.operator.vjp(x, z)

    def chi_square(self, x: Tensor) -> Tensor:
        """Mean squared misfit in units of its expected value, per row (B,): 1 where x explains y."""
        prediction = self.operator(x)
        squares = self.noise.precision(prediction) * self.residual(prediction).abs().square()
        count = self._observed(torch.ones_like(squares)).flatten(1).sum(1)
        return self._observed(squares).flatten(1).sum(1) / count.clamp(min=1)

    def curvature(self, x: Tensor, iterations: int = 30) -> Tensor:
        r"""Largest eigenvalue of :math:`J^T W J`, per row (B,): how sharply the likelihood bends at x.

        J is the operator's Jacobian, W the noise's curvature in its prediction; the operator's norm squared
        over std^2 for Gaussian noise. By power iteration; for a linear operator under Gaussian noise it is
        the same at every x, and computed once.
        """
        if not isinstance(self.noise, GaussianNoise):
            weight = self._observed(self.noise.curvature(self.y, self.operator(x)))
            jvp, vjp = partial(self.operator.jvp, x), partial(self.operator.vjp, x)
            return largest_singular_value(jvp, vjp, x, iterations, weight).square()
        bend = self.noise.curvature(self.y, self.y).to(x).reshape(-1)
        if not self.operator.linear:
            return self.operator.norm(x, iterations).square() * bend
        zero = torch.zeros_like(x)
        return self.remembered(
            ("curvature", iterations), lambda: self.operator.norm(zero, iterations).square() * bend
        )

    def remembered(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """What depends on the problem alone, kept with it: a sampler asks at each of its steps.

        As functools.cached_property does, but by key; it lives as long as the problem and is nobody else's.
        """
        known: dict[Hashable, Tensor] = self.__dict__.setdefault("_remembered", {})
        if key not in known:
            with torch.inference_mode(False), torch.no_grad():
                known[key] = compute()
        return known[key]

    def to(self, *args: torch.device | str | torch.dtype) -> InverseProblem:
        """The problem on another device or in another real dtype."""
        y = self.y
        for target in args:
            # A complex measurement keeps its imaginary part: float32 means complex64.
            is_dtype = isinstance(target, torch.dtype)
            y = y.to(target.to_complex() if is_dtype and y.is_complex() else target)  # type: ignore[union-attr]
        return replace(self, y=y, operator=self.operator.to(*args))


def _stated_noise(operator: Operator) -> NoiseModel:
    std = operator.noise_std
    if std is None or not bool((torch.as_tensor(std) > 0).all()):
        raise ValueError(
            f"{operator!r} states no Gaussian noise: give noise=lavps.GaussianNoise(std), with std in the "
            "units of the measurement"
        )
    return GaussianNoise(std)


def _warn_of_range(y: Tensor, operator: Operator, noise: NoiseModel) -> None:
    if not isinstance(operator, PhysicsOperator) or not isinstance(noise, GaussianNoise):
        return
    if operator.looks_unit_ranged(y, float(torch.as_tensor(noise.std).max())):
        warnings.warn(
            "images live in [-1, 1], but nothing in y is darker than mid-grey: if it was measured on images "
            "in [0, 1], say so with lavps.operators.Ranged(physics, 0, 1) instead of physics; if not, with "
            "lavps.operators.as_operator(physics)",
            PixelRangeWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Unconditional:
    """No measurement: what an unconditional sampler is asked for.

    Args:
        image_shape: shape (C, *spatial) of the images sought.
        batch: number of items.
        dtype: of the images.
        device: of the images.
    """

    image_shape: tuple[int, ...]
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def like(self) -> Tensor:
        """An empty tensor with the device and dtype of the images sought."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def __len__(self) -> int:
        return self.batch

    def repeat(self, times: int) -> Unconditional:
        """Every item ``times`` in a row."""
        return replace(self, batch=self.batch * times)

    def select(self, rows: Tensor) -> Unconditional:
        """As many items as rows."""
        return replace(self, batch=len(rows))


def exact_posterior(prior: GaussianMixturePrior, problem: InverseProblem) -> list[GaussianMixturePrior]:
    """The exact posterior of every item of a linear problem with Gaussian noise under a mixture prior."""
    if not problem.operator.linear or not isinstance(problem.noise, GaussianNoise):
        raise TypeError("the exact posterior needs a linear operator and Gaussian noise")
    posteriors = []
    for item in range(len(problem)):
        one = problem[item]
        assert isinstance(one.noise, GaussianNoise)
        matrix = one.operator.matrix(one.image_shape)
        observed = one.operator.observed(one.y)
        y, std = one.y[0].flatten().cpu(), float(one.noise.std)
        if observed is not None:
            kept = observed.expand_as(one.y)[0].flatten().bool().cpu()
            matrix, y = matrix[kept], y[kept]
        if y.is_complex():  # two real measurements, with half of the variance each
            matrix, y = torch.cat([matrix.real, matrix.imag]), torch.cat([y.real, y.imag])
            std *= math.sqrt(0.5)
        posteriors.append(prior.condition(matrix, y, std))
    return posteriors
