r"""
Posterior samples, uncertainty, and whether to believe it
=========================================================

Several images are compatible with a measurement. A sampler returns several of them, and where they differ, the measurement does
not determine the image. This page examines a posterior of faces, and then tests whether its uncertainty is calibrated.
"""

import matplotlib.pyplot as plt
import torch

import lavps
from lavps.checkpoints import zoo_model
from lavps.evaluation import (
    calibrate,
    coverage,
    exact_samples,
    oracle_mixture,
    oracle_problem,
    ranks,
)
from lavps.guidance import Gradient
from lavps.io import read_image

# %%
# A face from 16 x 16 pixels
# --------------------------
# The face is a sample of the prior ``synthfaces64``, so the prior is correct for it. The measurement keeps one number out of
# sixteen. We draw nine samples with eight denoiser evaluations each. To run this page elsewhere, install the models:
# ``pip install ./zoo`` in the repository.

prior = lavps.load_prior("synthfaces64")
sheet = read_image(zoo_model("synthfaces64") / "samples.png").pixels
truth = sheet[:, 192:256, 192:256][None]  # (1, 3, 64, 64), pixels in [-1, 1]
problem = lavps.InverseProblem.simulate(
    truth, lavps.operators.AveragePool(4), lavps.GaussianNoise(0.05)
)

sampler = lavps.TunedPIR.universal(prior, 8)
posterior = sampler.sample(problem, num_samples=9, seed=0)


def show(panels, columns, cmaps=()):
    """Images by their titles."""
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.9 * columns, 2.1 * rows), squeeze=False
    )
    for ax in axes.flat:
        ax.axis("off")
    for ax, (title, image) in zip(axes.flat, panels.items(), strict=False):
        if image.shape[0] == 3:
            ax.imshow(image.permute(1, 2, 0).clamp(-1, 1) / 2 + 0.5)
        else:
            figure.colorbar(
                ax.imshow(image[0], cmap="magma", vmin=0), ax=ax, fraction=0.046
            )
        ax.set_title(title, fontsize=9)
    figure.tight_layout()


low, high = posterior.interval(0.8)
show(
    {
        "truth": truth[0],
        "measured": problem.y[0],
        **{f"sample {n + 1}": posterior.samples[0, n] for n in range(4)},
        "mean": posterior.mean[0],
        "standard deviation": posterior.std[0].mean(0, keepdim=True),
        "low end, 80 %": low[0],
        "high end, 80 %": high[0],
    },
    columns=5,
)

# %%
# A sample is sharp and is one possibility. The mean is smooth, is the better guess pixel by pixel, and is itself no face. The
# standard deviation is largest at edges, which the coarse pixels do not place. **One sample is not the truth**, however sharp.
#
# Do the samples explain the measurement? The misfit in units of the noise should be about 1: much more means that they
# ignore it, much less that they fit its noise.

misfit = problem.repeat(posterior.samples.shape[1]).chi_square(posterior.samples[0])
print("misfit:", [round(float(m), 2) for m in misfit])

# %%
# How many of the truth's pixels lie inside of the 80 % interval? One image cannot confirm intervals; it can only reveal that
# they are badly wrong. The ends are the smallest and the largest of nine samples: between order statistics i and j of
# N samples a perfect sampler has a share of :math:`(j - i) / (N + 1)`, here 80 %.

inside = ((truth[0] >= low[0]) & (truth[0] <= high[0])).float().mean()
print(f"{inside:.0%} of the pixels are inside of their 80 % interval")

# %%
# Many truths: calibration
# ------------------------
# Draw a truth from the prior, measure it, sample its posterior, and note the *rank* of the truth among the samples. If the
# sampler is right, every rank is equally likely. A sampler too sure of itself piles ranks up at both ends. This needs many
# truths and an exact prior, so we are back at 8 x 8 mixtures.

mixture = oracle_mixture()
truths, problems = oracle_problem(mixture, "sr4", observations=150)


def features(x):
    """Three numbers of an image: two pixels and the difference of two others."""
    return torch.stack(
        [x[:, 0, 1, 1], x[:, 0, 4, 6], x[:, 0, 2, 2] - x[:, 0, 2, 5]], dim=1
    )


samplers = {
    "MGDM, Adam, 3 steps": lavps.MGDM(
        mixture, num_steps=50, guidance=Gradient(steps=3)
    ),
    "MGDM, whitened, 2 steps": lavps.MGDM(
        mixture,
        num_steps=50,
        guidance=Gradient(steps=2, minimizer=lavps.WhitenedGradient()),
    ),
}
levels = (0.5, 0.8, 0.9, 0.95)
reports = {
    name: calibrate(
        sampler, truths, problems, features, num_samples=31, levels=levels
    )
    for name, sampler in samplers.items()
}
found = {name: (report.ranks, report.coverage) for name, report in reports.items()}

# The control: exact samples, which must pass.
exact = exact_samples(
    problems, lavps.exact_posterior(mixture, problems), 31, seed=1
)
numbers = features(exact.flatten(0, 1)).reshape(150, 31, 3)
found["exact samples"] = (
    ranks(features(truths), numbers),
    coverage(features(truths), numbers, levels),
)

figure, axes = plt.subplots(1, 3, figsize=(10, 2.8), sharey=True)
for ax, (name, (rank, _)) in zip(axes, found.items(), strict=True):
    ax.hist(
        rank.flatten(),
        bins=torch.linspace(-0.5, 31.5, 9).tolist(),
        color="C0",
        rwidth=0.9,
    )
    ax.axhline(rank.numel() / 8, color="k", linewidth=0.8)
    ax.set(title=name, xlabel="rank of the truth among 31 samples")
figure.tight_layout()

# %%
# The same as coverage: how often the truth lies inside of an interval that claims 50, 80, 90 or 95 %.

figure, ax = plt.subplots(figsize=(4.4, 3.6))
ax.plot([0.4, 1], [0.4, 1], "k--", linewidth=0.8)
for name, (_, share) in found.items():
    ax.plot(levels, share.mean(1), "o-", label=name)
    print(
        f"{name:24} intervals of {levels} hold {[round(float(c), 2) for c in share.mean(1)]}"
    )
ax.set(xlabel="level the interval claims", ylabel="share of truths inside")
ax.legend(fontsize=8)
figure.tight_layout()

# %%
# Intervals on the dashed line are calibrated; intervals below it are too narrow. The exact samples are calibrated, up to the
# randomness of 150 truths. Both samplers, with these few steps, are somewhat overconfident. Calibration is a property of the
# sampler *under its prior*. It implies nothing for images unlike those of the prior's training set. The benchmark
# `mixture_oracle` has the full study.
