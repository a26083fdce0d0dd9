r"""Inverse problems: measurements, operator and noise (the paper's Eqs. 5-7).

.. math:: y \sim l(\cdot | A(x_0)), \qquad \pi(x_0 | y) \propto l(y | A(x_0)) \, p(x_0)
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
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from .noise import GaussianNoise, Noiseless, NoiseModel, PoissonNoise, as_noise
from .operators import AveragePool, Identity, Mask, Operator, PhysicsOperator, RescaledOperator, as_operator
from .operators.convert import check_measurement, with_batch_axis
from .operators.linalg import inner, largest_singular_value
from .operators.pixel_range import PixelRangeWarning, warn_about_range
from .priors import GaussianMixturePrior
from .random import NoiseStreams

_OF_PHYSICS = (
    "pass lavps.operators.RescaledOperator(physics, 0, 1) instead of physics; otherwise, pass "
    "lavps.operators.as_operator(physics) to silence this warning"
)


@dataclass(frozen=True, init=False)
class InverseProblem:
    """Batch of measurements y with their operator A and noise model.

    Args:
        y: Measurements (B, *measurement), real or complex, on the device of the computation. One measurement
            without a batch axis is a batch of one, if operator or ``in_shape`` fix the number of axes.
        operator: Operator A, deepinv physics, or torch function (with ``in_shape``). For a pixel range other
            than [-1, 1] wrap it in :class:`~lavps.operators.RescaledOperator`; if A is affine and the noise
            Gaussian, the problem stores the linear part and the measurement without the offset.
        noise: Noise model, or standard deviation (0 for none), in the units of the measurement; None for the
            operator's own Gaussian noise.
        in_shape: Image shape (C, *spatial); required for a plain function.
        keep_known: Whether the known pixels of a mask are those of y in every sample; default if the noise is
            :class:`~lavps.Noiseless`.

    Warns:
        PixelRangeWarning: The measurements of a physics suggest images in [0, 1].

    Example:
        >>> from lavps.operators import AveragePool
        >>> problem = InverseProblem(torch.zeros(2, 3, 16, 16), AveragePool(4), noise=0.05)
        >>> problem.image_shape, problem.chi_square(torch.zeros(2, 3, 64, 64))
        ((3, 64, 64), tensor([0., 0.]))
    """

    y: Tensor
    operator: Operator
    noise: NoiseModel
    in_shape: tuple[int, ...] | None = None
    keep_known: bool | None = None

    def __init__(
        self,
        y: Tensor,
        operator: Operator | Callable[[Tensor], Tensor],
        noise: NoiseModel | float | None = None,
        in_shape: Sequence[int] | None = None,
        keep_known: bool | None = None,
    ) -> None:
        check_measurement(y)
        given, operator = operator, as_operator(operator, in_shape, y.is_complex())
        y, noise = with_batch_axis(y, operator, len(in_shape or ())), as_noise(noise, operator)
        if isinstance(noise, GaussianNoise):
            if given is not operator and isinstance(operator, PhysicsOperator):
                warn_about_range(operator, y, float(torch.as_tensor(noise.std).max()), _OF_PHYSICS)
            if isinstance(operator, RescaledOperator):
                y, operator = operator.centred(y)
        if operator.batch not in (1, len(y)):
            raise ValueError(f"the operator has parameters for {operator.batch} items, y has {len(y)}")
        noise.check_fits(y)
        shape = operator.input_shape(tuple(y.shape[1:]))
        if in_shape is not None and tuple(in_shape) != shape:
            raise ValueError(f"in_shape {tuple(in_shape)} does not fit y: {operator!r} expects {shape}")
        if keep_known and not isinstance(operator, Mask):
            raise ValueError(f"keep_known needs a mask, which {operator!r} is not")
        observed = operator.observed(y)
        # Unobserved values of y (a painted hole, noise) are not data.
        object.__setattr__(self, "y", y if observed is None else torch.where(observed.bool(), y, 0.0))
        object.__setattr__(self, "operator", operator)
        object.__setattr__(self, "noise", noise)
        object.__setattr__(self, "in_shape", shape)
        object.__setattr__(self, "keep_known", keep_known)

    @classmethod
    def simulate(
        cls,
        x: Tensor,
        operator: Operator | Callable[[Tensor], Tensor],
        noise: NoiseModel | float | None = None,
        seed: int | Sequence[int] = 0,
        items: Sequence[int] | None = None,
    ) -> InverseProblem:
        """Simulate measurements of images x (B, C, *spatial), with noise determined by (seed, item)."""
        operator = as_operator(operator, x.shape[1:])
        noise = as_noise(noise, operator)
        with torch.no_grad():
            noise.check_fits(prediction := operator(x))
            y = noise.sample(prediction, NoiseStreams.from_seed(len(x), seed, items))
        return cls(y, operator, noise, tuple(x.shape[1:]))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Image shape (C, *spatial)."""
        assert self.in_shape is not None
        return self.in_shape

    @property
    def like(self) -> Tensor:
        """Empty real tensor with the device and dtype of the images."""
        return (self.y.real if self.y.is_complex() else self.y).new_empty(0)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> InverseProblem:
        """Return the problem of one item, as a batch of one."""
        return self.select(torch.arange(len(self))[index].reshape(1))

    def select(self, rows: Tensor) -> InverseProblem:
        """Return the problem whose row i is row ``rows[i]`` of this one."""
        operator = self.operator if self.operator.batch == 1 else self.operator.select(rows)
        y = self.y[rows.to(self.y.device)]
        return InverseProblem(y, operator, self.noise.select(rows), self.in_shape, self.keep_known)

    def repeat(self, times: int) -> InverseProblem:
        """Return the problem with each item repeated ``times`` times."""
        return self if times == 1 else self.select(torch.arange(len(self)).repeat_interleave(times))

    @property
    def is_linear_gaussian(self) -> bool:
        """Whether the operator is linear and the noise Gaussian: one linear solve finds a mode."""
        return self.operator.linear and isinstance(self.noise, GaussianNoise)

    def _observed(self, entries: Tensor) -> Tensor:
        observed = self.operator.observed(self.y)
        return entries if observed is None else entries * observed.to(entries)

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return log l(y | A(x)) per row, shape (B,), summed over the observed entries."""
        return self._observed(self.noise.log_prob(self.y, self.operator(x))).flatten(1).sum(1)

    def residual(self, prediction: Tensor) -> Tensor:
        """Return the residual of a prediction A(x), 0 for unobserved entries."""
        return self._observed(self.noise.residual(self.y, prediction))

    def likelihood_score(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        r"""Return the likelihood score :math:`J^T W (y - A(x))`, (B, C, *spatial).

        It is the gradient of the log-likelihood for Gaussian noise. For other noise the residuals' precision
        W is treated as constant. Standard normal ``noise`` of y's shape perturbs y, scaled to its noise.
        """
        prediction = self.operator(x)
        return self._back(x, self._precision(prediction) * self._perturbed(prediction, noise))

    def half_squared_misfit(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return half the squared residual in units of the noise, per row (B,); y perturbed as above."""
        prediction = self.operator(x)
        return 0.5 * inner(self._precision(prediction) * (r := self._perturbed(prediction, noise)), r)

    def _precision(self, prediction: Tensor) -> Tensor:
        """Return W; a complex entry is two real ones with half the variance each."""
        return self.noise.precision(prediction) * (2.0 if prediction.is_complex() else 1.0)

    def _perturbed(self, prediction: Tensor, noise: Tensor | None) -> Tensor:
        """Return the residual, with standard normal noise scaled to the measurement's added to y."""
        residual = self.residual(prediction)
        scale = self.noise.precision(prediction).rsqrt()
        return residual if noise is None else residual + self._observed(noise * scale)

    def gauss_newton_product(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        r"""Return the Gauss-Newton product :math:`u \mapsto J^T W J u`, J the Jacobian of A at x."""
        weight = self._precision(self.operator(x))
        return lambda u: self._back(x, weight * self._observed(self.operator.jvp(x, u)))

    def _back(self, x: Tensor, z: Tensor) -> Tensor:
        """Return J^T z at x, by the adjoint if A is linear, which needs no graph."""
        if self.operator.linear and not z.is_complex():
            return self.operator.adjoint(z)
        return self.operator.vjp(x, z)

    def chi_square(self, x: Tensor) -> Tensor:
        """Return the mean squared misfit relative to its expected value (B,), about 1 for the true x."""
        prediction = self.operator(x)
        squares = self.noise.precision(prediction) * self.residual(prediction).abs().square()
        count = self._observed(torch.ones_like(squares)).flatten(1).sum(1)
        return self._observed(squares).flatten(1).sum(1) / count.clamp(min=1)

    def project(self, x: Tensor) -> Tensor:
        """Return the image nearest to x that has A(x) = y, the last operation of every sampler.

        Masks: if ``keep_known``. Block means and the identity: if the noise is :class:`~lavps.Noiseless`.
        Otherwise x is returned.
        """
        noiseless = isinstance(self.noise, Noiseless)
        if isinstance(self.operator, Mask):
            kept = noiseless if self.keep_known is None else self.keep_known
            return torch.where(self.operator.observed(self.y).bool(), self.y.to(x), x) if kept else x
        if noiseless and isinstance(self.operator, AveragePool | Identity):
            return x + self.operator.pseudo_inverse(self.y - self.operator(x))
        return x

    def curvature(self, x: Tensor, iterations: int = 30) -> Tensor:
        r"""Return the largest eigenvalue of :math:`J^T W J`, shape (B,), by power iteration.

        J is the operator's Jacobian and W the noise's curvature in its prediction. The result is cached for
        a linear operator with Gaussian noise, for which it does not depend on x.
        """
        gaussian = isinstance(self.noise, GaussianNoise)
        weight = self.noise.curvature(self.y, self.y if gaussian else self.operator(x)).to(x)

        def largest(x: Tensor) -> Tensor:
            if gaussian and weight.numel() in (1, *weight.shape[:1]):  # one number per item
                return self.operator.norm(x, iterations).square() * weight.reshape(-1)
            jvp, vjp = partial(self.operator.jvp, x), partial(self.operator.vjp, x)
            return largest_singular_value(jvp, vjp, x, iterations, self._observed(weight)).square()

        if not self.is_linear_gaussian:
            return largest(x)
        return self.cached(("curvature", iterations), lambda: largest(torch.zeros_like(x)))

    def cached(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the cached value of ``key``, computed on first use; the cache lives with the problem."""
        cache: dict[Hashable, Tensor] = self.__dict__.setdefault("_cached", {})
        if key not in cache:
            with torch.inference_mode(False), torch.no_grad():
                cache[key] = compute()
        return cache[key]

    def to(self, *args: torch.device | str | torch.dtype) -> InverseProblem:
        """Return the problem on another device or in another real dtype."""
        y = self.y
        for target in args:
            # A complex measurement stays complex: float32 means complex64.
            is_dtype = isinstance(target, torch.dtype)
            y = y.to(target.to_complex() if is_dtype and y.is_complex() else target)  # type: ignore[union-attr]
        return replace(self, y=y, operator=self.operator.to(*args), noise=self.noise.to(*args))


@dataclass(frozen=True)
class Unconditional:
    """Problem without measurements, for unconditional samplers.

    Args:
        image_shape: Image shape (C, *spatial).
        batch: Number of items.
        dtype: Data type of the images.
        device: Device of the images.
    """

    image_shape: tuple[int, ...]
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    @property
    def like(self) -> Tensor:
        """Empty tensor with the device and dtype of the images."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def __len__(self) -> int:
        return self.batch

    def repeat(self, times: int) -> Unconditional:
        """Return the problem with each item repeated ``times`` times."""
        return replace(self, batch=self.batch * times)

    def select(self, rows: Tensor) -> Unconditional:
        """Return a problem with as many items as rows."""
        return replace(self, batch=len(rows))


def exact_posterior(prior: GaussianMixturePrior, problem: InverseProblem) -> list[GaussianMixturePrior]:
    """Return the exact posterior of every item of a linear problem with Gaussian noise.

    Example:
        >>> from lavps import GaussianPrior
        >>> from lavps.operators import Identity
        >>> prior = GaussianPrior(torch.zeros(1, 1, 1), torch.eye(1, dtype=torch.float64))
        >>> problem = InverseProblem(torch.ones(1, 1, 1, 1), Identity(), GaussianNoise(1.0))
        >>> exact_posterior(prior, problem)[0].mean.item()
        0.5
    """
    if not problem.operator.linear or not isinstance(problem.noise, GaussianNoise):
        raise TypeError("the exact posterior needs a linear operator and Gaussian noise")
    posteriors = []
    for item in range(len(problem)):
        one = problem[item]
        assert isinstance(one.noise, GaussianNoise)
        matrix = one.operator.matrix(one.image_shape)
        observed = one.operator.observed(one.y)
        y, std = one.y[0].flatten().cpu(), torch.as_tensor(one.noise.std, dtype=torch.float64).cpu()
        std = std.expand_as(one.y[0] if std.ndim < 2 else one.y).flatten()
        if observed is not None:
            entries = observed.expand_as(one.y)[0].flatten().bool().cpu()
            matrix, y, std = matrix[entries], y[entries], std[entries]
        if y.is_complex():  # two real measurements with half the variance each
            matrix, y = torch.cat([matrix.real, matrix.imag]), torch.cat([y.real, y.imag])
            std = math.sqrt(0.5) * std.repeat(2)
        posteriors.append(prior.condition(matrix, y, std))
    return posteriors
