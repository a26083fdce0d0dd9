"""Error rate of the safeguard's decisions, and its effect on an operator not seen in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import lavps
from lavps.amortization import ContextSource, InferenceModel
from lavps.evaluation import sliced_wasserstein, tempered_posterior
from lavps.guidance import Amortized, Gradient, Linearized, MidpointModel
from lavps.operators import CallableOperator
from lavps.operators.families import FixedOperator
from lavps.random import NoiseStreams, Purpose
from lavps.variational import Context, DiagonalGaussian

REFERENCE_DRAWS = 128
NONLINEAR_OBSERVATIONS = 4
RULES = {
    "common noise, closed-form KL (ours)": (True, True),
    "independent noise, closed-form KL": (False, True),
    "common noise, single-sample KL": (True, False),
    "independent noise, single-sample KL (the authors')": (False, False),
}


def log_density(q: DiagonalGaussian, x: Tensor) -> Tensor:
    """log q(x) per row, up to the constant of pi."""
    z = (x - q.mean) * (-q.log_std).exp()
    return (-0.5 * z.square() - q.log_std.expand_as(z)).flatten(1).sum(1)


def losses(
    prior: lavps.GaussianMixturePrior, c: Context, q: DiagonalGaussian, z: Tensor
) -> tuple[Tensor, Tensor]:
    """L at q with noise z: with the KL in closed form, and with the KL of this one sample."""
    x_s = q.sample(z)
    misfit = -c.problem.log_likelihood(prior.denoise(x_s, c.s))
    return misfit + q.kl(c.bridge), misfit + log_density(q, x_s) - log_density(c.bridge, x_s)


@torch.no_grad()
def verdicts(
    prior: lavps.GaussianMixturePrior,
    problems: dict[str, lavps.InverseProblem],
    models: dict[str, InferenceModel],
    count: int = 2000,
) -> dict[str, Any]:
    """Share of wrong verdicts of each rule, and what they cost, against the mean of many draws of z.

    Contexts of Algorithm 1 for the task; candidates of the task's own model, and of the other task's.
    """
    result: dict[str, Any] = {}
    for task, problem in problems.items():
        for asked, model in models.items():
            source = ContextSource(
                lavps.MGDM(prior, guidance=Amortized(model, 0)),
                FixedOperator(problem.operator),
                problem.noise,
            )
            c = source.draw(prior.sample(count, seed=5), range(count))
            streams = NoiseStreams.from_seed(count, 11)

            def z(index: int, c: Context = c, streams: NoiseStreams = streams) -> Tensor:
                return streams.normal(Purpose.OBJECTIVE, c.x_t.shape[1:], c.x_t, index=index)

            warm = model(c)
            gaps = torch.stack(
                [
                    losses(prior, c, warm, z(i))[0] - losses(prior, c, c.bridge, z(i))[0]
                    for i in range(2, REFERENCE_DRAWS + 2)
                ]
            )
            true_gap, error = gaps.mean(0), gaps.std(0) / REFERENCE_DRAWS**0.5
            sure = true_gap.abs() > 3 * error  # where the reference itself knows who is better
            pair = {
                shared: (losses(prior, c, warm, z(0)), losses(prior, c, c.bridge, z(0 if shared else 1)))
                for shared in (True, False)
            }
            rows = {}
            for rule, (shared, closed) in RULES.items():
                candidate, zero = (values[0 if closed else 1] for values in pair[shared])
                accepted = candidate <= zero
                wrong = (accepted != (true_gap <= 0)) & sure
                by_time = [
                    float(wrong[sure & (bins == b)].double().mean())
                    for bins in [(c.t * 10).long().clamp(max=9)]
                    for b in range(10)
                ]
                rows[rule] = {
                    "wrong": float(wrong[sure].double().mean()),
                    "accepted": float(accepted.double().mean()),
                    "cost_nats": float(torch.where(wrong, true_gap.abs(), 0.0).mean()),
                    "wrong_by_time": by_time,
                }
            result[f"{task}, model of {asked}"] = {
                "rules": rows,
                "truly_better": float((true_gap <= 0).double().mean()),
                "decidable": float(sure.double().mean()),
            }
    return result


def nonlinear(
    prior: lavps.GaussianMixturePrior, models: dict[str, InferenceModel], samples: int
) -> dict[str, Any]:
    """A random nonlinear operator, y = tanh(2 W x): SW2 to a sequential Monte-Carlo reference, beside MGDM's."""
    pixels = prior.shape[-1] * prior.shape[-2]
    weight = (
        NoiseStreams.from_seed(pixels // 2, 17).normal(Purpose.OPERATOR, (pixels,), torch.zeros(()))
        / (pixels / 8) ** 0.5
    )

    def measure(x: Tensor) -> Tensor:
        return torch.tanh(2 * x.flatten(1) @ weight.to(x).T)

    observations = NONLINEAR_OBSERVATIONS
    truth = prior.sample(observations, seed=3)
    operator = CallableOperator(measure, prior.shape, linear=False)
    problem = lavps.InverseProblem.simulate(truth, operator, lavps.GaussianNoise(0.05))
    reference = tempered_posterior(prior, problem, 2 * samples)
    floor = [sliced_wasserstein(reference[i, ::2], reference[i, 1::2]) for i in range(observations)]
    rows = [
        {
            "method": "reference against itself",
            "reference": None,
            "sw2": sum(floor) / observations,
            "sw2_by_item": floor,
            "chi_square": None,
            "acceptance": None,
        }
    ]
    for label, minimizer in (("Adam", lavps.Adam()), ("whitened gradient", lavps.WhitenedGradient())):
        for steps in (1, 3):
            starts: dict[str, MidpointModel] = {
                f"LAVPS, {task} model": model for task, model in models.items()
            }
            starts["MGDM (linearized)"] = Linearized()
            zero = f"MGDM ({label})"
            guidances = {zero: Gradient(steps, minimizer)} | {
                f"{name}, {label}": Amortized(model, steps, minimizer) for name, model in starts.items()
            }
            for name, guidance in guidances.items():
                posterior = lavps.MGDM(prior, guidance=guidance).sample(problem, samples)
                assert posterior.samples is not None
                away = [
                    sliced_wasserstein(posterior.samples[i], reference[i, ::2].float())
                    for i in range(observations)
                ]
                rows.append(
                    {
                        "method": f"{name}, K=100, G={steps}",
                        "reference": None if name == zero else f"{zero}, K=100, G={steps}",
                        "sw2": sum(away) / observations,
                        "sw2_by_item": away,
                        "chi_square": float(
                            problem.repeat(samples).chi_square(posterior.samples.flatten(0, 1)).mean()
                        ),
                        "acceptance": posterior.trace.acceptance,
                    }
                )
    return {"rows": rows}
