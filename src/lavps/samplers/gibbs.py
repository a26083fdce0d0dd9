r"""MGDM and LAVPS: one Gibbs loop, two kinds of guidance (the paper's Algorithm 2).

At time :math:`t_k` with a midpoint :math:`s < t_k`, and :math:`(x_0, x_{t_{k+1}})` from the step before:

1. :math:`x_t \sim q(x_t | x_0, x_{t_{k+1}})`, the bridge;
2. R times: :math:`x_s \sim q \approx l(y | A, D(x_s, s))\, q(x_s | x_0, x_t)`, the inner variational
   problem; :math:`x_0 = DDIM(x_s, s, M)`; :math:`x_t \sim q(x_t | x_s)`, re-noising.

How :math:`x_s` is drawn is the sampler's guidance (:mod:`lavps.guidance`): by gradients from the bridge in
MGDM, from an inference model's prediction in LAVPS.

Biased: the likelihood at s is that of the denoised :math:`x_s`, q is a diagonal Gaussian, and the
grid is finite. The oracle benchmark measures by how much.

References:
    - Janati et al., A Mixture-Based Framework for Guiding Diffusion Models, 2025 (MGDM).
    - Zheng et al., Fast and Robust Likelihood-Guided Diffusion Posterior Sampling with Amortized Variational
      Inference, 2026 (LAVPS).
"""

from __future__ import annotations

__all__ = ["LAVPS", "MGDM", "GibbsDraw"]

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from ..guidance import Amortized, Gradient, Guidance, Linearized, MidpointDraw, MidpointModel, switch
from ..guidance.midpoints import Midpoint, PreviousMidpoint
from ..minimizers import Adam, Minimizer, WhitenedGradient
from ..priors import Prior
from ..random import Purpose
from ..schedule import as_time, time_grid
from ..transitions import bridge, forward
from ..variational import Context
from .base import Progress, Run, Sampler
from .ddim import ddim_chain


@dataclass(frozen=True)
class GibbsDraw:
    """State after the Gibbs repetitions of a step: x_0, the re-noised x_t, and the last midpoint draw."""

    x_0: Tensor
    x_t: Tensor
    midpoint: MidpointDraw


@dataclass(frozen=True)
class MGDM(Sampler):
    """Mixture-guided diffusion: posterior sampling with a Gaussian variational midpoint.

    Reference: Janati et al., 2025. Biased: the likelihood of x_s is that of its denoised image, and q is a
    diagonal Gaussian.

    Args:
        prior: Denoiser D.
        guidance: Rule by which the midpoint x_s is drawn. The default was chosen on images
            (``recipes/defaults``); the paper's is ``Gradient()``, three steps of Adam.
        num_steps: Number K of intervals of the time grid; the loop visits k = K-1, ..., 2.
        grid_power: Exponent of t_k = (k / K)^power; above 1 the steps are denser towards t = 0.
        repetitions: Number R of Gibbs repetitions per step.
        denoising_steps: Number M of denoiser evaluations from x_s to x_0.
        eta: Noise of these DDIM steps; 1 is ancestral.
        renoise: Kernel of the re-noising: "forward" is q(x_t | x_s), the paper's text; "bridge" is
            q(x_t | x_s, x_{t_{k+1}}), which both authors' codes use.
        midpoint: Rule for s.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> pooling, noise = lavps.operators.AveragePool(2), lavps.GaussianNoise(0.1)
        >>> problem = lavps.InverseProblem(torch.zeros(1, 1, 2, 2), pooling, noise)
        >>> lavps.MGDM(prior, num_steps=10).sample(problem, num_samples=2).samples.shape
        torch.Size([1, 2, 1, 4, 4])
    """

    prior: Prior
    _: KW_ONLY
    guidance: Guidance = Gradient(1, WhitenedGradient(1.9))
    num_steps: int = 100
    grid_power: float = 1.0
    repetitions: int = 1
    denoising_steps: int = 1
    eta: float = 1.0
    renoise: Literal["forward", "bridge"] = "forward"
    midpoint: Midpoint = PreviousMidpoint()

    def __post_init__(self) -> None:
        if self.num_steps < 3:
            raise ValueError(
                f"the loop visits k = K-1, ..., 2: num_steps must be at least 3, got {self.num_steps}"
            )
        if self.repetitions < 1 or self.denoising_steps < 1:
            raise ValueError("repetitions and denoising_steps must be at least 1")
        if self.renoise not in ("forward", "bridge"):
            raise ValueError(f"renoise must be 'forward' or 'bridge', got {self.renoise!r}")
        self.guidance.check_times(self.guided_times)
        self.guidance.check_compatible(self.prior)

    @property
    def total_steps(self) -> int:
        """Number of steps of the loop, K - 2."""
        return self.num_steps - 2

    @property
    def guided_times(self) -> list[float]:
        """Times t_k of the guided steps, k = K-1, ..., 2."""
        return [float(t) for t in time_grid(self.num_steps, self.grid_power)[2:-1].flip(0)]

    @property
    def name(self) -> str:
        """LAVPS if an inference model takes part, else MGDM."""
        parts = (self.guidance.part(t) for t in self.guided_times)
        models = (part.model for part in parts if isinstance(part, Amortized))
        return "LAVPS" if any(not isinstance(model, Linearized) for model in models) else "MGDM"

    def steps(self, run: Run) -> Iterator[Progress]:
        """Algorithm 2."""
        grid, schedule = time_grid(self.num_steps, self.grid_power), run.prior.schedule
        accepted = run.state.get("accepted")
        if run.state:
            x_t, x_0 = run.state["x_t"], run.state["x_0"]
        else:
            x_t = run.initial()
            x_0 = run.prior.denoise(x_t, grid[-1])
        for k in range(self.num_steps - 1 - run.taken, 1, -1):
            t, u, x_u = grid[k], grid[k + 1], x_t
            s = self.midpoint.draw(grid, k, partial(run.noise.uniform, Purpose.MIDPOINT, k))
            x_t = bridge(schedule, x_0, x_u, as_time(0.0), t, u).sample(run.normal(Purpose.TRANSITION, k))
            context = Context(x_0, x_t, s, t, run.measured, schedule)
            drawn = self.repeat(run, context, x_u, u, k, accepted)
            x_0, x_t, midpoint = drawn.x_0, drawn.x_t, drawn.midpoint
            accepted = accepted if midpoint.accepted is None else midpoint.accepted
            state = {"x_t": x_t, "x_0": x_0} | ({} if accepted is None else {"accepted": accepted})
            yield Progress(t, x_0, midpoint.loss, midpoint.accepted, midpoint.model_forwards, state)

    def repeat(
        self, run: Run, context: Context, x_u: Tensor, u: Tensor, index: int, accepted: Tensor | None = None
    ) -> GibbsDraw:
        """Run the R Gibbs repetitions of one step.

        Args:
            run: Denoiser and noise of the run.
            context: Context of the first repetition; its times may differ between rows.
            x_u: Noisy image of the step before, shape (B, C, *spatial).
            u: Time of x_u, shape () or (B,).
            index: Index of the step, for its noise.
            accepted: Most recent safeguard decision, shape (B,); None before the first one.
        """
        schedule, s, t = context.schedule, context.s, context.t
        model_forwards = 0
        for r in range(self.repetitions):
            draw = self.guidance.draw(run.guided_step(context, index, r, accepted))
            accepted = accepted if draw.accepted is None else draw.accepted
            if draw.x_0 is not None and self.denoising_steps == 1:
                x_0 = draw.x_0  # D(x_s, s), which the safeguard has already computed
            else:
                x_0 = ddim_chain(run, draw.x_s, s, self.denoising_steps, self.eta, index, r)
            noise = run.normal(Purpose.RENOISE, index, r)
            if self.renoise == "forward":
                x_t = forward(schedule, draw.x_s, s, t).sample(noise)
            else:
                x_t = bridge(schedule, draw.x_s, x_u, s, t, u).sample(noise)
            model_forwards += draw.model_forwards
            context = replace(context, x_0=x_0, x_t=x_t)
        return GibbsDraw(x_0, x_t, replace(draw, model_forwards=model_forwards))


def LAVPS(  # noqa: N802 - the paper's name
    prior: Prior,
    model: MidpointModel,
    *,
    gradient_steps_start: int = 3,
    gradient_steps_end: int = 1,
    r_switch: float = 0.9,
    minimizer: Minimizer = Adam(),
    safeguard_every: int | None = 1,
    **options: Any,
) -> MGDM:
    """Build LAVPS with the parameters of its paper: :class:`MGDM` with guidance that switches to a model.

    Args:
        prior: Denoiser D.
        model: Inference model.
        gradient_steps_start: Number G_start of gradient steps while t > 1 - r_switch.
        gradient_steps_end: Number G_end of gradient steps from the prediction, once t <= 1 - r_switch.
        r_switch: Fraction of the time before the model is used.
        minimizer: Optimizer of both.
        safeguard_every: Number of steps between two safeguard decisions; None accepts every prediction.
        **options: Further fields of :class:`MGDM`.

    Example:
        >>> import torch, lavps
        >>> prior = lavps.GaussianPrior(torch.zeros(1, 4, 4), torch.eye(16, dtype=torch.float64))
        >>> model = lambda context: context.bridge  # any callable from a context to a Gaussian
        >>> late = Amortized(model, steps=1)
        >>> lavps.LAVPS(prior, model).guidance == switch(Gradient(steps=3), late, at=0.1)
        True
    """
    late = Amortized(model, gradient_steps_end, minimizer, safeguard_every)
    guidance = switch(Gradient(gradient_steps_start, minimizer), late, at=round(1.0 - r_switch, 9))
    return MGDM(prior, guidance=guidance, **options)
