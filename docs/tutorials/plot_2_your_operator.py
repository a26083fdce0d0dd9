r"""
Your own operator
=================

An *operator* A maps an image to a measurement. Any function will do. This page defines a camera with a colour filter, checks
it, restores from it, and then makes it nonlinear.

The prior is ``synthfaces64``, a small denoiser of synthetic faces, and the face to be photographed is one of its own samples.
To run this page elsewhere, install the models: ``pip install ./zoo`` in the repository.
"""

import matplotlib.pyplot as plt

import lavps
from lavps.checkpoints import zoo_model
from lavps.io import read_image

prior = lavps.load_prior("synthfaces64")
sheet = read_image(zoo_model("synthfaces64") / "samples.png").pixels
truth = sheet[:, 384:448, 192:256][None]  # (1, 3, 64, 64), pixels in [-1, 1]

# %%
# A function
# ----------
# Behind most camera sensors lies a mosaic of filters: a pixel sees red, green or blue, never all three. In torch, for
# images (B, 3, H, W):


def mosaic(x):
    """Red at even rows and columns, blue at odd ones, green elsewhere: (B, 1, H, W)."""
    seen = x[:, 1:2].clone()
    seen[:, :, 0::2, 0::2] = x[:, 0:1, 0::2, 0::2]
    seen[:, :, 1::2, 1::2] = x[:, 2:3, 1::2, 1::2]
    return seen


camera = lavps.operators.CallableOperator(mosaic, in_shape=(3, 64, 64), linear=True)

# %%
# Check the operator
# ------------------
# ``check`` evaluates the operator on random images. It tests the adjoint, the declared linearity, determinism, independence of
# the rows of a batch, and precision.

print(lavps.operators.check(camera, (3, 64, 64)))

# %%
# This operator is wrong in two ways. It normalizes by the brightness of the *whole batch*, so images affect each other, and it
# is declared linear.

broken = lavps.operators.CallableOperator(
    lambda x: x / x.abs().mean(), in_shape=(3, 64, 64), linear=True
)
print(lavps.operators.check(broken, (3, 64, 64)))

# %%
# Restore
# -------
# The noise level is in the units of the measurement: 0.1 on a scale from -1 (black) to +1 (white). We draw four posterior
# samples with ``WienerPIR`` and 25 denoiser evaluations each. It takes no gradient through the network.

problem = lavps.InverseProblem.simulate(
    truth, camera, lavps.GaussianNoise(0.1), seed=1
)
sampler = lavps.WienerPIR(prior, num_steps=25)
posterior = sampler.sample(problem, num_samples=4, seed=0)


def show(images, titles, width=2.0):
    """Images (C, H, W) in [-1, 1] in a row."""
    figure, axes = plt.subplots(
        1, len(images), figsize=(width * len(images), width + 0.3)
    )
    for ax, image, title in zip(axes, images, titles, strict=True):
        pixels = image.expand(3, -1, -1).permute(1, 2, 0).clamp(-1, 1) / 2 + 0.5
        ax.imshow(pixels)
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    figure.tight_layout()


show(
    [truth[0], problem.y[0], *posterior.samples[0, :3], posterior.mean[0]],
    ["truth", "measured", "sample 1", "sample 2", "sample 3", "mean of 4"],
)
misfit = problem.repeat(4).chi_square(posterior.samples[0])
print(
    "misfit in units of the noise, 1 where a sample explains y:",
    [round(float(m), 2) for m in misfit],
)

# %%
# Nonlinear, too
# --------------
# An overexposed sensor saturates. The sampler needs no inverse of A, only its derivative, which torch computes. Nothing else
# changes.


def overexposed(x):
    """Twice the light, cut off at white."""
    return mosaic((2 * (x + 1) - 1).clamp(-1, 1))


camera = lavps.operators.CallableOperator(
    overexposed, in_shape=(3, 64, 64), linear=False
)
problem = lavps.InverseProblem.simulate(
    truth, camera, lavps.GaussianNoise(0.05), seed=1
)
posterior = sampler.sample(problem, num_samples=4, seed=0)
show(
    [
        truth[0],
        problem.y[0],
        *posterior.samples[0, :3],
        posterior.std[0].mean(0, keepdim=True) * 8 - 1,
    ],
    ["truth", "measured", "sample 1", "sample 2", "sample 3", "std (x8)"],
)

# %%
# Where the sensor was saturated, the measurement is only a lower bound of the brightness. The prior determines the rest: the
# samples differ there, and the standard deviation is large.
#
# A function of NumPy or a simulator goes through ``lavps.operators.from_numpy``, with the adjoint or the vector-Jacobian
# product that torch cannot find by itself. A class with parameters of its own, one set per item of a batch, derives from
# ``lavps.operators.Operator``: *Contributing* has one in thirty lines.
