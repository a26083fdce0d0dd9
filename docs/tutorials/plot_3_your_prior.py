r"""
Your own prior
==============

To a sampler a *prior* is two things: a noise schedule and a denoiser :math:`D(x_t, t) \approx E[x_0 | x_t]`, the best guess
of the clean image behind a noisy one. Whatever has both is a prior. This page writes one by hand for images of the night
sky, then trains a network for the same sky in a few seconds.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import lavps
from lavps.guidance import Gradient
from lavps.transitions import per_sample

# %%
# By hand
# -------
# Pixels of a night sky are independent and nearly all dark; one in twenty belongs to a star. So a pixel is a mixture of two
# Gaussians, and its denoiser is a formula: how likely the pixel is a star, given its noisy value, and the best guess in
# either case.


class NightSky:
    """Independent pixels: dark with probability 0.95, else a star."""

    schedule = lavps.Flow()
    weights = torch.tensor([0.95, 0.05])
    means = torch.tensor([-0.95, 0.3])
    stds = torch.tensor([0.02, 0.35])

    def denoise(self, x_t, t):
        """E[x_0 | x_t], pixel by pixel. x_t is (B, C, H, W), t a time or one a row."""
        alpha, sigma = (
            per_sample(c(t), x_t)[..., None]
            for c in (self.schedule.alpha, self.schedule.sigma)
        )
        variance = alpha**2 * self.stds**2 + sigma**2
        away = x_t[..., None] - alpha * self.means
        weight = (
            self.weights.log() - 0.5 * (away**2 / variance + variance.log())
        ).softmax(-1)
        return (weight * (self.means + alpha * self.stds**2 / variance * away)).sum(
            -1
        )


sky = NightSky()

# %%
# A sky to look at, through a bad telescope: blurred, with noise.

generator = torch.Generator().manual_seed(4)
star = torch.rand(1, 1, 32, 32, generator=generator) < 0.05
bright = 0.3 + 0.35 * torch.randn(1, 1, 32, 32, generator=generator)
truth = torch.where(star, bright.clamp(-0.7, 1.0), torch.full_like(bright, -0.95))
telescope = lavps.operators.Blur(lavps.operators.gaussian_kernel(0.7))
problem = lavps.InverseProblem.simulate(truth, telescope, lavps.GaussianNoise(0.1))

guidance = Gradient(steps=2, minimizer=lavps.WhitenedGradient())
sampler = lavps.MGDM(sky, num_steps=100, guidance=guidance)
posterior = sampler.sample(problem, num_samples=16)


def show(panels):
    """Grey images by their titles."""
    figure, axes = plt.subplots(1, len(panels), figsize=(2.2 * len(panels), 2.5))
    for ax, (title, image) in zip(axes, panels.items(), strict=True):
        ax.imshow(image.squeeze(), vmin=-1, vmax=1, cmap="gray")
        ax.set_title(title, fontsize=9)
        ax.axis("off")
    figure.tight_layout()


show(
    {
        "truth": truth,
        "measured": problem.y,
        "one sample": posterior.samples[0, 0],
        "mean of 16": posterior.mean[0],
        "std (x2)": 2 * posterior.std[0] - 1,
    }
)

# %%
# Most stars are where they were. Where they are faint or lie close together the samples disagree, and the standard deviation is large.
#
# By a network
# ------------
# Usually there is no formula, but there are images. A network learns from noisy images and their times. It may predict the
# clean image, the noise, or, as here, the velocity :math:`z - x_0` from one to the other; ``prediction`` states which. Little
# noise then means little to correct, and a few seconds of training do.


class Net(nn.Module):
    """Noisy images (B, 1, H, W) and times (B,) to velocities; pixels are independent, and so are its 1 x 1 filters."""

    def __init__(self, width=48):
        super().__init__()
        hidden = [
            layer
            for _ in range(2)
            for layer in (nn.Conv2d(width, width, 1), nn.SiLU())
        ]
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 1), nn.SiLU(), *hidden, nn.Conv2d(width, 1, 1)
        )

    def forward(self, x, t):
        """The time enters as two channels more."""
        t = t.to(x).reshape(-1, 1, 1, 1).expand_as(x)
        return self.layers(torch.cat([x, t, t.log()], dim=1))


def skies(count):
    """Training images, drawn as the sky is."""
    is_star = torch.rand(count, 1, 16, 16, generator=generator) < 0.05
    noise = torch.randn(count, 1, 16, 16, generator=generator)
    return torch.where(is_star, 0.3 + 0.35 * noise, -0.95 + 0.02 * noise)


with torch.random.fork_rng():
    torch.manual_seed(0)
    net = Net()
optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
losses = []
for _ in range(500):
    x = skies(32)
    t = 0.01 + 0.99 * torch.rand(32, generator=generator)
    time = t.reshape(-1, 1, 1, 1)
    noise = torch.randn(x.shape, generator=generator)
    loss = (net((1 - time) * x + time * noise, t) - (noise - x)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} at first, {sum(losses[-20:]) / 20:.3f} at the end")

learned = lavps.NetworkPrior(net, lavps.Flow(), prediction="velocity")

# %%
# How far is the learned denoiser from the exact one? And what do its samples look like?

x = skies(200)
figure, ax = plt.subplots(figsize=(4.5, 3))
times = torch.linspace(0.05, 0.95, 10, dtype=torch.float64)
for name, prior in (("exact", sky), ("learned", learned)):
    errors = []
    for t in times:
        noisy = (1 - t) * x + t * torch.randn(
            x.shape, generator=torch.Generator().manual_seed(1)
        )
        with torch.no_grad():
            errors.append(
                float((prior.denoise(noisy.float(), t) - x).square().mean().sqrt())
            )
    ax.plot(times, errors, "o-", label=name)
ax.set(xlabel="time t (noise)", ylabel="error of the denoised guess")
ax.legend()
figure.tight_layout()

result = lavps.MGDM(learned, num_steps=100, guidance=guidance).sample(problem, 16)
show(
    {
        "truth": truth,
        "measured": problem.y,
        "one sample": result.samples[0, 0],
        "mean of 16": result.mean[0],
    }
)

# %%
# The command ``lavps train prior`` trains a prior on your own images, and ``lavps.load_prior`` loads published checkpoints.
# Wrap a denoiser for another pixel range than [-1, 1] in ``lavps.RescaledPrior``, and one for another schedule in
# ``lavps.Rescheduled``.
