r"""
Train an inference model and watch the safeguard
================================================

MGDM solves a small optimization problem at each of its steps, by gradients through the denoiser. In LAVPS an *inference
model* predicts the solution, and the optimization starts from this prediction: a *warm start*. For operators like those of
the training set, no gradient step may be needed. For other operators the prediction may be poor. A *safeguard* therefore
compares the prediction with MGDM's own initialization, sample by sample, and keeps the better one.

We train a model for one operator under a mixture prior, where the exact posterior is known. Then we apply it to an operator
that was not in the training set.
"""

import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import lavps
from lavps.amortization import ContextSource, InferenceModel, InferenceTask, Palette
from lavps.evaluation import oracle_mixture, oracle_problem, score
from lavps.guidance import Amortized, Gradient
from lavps.nn import MLPConfig, build_seeded
from lavps.operators import FixedOperator
from lavps.training.trainer import TrainerConfig, train

# %%
# The problems
# ------------
# The images have 8 x 8 pixels and come from a mixture of four Gaussians. ``seen`` averages 4 x 4 blocks, which leaves 4
# numbers out of 64. ``unseen`` observes half of the pixels.

prior = oracle_mixture()
truth, seen = oracle_problem(prior, "sr4", observations=4)
_, unseen = oracle_problem(prior, "inpainting", observations=4)

# %%
# The model
# ---------
# The model is a small network. Its inputs are the two images of a sampler step, the two times, and the measurement mapped
# back to image space by the pseudo-inverse of A (``Palette``). Its output is a Gaussian: the bridge plus a correction. The
# correction is zero before training, so an untrained model returns MGDM's own initialization.
#
# The loss is the objective that MGDM minimizes, averaged over contexts of the sampler in which the model will be used.

conditioning = (Palette(),)
channels = InferenceModel.in_channels(1, conditioning)
network = MLPConfig(
    prior.shape, channels, out_channels=2, width=64, depth=2, second_time=True
)
model = InferenceModel(build_seeded(network.to_dict(), seed=0), conditioning)
safeguarded = lavps.MGDM(prior, guidance=Amortized(model, steps=0))
source = ContextSource(safeguarded, FixedOperator(seen.operator), seen.noise)
task = InferenceTask(source)

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
ax.plot(tenths, before["zero_by_time"], "k--", label="bridge (and untrained model)")
ax.plot(tenths, after["warm_by_time"], "o-", label="trained model")
ax.set(xlabel="time t", ylabel="objective at initialization")
ax.set_yscale("symlog", linthresh=10)
ax.legend(loc="lower right", fontsize=8)
figure.tight_layout()
print(
    f"the prediction has the lower objective in {after['acceptance']:.0%} of the contexts"
)

# %%
# Quality and cost
# ----------------
# We compare the distance to the exact posterior (sliced Wasserstein, lower is better) and the denoiser's forward and backward
# passes per sample.

exact = lavps.exact_posterior(prior, seen)


def report(name, sampler, problem, exact):
    """Sample, compare with the exact posterior, print; return the trace."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = sampler.sample(problem, num_samples=64)
    distance, trace = score(posterior.samples, problem, exact).sw2, posterior.trace
    accepted = (
        ""
        if trace.acceptance != trace.acceptance
        else f", accepted {trace.acceptance:.0%}"
    )
    print(
        f"{name:34} distance {distance:.3f}, {trace.forwards:3.0f} forwards, {trace.backwards:3.0f} backwards{accepted}"
    )
    for warning in caught:
        print(f"  warned: {str(warning.message)[:88]}...")
    return trace


report(
    "MGDM, 1 gradient step",
    lavps.MGDM(prior, guidance=Gradient(steps=1)),
    seen,
    exact,
)
report(
    "MGDM, 3 gradient steps",
    lavps.MGDM(prior, guidance=Gradient(steps=3)),
    seen,
    exact,
)
seen_trace = report("LAVPS, no gradient step", safeguarded, seen, exact)
unchecked = lavps.MGDM(
    prior, guidance=Amortized(model, steps=0, safeguard_every=None)
)
_ = report("LAVPS, the same, no safeguard", unchecked, seen, exact)

# %%
# The same model on an unseen operator
# ------------------------------------
# The safeguard evaluates the objective at the prediction and at the bridge *with the same noise*. It accepts the prediction
# only if its objective is not higher. If many predictions are rejected, the run issues a warning.

exact = lavps.exact_posterior(prior, unseen)
report(
    "MGDM, 3 gradient steps",
    lavps.MGDM(prior, guidance=Gradient(steps=3)),
    unseen,
    exact,
)
guided = lavps.MGDM(prior, guidance=Amortized(model, steps=3))
unseen_trace = report("LAVPS, 3 gradient steps", guided, unseen, exact)

figure, ax = plt.subplots(figsize=(5, 3.2))
ax.plot(seen_trace.times, seen_trace.acceptance_by_step, label="training operator")
ax.plot(
    unseen_trace.times, unseen_trace.acceptance_by_step, label="unseen operator"
)
ax.set(
    xlabel="time t (the run goes from right to left)",
    ylabel="acceptance rate",
    ylim=(-0.3, 1.03),
)
ax.legend(loc="lower right", fontsize=8)
figure.tight_layout()

# %%
# Common random numbers
# ---------------------
# The objective is an expectation over noise z, estimated with a single draw. If two candidates are compared with *different*
# draws, most of the difference is noise. With the same draw the noise nearly cancels. The histogram shows a thousand draws for
# one context of the seen operator.

from lavps.variational import DiagonalGaussian, Objective

context = source.draw(held_out[:1], [5])
many = context.select(torch.zeros(1000, dtype=torch.long))
bridge = context.bridge
near = DiagonalGaussian(bridge.mean + 0.1 * bridge.log_std.exp(), bridge.log_std)


def losses(q, seed):
    """Evaluate the objective at q for a thousand draws of the noise."""
    noise = torch.randn(
        1000, 1, 8, 8, generator=torch.Generator().manual_seed(seed)
    )
    candidate = DiagonalGaussian(
        q.mean.expand(1000, -1, -1, -1), q.log_std.expand(1000, -1, -1, -1)
    )
    with torch.no_grad():
        return Objective(prior, many, lambda index: noise).evaluate(candidate).loss


same, other = (
    losses(near, 0) - losses(bridge, 0),
    losses(near, 1) - losses(bridge, 0),
)
figure, ax = plt.subplots(figsize=(5, 3.2))
bins = torch.linspace(
    float(other.quantile(0.02)), float(other.quantile(0.98)), 60
).tolist()
ax.hist(
    other,
    bins,
    alpha=0.6,
    label=f"independent noise: standard deviation {other.std():.1f}",
)
ax.hist(
    same, bins, alpha=0.6, label=f"same noise: standard deviation {same.std():.1f}"
)
ax.set(xlabel="difference of the two objectives", yticks=[])
ax.legend(fontsize=8)
figure.tight_layout()

# %%
# For your own images and operators, ``lavps train inference`` trains the model and ``lavps.load_inference_model`` loads it.
