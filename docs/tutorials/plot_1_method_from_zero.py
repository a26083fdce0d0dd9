r"""
The method from zero, in two dimensions
=======================================

A *prior* is the distribution of images, a *measurement* is an observation of one image, and the *posterior* is the distribution
of the image given the measurement. Here an image has two pixels, so that all three can be drawn. The prior is a mixture of
three Gaussians, so that all three are known exactly. We assemble the method from its parts and watch it run.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.animation import FuncAnimation

import lavps
from lavps.guidance import Gradient, Linearized
from lavps.variational import Objective

# %%
# The prior
# ---------
# Three clouds. An image has shape (channels, pixels) = (1, 2). The prior is given to samplers by its *denoiser* alone: the
# best guess :math:`D(x_t, t) = E[x_0 | x_t]` of the clean image :math:`x_0` behind a noisy one
# :math:`x_t = \alpha_t x_0 + \sigma_t z`, where z is noise and t runs from 0 (clean) to 1 (nothing but noise). For a mixture
# it is a formula.

means = torch.tensor([[[-0.6, 0.0]], [[0.45, 0.55]], [[0.35, -0.5]]])
covariances = torch.stack(
    [
        0.012 * torch.eye(2),
        torch.diag(torch.tensor([0.03, 0.008])),
        0.02 * torch.eye(2),
    ]
)
prior = lavps.GaussianMixturePrior(
    [0.4, 0.35, 0.25], means, covariances, lavps.Flow()
)

axis = torch.linspace(-1.3, 1.3, 121)
grid = torch.cartesian_prod(axis, axis).reshape(-1, 1, 2)


def contours(ax, mixture, color="k", time=0.0):
    """Lines of equal density of a mixture, at a time of its noising."""
    density = mixture.log_prob(grid, torch.tensor(time)).exp().reshape(121, 121).T
    ax.contour(axis, axis, density, levels=6, colors=color, linewidths=0.7)


figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharex=True, sharey=True)
clean = prior.sample(300)
for ax, time in zip(axes, (0.0, 0.25, 0.6), strict=True):
    noisy = (1 - time) * clean + time * torch.randn(
        clean.shape, generator=torch.Generator().manual_seed(0)
    )
    contours(ax, prior, time=time)
    ax.plot(*noisy[:, 0].T, ".", markersize=3, alpha=0.5)
    if time > 0:
        guess = prior.denoise(noisy, torch.tensor(time))
        ax.quiver(
            *noisy[:40, 0].T,
            *(guess - noisy)[:40, 0].T,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.004,
        )
    ax.set(title=f"t = {time}", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
figure.suptitle(
    "Noise is added from left to right. Arrows: from a noisy image to its denoised guess."
)
figure.tight_layout()

# %%
# The measurement
# ---------------
# A camera observes only the first pixel, with noise of standard deviation 0.1. It constrains the second pixel only through
# the prior. Two clouds explain the measurement and one does not.

camera = lavps.operators.CallableOperator(lambda x: x[..., :1], in_shape=(1, 2))
problem = lavps.InverseProblem(
    torch.tensor([[[0.4]]]), camera, lavps.GaussianNoise(0.1)
)
[posterior] = lavps.exact_posterior(prior, problem)
print(
    "weights of the three clouds, before:",
    [round(float(w), 2) for w in prior.weights],
)
print(
    "                      and after y:  ",
    [round(float(w), 2) for w in posterior.weights],
)

# %%
# The inner problem
# -----------------
# A sampler walks from noise to an image. At a time t it holds a noisy image :math:`x_t` and a guess :math:`x_0` of the
# clean one, and wants to draw the image at an earlier time s < t. Without a measurement it would draw it from the *bridge*,
# a Gaussian between the two. With a measurement it wants the bridge times the likelihood of y, which is not
# Gaussian: the likelihood :math:`\ell(y \,|\, D(x_s, s))` contains the denoiser. The method uses the nearest Gaussian q, which
# minimizes
#
# .. math:: L(q) = E_q[-\log \ell(y \,|\, D(x_s, s))] + KL(q \,\|\, \text{bridge}).
#
# Here is one such problem: the density that is wanted, the bridge, and q after a few gradient steps on L.

s, t = (
    torch.tensor(0.45, dtype=torch.float64),
    torch.tensor(0.5, dtype=torch.float64),
)
x_t = torch.tensor([[[-0.05, 0.35]]])
context = lavps.Context(prior.denoise(x_t, t), x_t, s, t, problem, prior.schedule)
objective = Objective(
    prior,
    context,
    lambda g: torch.randn(1, 1, 2, generator=torch.Generator().manual_seed(g)),
)

near = torch.linspace(-0.9, 0.9, 121)
points = torch.cartesian_prod(near, near).reshape(-1, 1, 2) + context.bridge.mean
log_likelihood = problem.repeat(len(points)).log_likelihood(
    prior.denoise(points, s)
)
log_bridge = (
    -((points - context.bridge.mean) / context.bridge.log_std.exp())
    .square()
    .sum((1, 2))
    / 2
)
wanted = (log_likelihood + log_bridge).exp().reshape(121, 121).T


def ring(ax, q, **style):
    """The circle of one standard deviation of a Gaussian."""
    angle = torch.linspace(0, 6.3, 60)
    (a, b), (u, v) = q.mean[0, 0], q.log_std.exp().expand_as(q.mean)[0, 0]
    ax.plot(a + u * angle.cos(), b + v * angle.sin(), **style)


figure, ax = plt.subplots(figsize=(5, 4.4))
ax.contourf(
    near + context.bridge.mean[0, 0, 0],
    near + context.bridge.mean[0, 0, 1],
    wanted,
    levels=12,
    cmap="Blues",
)
ring(
    ax,
    context.bridge,
    color="k",
    linestyle="--",
    label="bridge: the zero-shot start",
)
for steps, color in ((1, "C1"), (3, "C3"), (100, "C2")):
    q, _ = lavps.Adam(0.03).minimize(objective, context.bridge, steps)
    ring(ax, q, color=color, label=f"{steps} gradient step{'s' * (steps > 1)}")
ax.set(title="one inner problem (blue: what is wanted)", aspect="equal")
ax.legend(fontsize=8)
figure.tight_layout()

# %%
# Each gradient step differentiates the denoiser. If the denoiser is a network, these passes are nearly all of the cost.
#
# The loop
# --------
# MGDM repeats three moves from t = 1 down to 0. It draws :math:`x_s` from q, denoises it to :math:`x_0 = D(x_s, s)`, and adds
# noise to return to time t. How q is found is the sampler's *guidance*; here it takes three gradient steps. The animation
# shows 300 runs. The contours are the exact posterior, which the sampler does not use. Press play.

sampler = lavps.MGDM(prior, num_steps=40, guidance=Gradient(steps=3))
frames = [
    (float(step.progress.t), step.x_0[:, 0].clone())
    for step in sampler.iterate(problem, 300)
]

figure, ax = plt.subplots(figsize=(4.4, 4.4))
contours(ax, posterior)
ax.axvline(0.4, color="C3", linewidth=0.8, label="what was measured")
(dots,) = ax.plot([], [], ".", markersize=4, alpha=0.5)
ax.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
ax.legend(loc="lower left", fontsize=8)


def show(number):
    """Guesses of the clean image at one step."""
    time, x = frames[number]
    dots.set_data(*x.T)
    ax.set_title(f"guesses of the clean image at t = {time:.2f}")
    return (dots,)


animation = FuncAnimation(
    figure, show, frames=[*range(0, len(frames), 2), len(frames) - 1], interval=200
)

# %%
# Right or wrong?
# ---------------
# The posterior is known, so the distance to it can be measured: sliced Wasserstein, the typical distance between sorted
# samples seen from random directions. As many exact samples have a distance too, the floor.
#
# Other guidance finds q without gradient steps. ``Linearized`` solves the inner problem with the denoiser linearized, which
# needs neither training nor a derivative of the denoiser. In LAVPS a trained network predicts q; the fourth tutorial trains
# one.

from lavps.evaluation import sliced_wasserstein

exact = posterior.sample(2000, seed=1).float()
print(
    f"exact samples: distance {sliced_wasserstein(posterior.sample(2000, seed=2).float(), exact):.3f}"
)
samplers = {
    "MGDM, no gradient step": lavps.MGDM(prior, guidance=Gradient(steps=0)),
    "MGDM, 1 gradient step": lavps.MGDM(prior, guidance=Gradient(steps=1)),
    "MGDM, 3 gradient steps": lavps.MGDM(prior, guidance=Gradient(steps=3)),
    "linearized": lavps.MGDM(prior, guidance=Linearized()),
}
figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), sharex=True, sharey=True)
for ax, (name, sampler) in zip(axes, samplers.items(), strict=True):
    result = sampler.sample(problem, 2000)
    distance, trace = sliced_wasserstein(result.samples[0], exact), result.trace
    print(
        f"{name}: distance {distance:.3f}, {trace.forwards:.0f} forwards, {trace.backwards:.0f} backwards"
    )
    contours(ax, posterior)
    ax.plot(*result.samples[0, :600, 0].T, ".", markersize=2.5, alpha=0.5)
    ax.set(
        title=f"{name}\n{distance:.3f}",
        xlim=(-1.1, 1.1),
        ylim=(-1.1, 1.1),
        aspect="equal",
    )
    ax.title.set_fontsize(9)
figure.tight_layout()

# %%
# Without gradient steps MGDM ignores the measurement and draws from the prior. With gradient steps it finds both clouds, but
# not their exact width. Adam's steps have a fixed size, and near the end of the run, where the noise is small, they are as
# large as the clouds. The size of the linearized step follows from the problem, and it needs no backward pass at all.
#
# None of these is exact: the likelihood of a noisy image is replaced by that of its denoised guess, and q is a Gaussian.
# How much this matters, sampler by sampler, is in the benchmark `mixture_oracle`.
