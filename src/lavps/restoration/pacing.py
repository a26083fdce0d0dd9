r"""Predicted run time of settings on this machine, from a few short timings.

A run of F denoiser evaluations, B backward passes and P inference-model evaluations takes about

.. math:: F \tau_F + B \tau_B + P \tau_P + C \tau_C + U \tau_U + V \tau_V

seconds, with times measured on this machine, at this size and batch size. The backward time is that of the
gradient of the log-likelihood minus a forward, so it includes operator and windows. The whitened gradient
evaluates the curvature of a nonlinear operator in each of its C inner problems; that of a linear one is
computed once. U likelihood steps are products with a linear operator; V data steps are those of
:mod:`lavps.data_step`. Times are means, not minima, since other load on the machine is likely to last.
"""

from __future__ import annotations

__all__ = ["PassTimes", "seconds_of", "within_budget"]

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch

from ..data_step import Stationary, data_step
from ..evaluation.timing import timed
from ..guidance import Linearized, MidpointModel
from ..noise import GaussianNoise
from ..priors import Prior
from ..problem import InverseProblem
from ..samplers import FewStepModel
from ..schedule import as_time
from ..variational import Context
from .presets import FrontEntry

_LATE, _LATER = 0.5, 0.4  # times t and s of the calibration; the cost does not depend on them


@dataclass(frozen=True)
class PassTimes:
    """Seconds per pass, for all rows of a batch.

    Attributes:
        forward: Denoiser evaluation.
        backward: Backward pass through denoiser and operator, without the forward.
        model: Inference-model evaluation; 0 if there is none.
        curvature: Curvature of the likelihood, for the whitened gradient; 0 if it is computed once.
        step: Likelihood step; 0 for nonlinear operators, whose settings have none.
        data_step: Data step with the covariance of images.
    """

    forward: float
    backward: float
    model: float = 0.0
    curvature: float = 0.0
    step: float = 0.0
    data_step: float = 0.0

    @classmethod
    def measure(
        cls,
        prior: Prior,
        problem: InverseProblem,
        model: MidpointModel | FewStepModel | None = None,
        patience: float = 1.0,
    ) -> PassTimes:
        """Time the passes on a problem with as many rows as a batch of the run.

        Args:
            prior: Prior of the sampler, tiled if need be.
            problem: Inverse problem.
            model: Model of the sampler; a few-step model takes the time of the prior.
            patience: Seconds after which a timing is not repeated.
        """
        x, t = problem.like.new_zeros(len(problem), *problem.image_shape), as_time(_LATE)
        context = Context(x, x, as_time(_LATER), t, problem, prior.schedule)

        def gradient() -> None:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                torch.autograd.grad(problem.log_likelihood(prior.denoise(leaf, t)).sum(), leaf)

        linear = problem.operator.linear
        once = linear and isinstance(problem.noise, GaussianNoise)
        with torch.no_grad():
            forward = seconds_of(lambda: prior.denoise(x, t), x.device, patience)
            both = seconds_of(gradient, x.device, patience)
            passes = 0.0
            if model is not None and not isinstance(model, FewStepModel):
                passes = seconds_of(lambda: model(context), x.device, patience)
            bend = 0.0 if once else seconds_of(lambda: problem.curvature(x), x.device, patience)
            step = seconds_of(lambda: Linearized()(context), x.device, patience) if linear else 0.0
            data = data_step_seconds(prior, problem, patience)
        return cls(forward, max(both - forward, 0.0), passes, bend, step, data)

    def times(self, factor: float) -> PassTimes:
        """Return all times multiplied by a factor."""
        return PassTimes(*(factor * seconds for seconds in astuple(self)))

    def predict(self, entry: FrontEntry) -> float:
        """Return the predicted seconds of a run with these settings."""
        counts = entry.settings.counts
        return (
            counts.curvatures * self.curvature
            + counts.linearized_steps * self.step
            + counts.data_steps * self.data_step
            + entry.forwards * self.forward
            + entry.backwards * self.backward
            + entry.model_forwards * self.model
        )


@torch.no_grad()
def data_step_seconds(prior: Prior, problem: InverseProblem, patience: float) -> float:
    """Return the seconds of a data step of all rows of a problem."""
    x = problem.like.new_zeros(len(problem), *problem.image_shape)
    level = prior.schedule.noise_level(as_time(_LATE))
    return seconds_of(lambda: data_step(problem, x, Stationary(), level), x.device, patience)


def seconds_of(work: Callable[[], object], device: torch.device, patience: float) -> float:
    """Return the mean of up to seven runs; the first, which also allocates, counts only if it took long."""
    times: list[float] = []
    while len(times) < 8 and sum(times) < patience:
        times.append(timed(work, str(device))[1])
    kept = times[1:] or times
    return sum(kept) / len(kept)


def within_budget(front: Sequence[FrontEntry], seconds: Sequence[float], budget: float) -> tuple[int, bool]:
    """Return the index of the best entry of a front (best last) within the budget, else of the cheapest.

    The second value is whether the entry is expected to fit.
    """
    fitting = [index for index, predicted in enumerate(seconds) if predicted <= budget]
    if fitting:
        return fitting[-1], True
    return min(range(len(front)), key=lambda index: seconds[index]), False
