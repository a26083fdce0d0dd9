r"""
A brain slice from a third of its frequencies
=============================================

A scanner measures the Fourier transform of an image, row by row. Leaving out rows saves time, and then several
images explain the measurement. This page reconstructs a real slice with a prior that was trained on photographs, gives every
pixel an interval, and tests what the intervals are worth.

The slice is T1-weighted and ships with dipy (BSD licence): ``pip install dipy``. The prior is in the zoo: ``pip install ./zoo``
in the repository.
"""

from importlib.metadata import files

import matplotlib.pyplot as plt
import numpy as np
import torch

import lavps
from lavps.evaluation import psnr
from lavps.tiling import TiledPrior

# %%
# The image and the scanner
# -------------------------
# 160 x 160 pixels in [-1, 1]; the background is -1. Rows of frequencies are measured at random, most of them in the
# middle. Measurements are complex; the noise's standard deviation is that of a complex number.

[file] = [part for part in files("dipy") if part.name == "t1_coronal_slice.npy"]
pixels = np.load(file.locate())[20:180, 48:208]
truth = torch.as_tensor(2 * pixels / pixels.max() - 1).float()[None, None]
brain = truth > -0.9

distance = (torch.arange(160) - 80).abs()  # from the zero frequency
draws = torch.rand(160, generator=torch.Generator().manual_seed(1))
rows = (draws < torch.exp(-distance / 30)) | (distance < 10)
scanner = lavps.operators.MRI(rows[:, None].expand(160, 160))
noise = lavps.GaussianNoise(0.05)
measured = lavps.InverseProblem.simulate(truth, scanner, noise, seed=0)
print(f"{rows.float().mean():.0%} of the frequencies, {measured.y.dtype}")

# %%
# A prior of photographs for a grey slice
# ---------------------------------------
# ``photos64`` denoises windows of 64 x 64 pixels with three colours. ``TiledPrior`` makes it a prior of images of any size,
# fused at every step. An operator that first takes the mean of the colours makes the slice a measurement of a colour image;
# any function is an operator, and its adjoint is found by automatic differentiation.

windows = TiledPrior(lavps.load_prior("photos64"), window=64, overlap=16)


def measured_rows(image):
    """The measured rows of frequencies of a colour image's mean."""
    return scanner(image.mean(1, keepdim=True))[..., rows, :]


operator = lavps.operators.CallableOperator(measured_rows, in_shape=(3, 160, 160))
problem = lavps.InverseProblem(measured.y[..., rows, :], operator, noise)
sampler = lavps.TunedPIR.universal(windows, 8)
posterior = sampler.sample(problem, num_samples=9, seed=0)
samples = posterior.samples.mean(2, keepdim=True)  # grey again
mean, std = samples.mean(1), samples.std(1)


def show(panels):
    """Grey images by their titles; standard deviations and errors have their own scale."""
    figure, axes = plt.subplots(1, len(panels), figsize=(2.2 * len(panels), 2.5))
    for ax, (title, image) in zip(axes, panels.items(), strict=True):
        spread = "deviation" in title or "error" in title
        limits = {"vmin": 0, "vmax": 0.3} if spread else {"vmin": -1, "vmax": 1}
        ax.imshow(image.squeeze(), cmap="magma" if spread else "gray", **limits)
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    figure.tight_layout()


zero_filled = scanner.adjoint(measured.y)
show(
    {
        "truth": truth,
        "zero-filled": zero_filled,
        "a sample": samples[0, 0],
        "posterior mean": mean,
        "standard deviation": std,
        "error of the mean": (mean - truth).abs(),
    }
)
for name, image in {"zero-filled": zero_filled, "mean": mean}.items():
    print(f"{name}: {float(psnr(image, truth)):.1f} dB")
chi_square = problem.repeat(9).chi_square(posterior.samples[0])
print("misfit of the samples:", [round(float(value), 2) for value in chi_square])

# %%
# Every sample explains the measured frequencies: the misfit is about 1. Samples differ in fine detail along the columns,
# which the missing rows would have decided. The largest errors are at the border, where the skull was removed: no
# photograph has such an edge.
#
# What the intervals are worth
# ----------------------------
# The smallest and the largest of nine samples are the ends of an 80 % interval: if truth and samples came from one
# distribution, the truth would lie inside for 8 pixels in 10. The truth is a brain; the prior was trained on photographs.


def share_inside(side, scale=1.0):
    """Share of a side's pixels inside of the interval, scaled around the mean."""
    low, high = (
        mean + scale * (end - mean) for end in (samples.amin(1), samples.amax(1))
    )
    inside = (truth >= low) & (truth <= high)
    return float(inside[brain & side].float().mean())


columns = torch.arange(160).expand(1, 1, 160, 160)
left, right = columns < 80, columns >= 80
print(f"inside: left {share_inside(left):.0%}, right {share_inside(right):.0%}")

# %%
# They are too wide here: a slice is smoother than photographs are. One correction is the factor with which the intervals of
# the *left* half hold 80 % of its pixels. Does it hold for the right half, which had no part in it?

factors = torch.arange(0.5, 2, 0.01).tolist()
factor = next(f for f in factors if share_inside(left, f) >= 0.8)
print(f"factor {factor:.2f}: right {share_inside(right, factor):.0%}")

# %%
# **What it means.** Of pixels like these (this contrast, this sampling, this noise), about 8 in 10 lie in their interval.
# ``lavps calibrate`` does the same with many images in place of one half, states the guarantee for a finite number of
# them, and refuses another prior, operator or noise level.
#
# **What it does not mean.** Not that a given pixel is right with 80 %: errors gather at edges and in thin folds. Not that
# neighbouring pixels err independently: a fold may be missing as a whole. And nothing about a tumour: no image with one had a
# part in the prior or in the correction. Read *Prior mismatch* before you use any of this near a patient.
