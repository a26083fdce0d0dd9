r"""How long settings will take here: a few short timings, and arithmetic.

A run of F forwards, B backwards and P passes of the inference model takes about

.. math:: F \tau_F + B \tau_B + P \tau_P + C \tau_C + U \tau_U

seconds, with the times measured on this machine, at this size, with as many rows as will run at once. The
backward's time is that of the gradient of the log-likelihood less a forward, so it knows the operator and the
windows. The whitened gradient asks a nonlinear operator for its curvature at every one of its C inner
problems; that of a linear one is found once. U likelihood steps are products with a linear operator. Times
are means, not minima: whoever shares the machine now will share it during the run.
"""

from __future__ import annotations

__all__ = ["Pace", "parse_duration", "within_budget"]

import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch

from ..evaluation.benchmark.costs import timed
from ..initializers import LikelihoodStep, WarmStartModel
from ..noise import GaussianNoise
from ..priors import Prior
from ..problem import InverseProblem
from ..schedule import as_time
from ..variational import Context
from .presets import FrontEntry

_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_LATE, _LATER = 0.5, 0.4  # times of the calibration: passes cost the same at all of them


def parse_duration(text: str) -> float:
    """Seconds of "5s", "500ms", "2min", "1h" or "5"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise ValueError(f"a budget is a time such as 5s, 500ms or 2min, got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class Pace:
    """Seconds of one pass, for all rows that run at once.

    Attributes:
        forward: of the denoiser.
        backward: through the denoiser and the operator, beside the forward.
        model: of the inference model; 0 where there is none.
        curvature: of the likelihood, which the whitened gradient asks for; 0 where it is found once.
        step: a likelihood step; 0 where the operator is not linear, whose settings have none.
    """

    forward: float
    backward: float
    model: float = 0.0
    curvature: float = 0.0
    step: float = 0.0

    @classmethod
    def measure(
        cls, prior: Prior, problem: InverseProblem, model: WarmStartModel | None = None, patience: float = 1.0
    ) -> Pace:
        """Time the passes on a problem with as many rows as will run at once.

        Args:
            prior: as the sampler will see it, tiled if need be.
            problem: what is asked.
            model: as the sampler will see it.
            patience: seconds after which a timing is not repeated.
        """
        x, t = problem.like.new_zeros(len(problem), *problem.image_shape), as_time(_LATE)
        context = Context(x, x, as_time(_LATER), t, problem, prior.schedule)

        def gradient() -> None:
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                torch.autograd.grad(problem.log_likelihood(prior.denoise(leaf, t)).sum(), leaf)

        def warm() -> None:
            assert model is not None
            model(context)

        once = problem.operator.linear and isinstance(problem.noise, GaussianNoise)
        with torch.no_grad():
            forward = _seconds(lambda: prior.denoise(x, t), x.device, patience)
            both = _seconds(gradient, x.device, patience)
            passes = 0.0 if model is None else _seconds(warm, x.device, patience)
            bend = 0.0 if once else _seconds(lambda: problem.curvature(x), x.device, patience)
            linear = problem.operator.linear
            step = _seconds(lambda: LikelihoodStep()(context), x.device, patience) if linear else 0.0
        return cls(forward, max(both - forward, 0.0), passes, bend, step)

    def times(self, factor: float) -> Pace:
        """So many times as slow."""
        return Pace(*(factor * seconds for seconds in astuple(self)))

    def predict(self, entry: FrontEntry) -> float:
        """Seconds of a run with these settings."""
        settings = entry.settings
        inner = min(entry.backwards, settings.num_steps - 2) if settings.minimizer == "whitened" else 0
        return (
            inner * self.curvature
            + settings.likelihood_steps * self.step
            + entry.forwards * self.forward
            + entry.backwards * self.backward
            + entry.model_forwards * (self.model or self.step)  # without a model: gentle likelihood steps
        )


def _seconds(work: Callable[[], object], device: torch.device, patience: float) -> float:
    """The mean of up to seven runs; the first, which also allocates, counts only if it took long."""
    times: list[float] = []
    while len(times) < 8 and sum(times) < patience:
        times.append(timed(work, str(device))[1])
    kept = times[1:] or times
    return sum(kept) / len(kept)


def within_budget(front: Sequence[FrontEntry], seconds: Sequence[float], budget: float) -> tuple[int, bool]:
    """Which entry of a front (best last) to take, and whether it is expected to fit.

    The best whose predicted seconds fit; if none does, the cheapest.
    """
    fitting = [index for index, predicted in enumerate(seconds) if predicted <= budget]
    if fitting:
        return fitting[-1], True
    return min(range(len(front)), key=lambda index: seconds[index]), False
