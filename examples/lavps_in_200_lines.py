r"""LAVPS in one file: the whole method with torch alone, on images small enough to know the exact answer.

    python examples/lavps_in_200_lines.py        # half a minute; prints the table below

The prior is a mixture of four Gaussians over 8 x 8 images, so its denoiser D(x_t, t) = E[x_0 | x_t] and its
posterior are known in closed form, and a sampler can be seen to be right or wrong. The measurement y averages
4 x 4 blocks, with noise of standard deviation .05; the unseen operator hides half of the pixels. It must
print, within .03 in a distance and .1 in a share (processors round differently):

    method                                     distance  forwards  backwards  kept
    exact samples (the floor)                     0.026         0          0     -
    MGDM, 3 gradient steps                        0.105       393        294     -
    MGDM, 1 gradient step                         0.041       197         98     -
    MGDM, 0 gradient steps                        0.639        99          0     -
    LAVPS, 0 gradient steps                       0.033       197          0  0.89
    LAVPS, 0 gradient steps, untrained            0.639       197          0  1.00
    unseen operator: MGDM, 3 gradient steps       0.042       393        294     -
    unseen operator: LAVPS, 3 gradient steps      0.039       589        294  0.59

Distance: sliced Wasserstein-2 from 128 samples to as many exact ones. Forwards and backwards: passes of the
denoiser a sample. Kept: share of the safeguard's decisions for the warm start. That three steps of Adam do
worse than one here is no mistake: with a fixed learning rate a late step is a kick as large as the posterior.
Symbols and line numbers are the paper's (Zheng et al., 2026). The library does the same for real images, and
reuses more of its passes. 200 lines, blank ones and this text aside.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

SIDE, COMPONENTS, K, NOISE, ETA = 8, 4, 100, 0.05, 0.03  # ETA: Adam's learning rate
DOUBLE = torch.float64
Noise = Callable[[str, int, int], Tensor]  # (what for, step k, number) -> standard normals (rows, pixels)


# -- The diffusion: x_t = alpha_t x_0 + sigma_t z; here alpha_t = 1 - t, sigma_t = t. Times are (rows, 1).


def forward_variance(s: Tensor, t: Tensor) -> Tensor:
    """sigma_{t|s}^2 = sigma_t^2 - (alpha_t / alpha_s)^2 sigma_s^2."""
    return t**2 - ((1 - t) / (1 - s)) ** 2 * s**2


def bridge(x_0: Tensor, x_u: Tensor, t: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of q(x_t | x_0, x_u), t < u; never divides by alpha_u, which may be 0."""
    early, late = forward_variance(t, u) / u**2, t**2 / u**2
    return (1 - t) * early * x_0 + (1 - u) / (1 - t) * late * x_u, (t**2 * early).sqrt()


# -- The prior: a mixture whose denoiser and posterior are exact.


class Mixture:
    """p(x_0) = sum_k w_k N(m_k, C_k), with a count of its denoiser evaluations."""

    def __init__(self, weights: Tensor, means: Tensor, covariances: Tensor) -> None:
        self.weights, self.means, self.covariances = weights, means, covariances
        spectrum, self.basis = torch.linalg.eigh(covariances)
        self.spectrum, self.forwards, self.backwards = spectrum.clamp(min=0), 0, 0

    def denoise(self, x_t: Tensor, t: Tensor) -> Tensor:
        """E[x_0 | x_t] = sum_k r_k(x_t) (m_k + alpha C_k (alpha^2 C_k + sigma^2)^-1 (x_t - alpha m_k))."""
        self.forwards, self.backwards = self.forwards + 1, self.backwards + x_t.requires_grad
        alpha, sigma = 1 - t[:, None], t[:, None]
        variance = alpha**2 * self.spectrum + sigma**2
        away = torch.einsum("bkd,kde->bke", x_t[:, None] - alpha * self.means, self.basis)
        log_joint = self.weights.log() - 0.5 * (away**2 / variance + variance.log()).sum(-1)
        shift = torch.einsum("bke,kde->bkd", alpha * self.spectrum / variance * away, self.basis)
        return torch.einsum("bk,bkd->bd", log_joint.softmax(1), self.means + shift)

    def posterior(self, A: Tensor, y: Tensor) -> "Mixture":
        """The exact posterior under y = A x_0 + NOISE z: a mixture again."""
        covariance = A @ self.covariances @ A.T + NOISE**2 * torch.eye(len(A), dtype=DOUBLE)
        gain = torch.linalg.solve(covariance, A @ self.covariances).mT
        evidence = torch.distributions.MultivariateNormal(self.means @ A.T, covariance).log_prob(y)
        means = self.means + torch.einsum("kdm,km->kd", gain, y - self.means @ A.T)
        weights = (self.weights.log() + evidence).softmax(0)
        return Mixture(weights, means, self.covariances - gain @ A @ self.covariances)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Exact draws of x_0, (count, pixels)."""
        k = torch.multinomial(self.weights, count, replacement=True, generator=generator)
        z = torch.randn(count, self.means.shape[1], dtype=DOUBLE, generator=generator)
        return self.means[k] + torch.einsum("nde,ne->nd", self.basis[k], self.spectrum[k].sqrt() * z)


def image_mixture() -> Mixture:
    """Components that differ in mean and in smoothness, like the regions of an image."""
    place = torch.cartesian_prod(*[torch.arange(SIDE, dtype=DOUBLE)] * 2)
    squared, eye = torch.cdist(place, place) ** 2, torch.eye(SIDE**2, dtype=DOUBLE)
    smooth = [0.08 * torch.exp(-squared / (2 * (1 + 0.7 * k) ** 2)) + 0.001 * eye for k in range(COMPONENTS)]
    root = torch.linalg.cholesky(0.25 * torch.exp(-squared / 12.5) + 1e-9 * eye)
    z = torch.randn(COMPONENTS, SIDE**2, dtype=DOUBLE, generator=torch.Generator().manual_seed(6))
    return Mixture(torch.full((COMPONENTS,), 1 / COMPONENTS, dtype=DOUBLE), z @ root.T, torch.stack(smooth))


# -- The inner problem: the q = N(mean, diag(exp(2 log_std))) nearest to likelihood times bridge.


class Context(NamedTuple):
    """c = (x_0, x_t, s, t, y, A): all that is known when x_s is to be drawn."""

    x_0: Tensor
    x_t: Tensor
    s: Tensor
    t: Tensor
    y: Tensor
    A: Tensor

    def bridge(self) -> tuple[Tensor, Tensor]:
        """The zero-shot start (mean, log_std), line 8."""
        mean, std = bridge(self.x_0, self.x_t, self.s, self.t)
        return mean, std.log().expand_as(mean)


def objective(prior: Mixture, c: Context, q: tuple[Tensor, Tensor], z: Tensor) -> tuple[Tensor, ...]:
    """L(q; c) of every row, and the x_s = mean + exp(log_std) z and D(x_s, s) it was computed from."""
    (mean, log_std), (m_b, log_b) = q, c.bridge()
    x_s = mean + log_std.exp() * z
    x_0 = prior.denoise(x_s, c.s)
    misfit = ((c.y - x_0 @ c.A.T) / NOISE).square().sum(1) / 2
    gap = log_std - log_b
    kl = (((2 * gap).exp() + ((mean - m_b) / log_b.exp()) ** 2 - 1) / 2 - gap).sum(1)  # in closed form
    return misfit + kl, x_s, x_0


class InferenceModel(nn.Module):
    """c -> q: the bridge plus a residual in units of its spread; untrained, it is the bridge."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        sizes = [3 * SIDE**2 + 2, width, width, 2 * SIDE**2]
        layers = [nn.Linear(a, b, dtype=DOUBLE) for a, b in pairwise(sizes)]
        self.network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2])
        for parameter in layers[2].parameters():
            nn.init.zeros_(parameter)

    def forward(self, c: Context) -> tuple[Tensor, Tensor]:
        """Predict q; the measurement enters as the likelihood score A^T (y - A x_0)."""
        pull = (c.y - c.x_0 @ c.A.T) @ c.A / NOISE
        inputs = torch.cat([c.x_0, c.x_t, pull / (1 + pull.abs() / 4), c.s, c.t], dim=1)
        shift, spread = self.network(inputs).chunk(2, dim=1)
        mean, log_std = c.bridge()
        return mean + log_std.exp() * shift, log_std + spread


def train(prior: Mixture, A: Tensor, steps: int, rows: int = 128) -> InferenceModel:
    """Algorithm 1: the objective itself is the loss, over contexts as the sampler meets them."""
    generator = torch.Generator().manual_seed(1)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = InferenceModel()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, max(steps, 1))
    for _ in range(steps):
        x = prior.sample(rows, generator)
        noise = [torch.randn(rows, n, dtype=DOUBLE, generator=generator) for n in (len(A), SIDE**2, SIDE**2)]
        t = torch.randint(2, K, (rows, 1), generator=generator).to(DOUBLE) / K
        x_t = (1 - t) * x + t * noise[1]
        c = Context(prior.denoise(x_t, t), x_t, t - 1 / K, t, x @ A.T + NOISE * noise[0], A)
        optimiser.zero_grad()
        objective(prior, c, model(c), noise[2])[0].mean().backward()
        optimiser.step()
        decay.step()
    return model


# -- The sampler, Algorithm 2: MGDM where there is no model, LAVPS where there is one.


def lavps(
    prior: Mixture, A: Tensor, y: Tensor, noise: Noise, gradient_steps: int, model: nn.Module | None = None
) -> tuple[Tensor, list[Tensor]]:
    """Samples (rows, pixels) of the posterior given one y, and whose warm start was kept at each step."""
    x_t, kept = noise("initial", 0, 0), []
    x_0 = prior.denoise(x_t, torch.ones_like(x_t[:, :1]))  # line 2
    for k in range(K - 1, 1, -1):
        s, t, u = (torch.full_like(x_t[:, :1], place / K) for place in (k - 1, k, k + 1))
        mean, std = bridge(x_0, x_t, t, u)
        x_t = mean + std * noise("transition", k, 0)  # line 5
        c = Context(x_0, x_t, s, t, y, A)
        q, known = c.bridge(), None  # line 8
        if model is not None:  # lines 10-12: the warm start where it is no worse, judged with the same noise
            with torch.no_grad():
                warm = model(c)
                tried, plain = (objective(prior, c, start, noise("objective", k, 0)) for start in (warm, q))
            kept.append(tried[0] <= plain[0])
            q = tuple(torch.where(kept[-1][:, None], a, b) for a, b in zip(warm, q, strict=True))
            known = [torch.where(kept[-1][:, None], a, b) for a, b in zip(tried[1:], plain[1:], strict=True)]
        if known is not None and gradient_steps == 0:
            x_s, x_0 = known  # x_s and D(x_s, s) as the safeguard computed them: nothing more to pay
        else:
            q = tuple(part.clone().requires_grad_() for part in q)
            adam = torch.optim.Adam(q, lr=ETA)
            for g in range(gradient_steps):  # line 18: likelihood guidance, by gradients through the denoiser
                adam.zero_grad()
                objective(prior, c, q, noise("objective", k, g))[0].sum().backward()
                adam.step()
            z = noise("variational", k, 0) if gradient_steps else noise("objective", k, 0)
            x_s = (q[0] + q[1].exp() * z).detach()  # line 20
            x_0 = prior.denoise(x_s, s)  # line 21, with M = 1
        x_t = (1 - t) / (1 - s) * x_s + forward_variance(s, t).sqrt() * noise("renoise", k, 0)  # line 22
    return x_0, kept


# -- What it prints.


def distance(samples: Tensor, exact: Mixture) -> float:
    """Sliced Wasserstein-2 to as many exact samples: how far apart, seen from 256 random directions."""
    generator = torch.Generator().manual_seed(7)
    directions = nn.functional.normalize(torch.randn(SIDE**2, 256, dtype=DOUBLE, generator=generator), dim=0)
    a, b = ((x @ directions).sort(dim=0).values for x in (samples, exact.sample(len(samples), generator)))
    return float((a - b).square().mean().sqrt())


def seeded(rows: int, seed: int) -> Noise:
    """Noise by address: the same (what, k, number) gives the same draw."""

    def noise(what: str, k: int, number: int) -> Tensor:
        place = ["initial", "transition", "objective", "variational", "renoise"].index(what)
        generator = torch.Generator().manual_seed(seed + 10 * place + 100 * k + 100_000 * number)
        return torch.randn(rows, SIDE**2, dtype=DOUBLE, generator=generator)

    return noise


def main(training_steps: int = 1000, rows: int = 128) -> list[tuple[str, float, int, int, float]]:
    """Train, sample, compare; the lines of the table."""
    prior, generator = image_mixture(), torch.Generator().manual_seed(3)
    half = torch.eye(2, dtype=DOUBLE).repeat_interleave(4, dim=1) / 4
    average = torch.kron(half, half)  # 4 x 4 blocks of 8 x 8 pixels, (4, 64)
    hide = torch.eye(SIDE**2, dtype=DOUBLE)[torch.randperm(SIDE**2, generator=generator)[: SIDE**2 // 2]]
    truth = prior.sample(1, generator)[0]
    trained, untrained = train(prior, average, training_steps), train(prior, average, 0)
    runs: list[tuple[str, Tensor, int, nn.Module | None]] = [("exact samples (the floor)", average, -1, None)]
    runs += [(f"MGDM, {g} gradient step{'s' * (g != 1)}", average, g, None) for g in (3, 1, 0)]
    runs += [("LAVPS, 0 gradient steps", average, 0, trained)]
    runs += [("LAVPS, 0 gradient steps, untrained", average, 0, untrained)]
    runs += [("unseen operator: MGDM, 3 gradient steps", hide, 3, None)]
    runs += [("unseen operator: LAVPS, 3 gradient steps", hide, 3, trained)]
    lines = []
    print(f"    {'method':42} distance  forwards  backwards  kept")
    for name, A, gradient_steps, model in runs:
        y = A @ truth + NOISE * torch.randn(len(A), dtype=DOUBLE, generator=torch.Generator().manual_seed(4))
        exact, kept, prior.forwards, prior.backwards = prior.posterior(A, y), [], 0, 0
        if gradient_steps < 0:
            samples = exact.sample(rows, generator)
        else:
            samples, kept = lavps(prior, A, y, seeded(rows, seed=5), gradient_steps, model)
        share = float(torch.stack(kept).double().mean()) if kept else math.nan
        lines.append((name, distance(samples, exact), prior.forwards, prior.backwards, share))
        print("    {:42} {:8.3f}  {:8}  {:9}  ".format(*lines[-1]) + (f"{share:.2f}" if kept else "   -"))
    return lines


if __name__ == "__main__":
    main()
