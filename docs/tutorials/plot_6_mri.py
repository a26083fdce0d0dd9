r"""
Magnetic resonance imaging
==========================

A scanner measures the Fourier transform of an image, seen by several receiver coils, and leaves out most frequencies to save
time. Measurements are complex numbers. This page reconstructs from them with our own operator, compares with the exact
posterior, and does the same with an operator of deepinv where that library is installed.
"""

import importlib.util

import matplotlib.pyplot as plt
import torch

import lavps
from lavps.evaluation import score
from lavps.guidance import Gradient

# %%
# A prior of smooth things
# ------------------------
# Images of 16 x 16 pixels: two kinds of random smooth blobs, a Gaussian mixture, so that the exact answer is known. A complex
# image has two channels, its real and its imaginary part; here the image is real and has one.

place = torch.cartesian_prod(torch.arange(16.0), torch.arange(16.0))
squared = torch.cdist(place, place).square().double()
bowl = (
    0.7 * torch.exp(-((place - 7.5) / 5).square().sum(1) / 2).reshape(1, 16, 16)
    - 0.35
)
covariances = torch.stack(
    [
        0.06 * torch.exp(-squared / (2 * length**2)) + 0.0005 * torch.eye(256)
        for length in (1.5, 4.0)
    ]
)
prior = lavps.GaussianMixturePrior(
    [0.5, 0.5], torch.stack([bowl, -bowl]), covariances, dtype=torch.float32
)
truth = prior.sample(1, seed=3)

# %%
# The scanner
# -----------
# Three coils, each with a complex sensitivity that is strongest on its own side, and a mask that keeps the middle rows of
# frequencies and one in three of the others. The noise's standard deviation is that of a complex entry.

mask = torch.zeros(16, 16)
mask[::3] = 1
mask[6:10] = 1
centres = torch.tensor([[0.0, 8.0], [12.0, 0.0], [12.0, 15.0]])
size = torch.exp(-(place[None] - centres[:, None]).square().sum(-1) / 200).reshape(
    3, 16, 16
)
phase = 0.1 * (place[:, 0] - place[:, 1]).reshape(16, 16)
coils = torch.polar(size, phase.expand(3, -1, -1).contiguous())
scanner = lavps.operators.MRI(mask, coils)
problem = lavps.InverseProblem.simulate(
    truth, scanner, lavps.GaussianNoise(0.05), seed=0
)
print(
    f"measured: {tuple(problem.y.shape)} of {problem.y.dtype}, {mask.mean():.0%} of the frequencies"
)
print(lavps.operators.check(scanner, (1, 16, 16)))

# %%
# Reconstruct
# -----------
# The adjoint of the operator, what a scanner shows without a prior, against samples of the posterior.

sampler = lavps.MGDM(prior, num_steps=100, guidance=Gradient(steps=3))
posterior = sampler.sample(problem, num_samples=64, seed=0)
[exact] = lavps.exact_posterior(prior, problem)


def show(panels):
    """Grey images by their titles; a standard deviation has its own scale."""
    figure, axes = plt.subplots(1, len(panels), figsize=(1.9 * len(panels), 2.3))
    for ax, (title, image) in zip(axes, panels.items(), strict=True):
        limits = (
            {"vmin": 0, "vmax": 0.15, "cmap": "magma"}
            if "std" in title
            else {"vmin": -1, "vmax": 1, "cmap": "gray"}
        )
        ax.imshow(image.detach().squeeze(), **limits)
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    figure.tight_layout()


show(
    {
        "truth": truth,
        "adjoint": scanner.adjoint(problem.y),
        "a sample": posterior.samples[0, 0],
        "mean": posterior.mean[0],
        "exact mean": exact.mean,
        "std": posterior.std[0],
        "exact std": exact.std,
    }
)
result = score(posterior.samples, problem, [exact])
print(
    f"distance to the exact posterior {result.sw2:.3f}; standard deviation over the exact one {result.std_ratio:.2f}"
)

# %%
# With an operator of deepinv
# ---------------------------
# A physics of deepinv goes into ``lavps.InverseProblem`` as it is, with the noise it states. Its images are complex, two
# channels, so the prior needs two: the second, the imaginary part, is nearly zero here. This part runs where deepinv is
# installed (``pip install deepinv``); elsewhere it is passed over.

if importlib.util.find_spec("deepinv") is None:
    print("deepinv is not installed: skipped")
else:
    from deepinv.physics import GaussianNoise, MultiCoilMRI

    # The noise of a complex number is half in its real and half in its imaginary part.
    physics = MultiCoilMRI(
        mask, coils[None], (16, 16), noise_model=GaussianNoise(0.05 / 2**0.5)
    )
    complex_truth = torch.cat([truth, torch.zeros_like(truth)], dim=1)
    ours = lavps.operators.MRI(mask, coils, complex_image=True)(complex_truth)
    theirs = physics.A(complex_truth)
    difference = (torch.complex(theirs[:, 0], theirs[:, 1]) - ours).abs().max()
    print(f"largest difference between their operator and ours: {difference:.1e}")

    complex_prior = lavps.GaussianMixturePrior(
        prior.weights,
        torch.cat([torch.stack([bowl, -bowl]), torch.zeros(2, 1, 16, 16)], dim=1),
        torch.stack(
            [
                torch.block_diag(c, 0.0005 * torch.eye(256).double())
                for c in covariances
            ]
        ),
        dtype=torch.float32,
    )
    problem = lavps.InverseProblem(physics(complex_truth), physics)
    sampler = lavps.MGDM(complex_prior, num_steps=100, guidance=Gradient(steps=3))
    posterior = sampler.sample(problem, num_samples=16)
    show(
        {
            "truth": truth,
            "their adjoint": physics.A_adjoint(problem.y)[:, 0],
            "mean": posterior.mean[0, 0],
        }
    )

# %%
# For complex images, use ``MRI(..., complex_image=True)`` and a prior over two channels. A prior trained on magnitudes from
# other scanners, or on healthy anatomy, fills gaps with what its training set contained. Read *Prior mismatch* before you
# use any of this near a patient.
