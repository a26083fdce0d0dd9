r"""Few-step sampling with a denoiser that was fine-tuned through the sampler.

A :class:`FewStepModel` is the prior's network, trained further such that the samples of
:class:`~lavps.TunedPIR` with K evaluations have a good score (:mod:`lavps.training.few_step`). It has no
input beyond x_t and t: the measurement enters by the data steps alone, so one model serves every linear
operator. Without training it is the prior, and the sampler is TunedPIR, whose last data step leaves
unobserved details to the network (``full_draw`` is off).

**Safeguard.** The residual :math:`x_t - \alpha_t x_0` of a prediction must be noise. Its power at low
frequencies (:func:`~lavps.data_step.residuals.residual_power`) is compared with twice its 99 % quantile in
training. A sample with one prediction above it is rejected and drawn again, with the prior and the schedule
for any task. An accepted one costs no evaluation.
Nonlinear operators and other noise than Gaussian are left to the prior: trained through data steps that
linearize them, the network gets worse there.
"""

from __future__ import annotations

__all__ = ["FewStep", "FewStepModel", "JudgedModel"]

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace

import torch
from torch import Tensor

from ..data_step.residuals import residual_power
from ..priors import CountingPrior, Prior
from ..priors.protocol import WrappedPrior
from .base import Progress, Run, Sampler
from .serialization import Unbound
from .tuned import TunedPIR


@dataclass(frozen=True)
class FewStepModel(WrappedPrior):
    """A denoiser fine-tuned for K evaluations of a sampler.

    Args:
        prior: Fine-tuned denoiser.
        limits: Largest accepted powers of the residual, one per evaluation; infinite ones accept everything.
        sampler: Sampler of the training; default: the schedule for any task, ``full_draw`` off.
        check_prior: Function that raises an error for a prior other than that of the training.
    """

    prior: Prior
    limits: tuple[float, ...]
    sampler: TunedPIR | None = None
    check_prior: Callable[[Prior], None] | None = field(default=None, compare=False)

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the prediction of x_0 (B, C, *spatial)."""
        return self.prior.denoise(x_t, t)

    def sampler_for(self, prior: Prior) -> TunedPIR:
        """Return the sampler of the training, with a prior."""
        if self.sampler is not None:
            return replace(self.sampler, prior=prior)
        return replace(TunedPIR.universal(prior, len(self.limits)), full_draw=False)


@dataclass(frozen=True)
class FewStep(Sampler):
    """TunedPIR with a denoiser that was fine-tuned through it, safeguarded; biased as TunedPIR is.

    Reference: this library. Evaluations of the model count as denoiser evaluations; a rejected sample takes
    as many of the prior.

    Args:
        prior: Denoiser D.
        model: Few-step model of this prior.
        evaluations: Number K of evaluations, that of the model's training.
        safeguard: Whether samples with a residual that is not noise are replaced by the prior's.

    Example:
        >>> import lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> model = FewStepModel(prior, limits=(9.0, 9.0, 9.0, 9.0))  # not trained
        >>> FewStep(prior, model).sample(problem).trace.forwards
        4.0
    """

    prior: Prior
    model: FewStepModel
    _: KW_ONLY
    evaluations: int = 4
    safeguard: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.model, Unbound):
            return
        if len(self.model.limits) != self.evaluations:
            count = len(self.model.limits)
            raise ValueError(f"the model was trained for {count} evaluations, not for {self.evaluations}")
        if self.model.check_prior is not None and not isinstance(self.prior, Unbound):
            self.model.check_prior(self.prior)

    @property
    def num_steps(self) -> int:
        """Number K of evaluations."""
        return self.evaluations

    @property
    def total_steps(self) -> int:
        """One per evaluation."""
        return self.evaluations

    def steps(self, run: Run) -> Iterator[Progress]:
        """Those of TunedPIR, with the model's predictions for linear operators."""
        plain = TunedPIR.universal(self.prior, self.evaluations)
        if not run.measured.is_linear_gaussian:
            none = torch.zeros(len(run.measured), dtype=torch.bool)
            for progress in plain.steps(run):
                yield replace(progress, accepted=none)
            return
        judged = JudgedModel(run, self.model)
        for progress in self.model.sampler_for(self.prior).steps(replace(run, prior=judged)):
            if not self.safeguard:
                yield progress
                continue
            x_0, state = progress.x_0, {**(progress.state or {}), "accepted": judged.accepted}
            rejected = (~judged.accepted).nonzero().squeeze(1)
            if len(judged.powers) + run.taken == self.evaluations and len(rejected):
                rows = run.measured.select(rejected), run.noise.select(rejected.tolist())
                *_, again = plain.steps(Run(run.prior, *rows))
                x_0 = x_0.index_copy(0, rejected.to(x_0.device), again.x_0)
            yield replace(progress, x_0=x_0, accepted=judged.accepted, state=state)


class JudgedModel(CountingPrior):
    """The model's predictions in one run, each judged by its residual.

    Args:
        run: Run whose prior is to be replaced.
        model: Few-step model.

    Attributes:
        accepted: Samples of which no prediction has been rejected, shape (B,).
        powers: Powers of the residuals of all evaluations, (B,) each.
    """

    def __init__(self, run: Run, model: FewStepModel) -> None:
        super().__init__(run.prior)
        self.run, self.model, self.powers = run, model, list[Tensor]()
        self.accepted = run.state.get("accepted", torch.ones(len(run.measured), dtype=torch.bool)).cpu()

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """Return the predictions of the model."""
        x_0 = self.model.denoise(x_t, t)
        self.run.prior.forwards += len(x_t)
        limit = self.model.limits[self.run.taken + len(self.powers)]
        self.powers.append(residual_power(x_t, x_0, self.schedule, t))
        self.accepted = self.accepted & (self.powers[-1] <= limit).cpu()  # not a number: rejected
        return x_0
