r"""MGDM and LAVPS: one Gibbs loop, two ways to start its inner problem (the paper's Algorithm 2).

At time :math:`t_k` with a midpoint :math:`s < t_k`, and :math:`(x_0, x_{t_{k+1}})` from the step before:

1. :math:`x_t \sim q(x_t | x_0, x_{t_{k+1}})`, the bridge;
2. R times: :math:`x_s \sim q \approx l(y | A, D(x_s, s))\, q(x_s | x_0, x_t)`, the inner variational
   problem; :math:`x_0 = DDIM(x_s, s, M)`; :math:`x_t \sim q(x_t | x_s)`, re-noising.

MGDM starts the inner problem at the bridge; LAVPS where its inference model says, safeguarded.

Biased: the likelihood at s is that of the denoised :math:`x_s`, q is a diagonal Gaussian, and the
grid is finite. The oracle benchmark measures by how much.

References:
    - Janati et al., A Mixture-Based Framework for Guiding Diffusion Models, 2025 (MGDM).
    - Zheng et al., Fast and Robust Likelihood-Guided Diffusion Posterior Sampling with Amortized Variational
      Inference, 2026 (LAVPS).
"""

from __future__ import annotations

__all__ = ["LAVPS", "MGDM"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from ..initializers import (
    Initializer,
    LikelihoodStep,
    Remembered,
    WarmStartModel,
    ZeroShot,
    amortized,
    require_fit,
)
from ..minimizers import Adam, Minimizer
from ..priors import Prior
from ..random import Purpose
from ..schedule import as_time, time_grid
from ..transitions import bridge, forward
from ..variational import Context
from .base import Progress, Run, Sampler
from .ddim import ddim_chain
from .inner import draw_midpoint
from .midpoints import Midpoint, PreviousMidpoint


def in_window(t: float, r: float) -> bool:
    """Whether t lies in the window t <= 1 - r, the last steps of a run."""
    return t <= 1.0 - r + 1e-9


@dataclass(frozen=True)
class MGDM(Sampler):
    """Mixture-guided diffusion: zero-shot posterior sampling with a Gaussian variational midpoint.

    Args:
        prior: the denoiser.
        num_steps: K intervals of the time grid; the loop visits k = K-1, ..., 2.
        grid_power: t_k = (k / K)^power; above 1 the steps crowd towards t = 0.
        gradient_steps_start: G_start, gradient steps of the inner problem outside the window.
        gradient_steps_end: G_end, gradient steps inside the window; default G_start.
        r_switch: the window is t <= 1 - r_switch; 0.9 is the paper's last 10 %, 0 every step.
        repetitions: R Gibbs repetitions a step.
        denoising_steps: M denoiser calls from x_s to x_0.
        eta: noise of these DDIM steps; 1 is ancestral.
        renoise: "forward" is q(x_t | x_s), the paper's text; "bridge" is q(x_t | x_s, x_{t_{k+1}}), what both
            authors' codes do.
        midpoint: the rule for s.
        minimizer: how the inner problem descends.
    """

    prior: Prior
    _: KW_ONLY
    num_steps: int = 100
    grid_power: float = 1.0
    gradient_steps_start: int = 3
    gradient_steps_end: int | None = None
    r_switch: float = 0.0
    repetitions: int = 1
    denoising_steps: int = 1
    eta: float = 1.0
    renoise: Literal["forward", "bridge"] = "forward"
    midpoint: Midpoint = PreviousMidpoint()
    minimizer: Minimizer = Adam()

    def __post_init__(self) -> None:
        if self.num_steps < 3:
            raise ValueError(
                f"the loop visits k = K-1, ..., 2: num_steps must be at least 3, got {self.num_steps}"
            )
        if min(self.gradient_steps_start, self.gradient_steps_end or 0) < 0:
            raise ValueError("numbers of gradient steps must not be negative")
        if self.repetitions < 1 or self.denoising_steps < 1:
            raise ValueError("repetitions and denoising_steps must be at least 1")
        if self.renoise not in ("forward", "bridge"):
            raise ValueError(f"renoise must be 'forward' or 'bridge', got {self.renoise!r}")
        if not 0 <= self.r_switch <= 1:
            raise ValueError(f"r_switch must lie in [0, 1], got {self.r_switch}")

    def initializer(self, t: float, k: int, verdict: Tensor | None) -> Initializer:
        """How the inner problem of a step starts.

        Args:
            t: its time.
            k: its place in the grid.
            verdict: (B,) what the safeguard said last; None as long as it was not asked.
        """
        return ZeroShot()

    @property
    def total_steps(self) -> int:
        """The loop's K - 2 steps."""
        return self.num_steps - 2

    def in_window(self, t: float) -> bool:
        """Whether t lies in the window t <= 1 - r_switch."""
        return in_window(t, self.r_switch)

    def gradient_steps(self, t: float) -> int:
        """G at time t."""
        if self.gradient_steps_end is not None and self.in_window(t):
            return self.gradient_steps_end
        return self.gradient_steps_start

    def steps(self, run: Run) -> Iterator[Progress]:
        """Algorithm 2."""
        grid, schedule = time_grid(self.num_steps, self.grid_power), run.prior.schedule
        x_t = run.initial()
        x_0 = run.prior.denoise(x_t, grid[-1])
        verdict: Tensor | None = None
        for k in range(self.num_steps - 1, 1, -1):
            t, u, x_u = grid[k], grid[k + 1], x_t
            s = self.midpoint.draw(grid, k, partial(run.noise.uniform, Purpose.MIDPOINT, k))
            x_t = bridge(schedule, x_0, x_u, as_time(0.0), t, u).sample(run.normal(Purpose.TRANSITION, k))
            model_forwards = 0
            for r in range(self.repetitions):
                context = Context(x_0, x_t, s, t, run.measured, schedule)
                start = self.initializer(float(t), k, verdict)
                draw = draw_midpoint(run, context, start, self.minimizer, self.gradient_steps(float(t)), k, r)
                x_s, verdict = draw.x_s, verdict if draw.accepted is None else draw.accepted
                if draw.x_0 is not None and self.denoising_steps == 1:
                    x_0 = draw.x_0  # D(x_s, s), which the safeguard has already computed
                else:
                    x_0 = ddim_chain(run, x_s, s, self.denoising_steps, self.eta, k, r)
                noise = run.normal(Purpose.RENOISE, k, r)
                if self.renoise == "forward":
                    x_t = forward(schedule, x_s, s, t).sample(noise)
                else:
                    x_t = bridge(schedule, x_s, x_u, s, t, u).sample(noise)
                model_forwards += draw.model_forwards
            yield Progress(t, x_0, draw.loss, draw.accepted, model_forwards)


@dataclass(frozen=True)
class LAVPS(MGDM):
    """MGDM with an amortized start: an inference model predicts the inner problem's solution.

    Args:
        prior: the denoiser.
        model: the inference model: any callable from a :class:`~lavps.variational.Context` to a
            :class:`~lavps.variational.DiagonalGaussian`.
        safeguard: per sample, fall back to the zero-shot start wherever the prediction is worse.
        r_model: the model is asked where t <= 1 - r_model; default r_switch, the paper's one window for both.
            0 with r_switch > 0 asks it at every step and spends gradients on the last ones.
        probe_every: the safeguard judges every such step of the grid, the first it meets, and in between a
            row keeps its last verdict, so that most steps cost no second forward; 1 is the paper.
        r_step: where t <= 1 - r_step the start is a :class:`~lavps.LikelihoodStep` and no model is asked; the
            default None is the paper. Late in a run the denoiser is nearly the identity, and the linearised
            step needs neither a network nor a judge.

    The other settings are those of :class:`MGDM`.
    """

    model: WarmStartModel
    _: KW_ONLY
    safeguard: bool = True
    r_model: float | None = None
    probe_every: int = 1
    r_step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_fit(self.model, self.prior)
        for name, share in {"r_model": self.r_model, "r_step": self.r_step}.items():
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {share}")
        if self.probe_every < 1:
            raise ValueError(f"probe_every must be at least 1, got {self.probe_every}")

    def initializer(self, t: float, k: int, verdict: Tensor | None) -> Initializer:
        """The model's prediction, safeguarded or not, where the model is asked."""
        if self.r_step is not None and in_window(t, self.r_step):
            return LikelihoodStep()
        if not in_window(t, self.r_switch if self.r_model is None else self.r_model):
            return ZeroShot()
        if self.safeguard and verdict is not None and k % self.probe_every:
            return Remembered(self.model, verdict)
        return amortized(self.model, self.safeguard)
