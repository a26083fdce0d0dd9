r"""
Train an inference model and watch the safeguard
================================================

MGDM solves a small optimisation problem at each of its steps, by gradients through the denoiser. LAVPS asks an *inference
model* where that problem will end and starts there: a *warm start*. On measurements the model was trained for, no gradient
step may be needed. On others the prediction may be bad, and a *safeguard* compares it, sample by sample, with MGDM's own
start and keeps the better one.

We train a model for one operator on a mixture prior, where the exact posterior is known, and then give it an operator it
has never seen.
"""

import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import lavps
from lavps.amortization import ContextSource, InferenceModel, InferenceTask
from lavps.amortization.trainer import TrainerConfig, train
from lavps.evaluation import oracle_mixture, oracle_problem, score
from lavps.networks import MLPConfig, Palette, build_seeded
from lavps.operators import FixedOperator

# %%
# The problems
# ------------
# Images of 8 x 8 pixels from a mixture of four Gaussians. ``seen`` averages 4 x 4 blocks, which leaves 4 numbers of 64.
# ``unseen`` shows half of the pixels.

prior = oracle_mixture()
truth, seen = oracle_problem(prior, "sr4", observations=4)
_, unseen = oracle_problem(prior, "inpainting", observations=4)

# %%
# The model
# ---------
# A small network. It is told the two images a sampler holds at a step, the two times, and what the measurement says of the
# image (``Palette``: the measurement brought back to the image by A's pseudo-inverse). It answers with a Gaussian: the
# sampler's own start plus a correction. The correction is zero before training, so an untrained model *is* MGDM's start.
#
# The loss is the very objective that MGDM minimises, averaged over contexts as the sampler will meet them.

conditioning = (Palette(),)
channels = InferenceModel.in_channels(1, conditioning)
network = MLPConfig(prior.shape, channels, out_channels=2, width=64, depth=2, second_time=True)
model = InferenceModel(build_seeded(network.to_dict(), seed=0), conditioning)
source = ContextSource(lavps.MGDM(prior), FixedOperator(seen.operator), seen.noise)
task = InferenceTask(model, source)

images = list(prior.sample(4000, seed=1))
held_out = prior.sample(500, seed=2)
before = task.validate(held_out)
settings = TrainerConfig(
    Path(tempfile.mkdtemp()), steps=600, batch_size=128, learning_rate=3e-3, weight_decay=0.0, warmup_steps=20,
    ema_decay=0.98, tensorboard=False, cpu=True,
)  # fmt: skip
train(task, images, settings)
after = task.validate(held_out)

tenths = [(i + 0.5) / 10 for i in range(10)]
figure, ax = plt.subplots(figsize=(5, 3.2))
ax.plot(tenths, before["zero_by_time"], "k--", label="MGDM's start (and the untrained model's)")
ax.plot(tenths, after["warm_by_time"], "o-", label="the trained model's")
ax.set(xlabel="time t", ylabel="objective at the start")
ax.set_yscale("symlog", linthresh=10)
ax.legend(loc="lower right", fontsize=8)
figure.tight_layout()
print(f"the model's start is the better one in {after['acceptance']:.0%} of the contexts")

# %%
# What it buys
# ------------
# Distance to the exact posterior (sliced Wasserstein, lower is better), and passes of the denoiser per sample.

exact = lavps.exact_posterior(prior, seen)


def report(name, sampler, problem, exact):
    """Sample, compare with the exact posterior, print; return the trace."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = sampler.sample(problem, num_samples=64)
    distance, trace = score(posterior.samples, problem, exact).sw2, posterior.trace
    kept = "" if trace.acceptance != trace.acceptance else f", kept {trace.acceptance:.0%}"
    print(
        f"{name:34} distance {distance:.3f}, {trace.forwards:3.0f} forwards, {trace.backwards:3.0f} backwards{kept}"
    )
    for warning in caught:
        print(f"  warned: {str(warning.message)[:88]}...")
    return trace


report("MGDM, 1 gradient step", lavps.MGDM(prior, gradient_steps_start=1), seen, exact)
report("MGDM, 3 gradient steps", lavps.MGDM(prior, gradient_steps_start=3), seen, exact)
warm = lavps.LAVPS(prior, model, gradient_steps_start=0)
seen_trace = report("LAVPS, no gradient step", warm, seen, exact)
bold = lavps.LAVPS(prior, model, gradient_steps_start=0, safeguard=False)
_ = report("LAVPS, the same, no safeguard", bold, seen, exact)

# %%
# The same model on an operator it has never seen
# -----------------------------------------------
# The safeguard computes the objective at both starts *with the same noise* and keeps the warm start only where it is no
# worse. Where many are refused, the run says so.

exact = lavps.exact_posterior(prior, unseen)
report("MGDM, 3 gradient steps", lavps.MGDM(prior, gradient_steps_start=3), unseen, exact)
guided = lavps.LAVPS(prior, model, gradient_steps_start=3)
unseen_trace = report("LAVPS, 3 gradient steps", guided, unseen, exact)

figure, ax = plt.subplots(figsize=(5, 3.2))
ax.plot(seen_trace.times, seen_trace.acceptance_by_step, label="operator of the training")
ax.plot(unseen_trace.times, unseen_trace.acceptance_by_step, label="operator never seen")
ax.set(
    xlabel="time t (the walk goes from right to left)", ylabel="share of warm starts kept", ylim=(-0.3, 1.03)
)
ax.legend(loc="lower right", fontsize=8)
figure.tight_layout()

# %%
# Why the same noise?
# -------------------
# The objective is an expectation over noise z, computed with a single draw of it. Two starts compared with *different* draws
# differ by luck; with the same draw the luck nearly cancels. For one context of the seen operator, a thousand draws:

from lavps.variational import DiagonalGaussian, Objective

context = source.draw(held_out[:1], [5])
many = context.select(torch.zeros(1000, dtype=torch.long))
bridge = context.bridge
near = DiagonalGaussian(bridge.mean + 0.1 * bridge.log_std.exp(), bridge.log_std)


def losses(q, seed):
    """The objective at q for a thousand draws of the noise."""
    noise = torch.randn(1000, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    candidate = DiagonalGaussian(q.mean.expand(1000, -1, -1, -1), q.log_std.expand(1000, -1, -1, -1))
    with torch.no_grad():
        return Objective(prior, many, lambda index: noise).evaluate(candidate).loss


same, other = losses(near, 0) - losses(bridge, 0), losses(near, 1) - losses(bridge, 0)
figure, ax = plt.subplots(figsize=(5, 3.2))
bins = torch.linspace(float(other.quantile(0.02)), float(other.quantile(0.98)), 60).tolist()
ax.hist(other, bins, alpha=0.6, label=f"noise of its own: spread {other.std():.1f}")
ax.hist(same, bins, alpha=0.6, label=f"the same noise: spread {same.std():.1f}")
ax.set(xlabel="objective of one start minus that of the other", yticks=[])
ax.legend(fontsize=8)
figure.tight_layout()

# %%
# For images and operators of your own this whole page is one command, ``lavps train inference``, and
# ``lavps.load_inference_model``.
