"""The standalone example is the library's method: same start and same noise give the same samples."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import lavps
from lavps.guidance import Amortized, Gradient, MidpointModel
from lavps.random import NoiseStreams, Purpose
from lavps.samplers import OutOfDistributionWarning

PATH = Path(__file__).parents[2] / "examples" / "lavps_in_200_lines.py"
PURPOSES = {
    "initial": Purpose.INITIAL,
    "transition": Purpose.TRANSITION,
    "objective": Purpose.OBJECTIVE,
    "variational": Purpose.VARIATIONAL,
    "renoise": Purpose.RENOISE,
}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(PATH.stem, PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[PATH.stem] = module
    spec.loader.exec_module(module)
    return module


standalone = load()


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(standalone, "K", 12)
    return 12


def library_prior(mixture: object) -> lavps.GaussianMixturePrior:
    weights, means, covariances = mixture.weights, mixture.means, mixture.covariances  # type: ignore[attr-defined]
    return lavps.GaussianMixturePrior(
        weights, means.reshape(-1, 1, 8, 8), covariances, lavps.Flow(), torch.float64
    )


def measurement(mixture: object, rows: int = 12) -> tuple[Tensor, Tensor]:
    """A random operator (rows, 64) and one measurement by it."""
    generator = torch.Generator().manual_seed(8)
    A = torch.randn(rows, 64, dtype=torch.float64, generator=generator) / 8
    truth = mixture.sample(1, generator)[0]  # type: ignore[attr-defined]
    return A, A @ truth + 0.05 * torch.randn(rows, dtype=torch.float64, generator=generator)


def problem_of(A: Tensor, y: Tensor) -> lavps.InverseProblem:
    operator = lavps.operators.CallableOperator(lambda x: x.flatten(1) @ A.T, (1, 8, 8))
    return lavps.InverseProblem(y[None], operator, lavps.GaussianNoise(0.05))


def library_noise(rows: int) -> object:
    streams = NoiseStreams.from_seed(1, seed=0, num_samples=rows)
    like = torch.empty(0, dtype=torch.float64)
    return lambda what, k, number: streams.normal(PURPOSES[what], (64,), like, step=k, index=number)


def as_warm_start(model: nn.Module, A: Tensor) -> MidpointModel:
    """Wrap the example's model in the library's interface."""

    def start(context: lavps.Context) -> lavps.DiagonalGaussian:
        x_0, x_t = context.x_0.flatten(1), context.x_t.flatten(1)
        s, t = (time.expand(len(x_0))[:, None] for time in (context.s, context.t))
        mean, log_std = model(standalone.Context(x_0, x_t, s, t, context.problem.y, A))
        return lavps.DiagonalGaussian(mean.reshape_as(context.x_t), log_std.reshape_as(context.x_t))

    return start


def clumsy_model() -> nn.Module:
    """Random weights: right for some rows and wrong for others, so that the safeguard has work to do."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = standalone.InferenceModel(32)
        nn.init.normal_(model.network[-1].weight, std=0.04)
    return model


@pytest.mark.parametrize("gradient_steps", [0, 1, 3])
@pytest.mark.parametrize("amortized", [False, True], ids=["MGDM", "LAVPS"])
def test_same_noise_gives_the_library_s_samples(gradient_steps: int, amortized: bool, few_steps: int) -> None:
    rows, mixture = 6, standalone.image_mixture()
    A, y = measurement(mixture)
    model = clumsy_model() if amortized else None
    samples, kept = standalone.lavps(mixture, A, y, library_noise(rows), gradient_steps, model)
    prior = library_prior(mixture)
    guidance = (
        Gradient(gradient_steps) if model is None else Amortized(as_warm_start(model, A), gradient_steps)
    )
    sampler = lavps.MGDM(prior, guidance=guidance, num_steps=few_steps)
    with (
        pytest.warns(OutOfDistributionWarning) if amortized else torch.no_grad()
    ):  # many fall back, and it says so
        posterior = sampler.sample(problem_of(A, y), rows, seed=0)
    assert posterior.samples is not None
    torch.testing.assert_close(posterior.samples[0].flatten(1), samples, rtol=1e-6, atol=1e-8)
    if amortized:
        decisions = torch.stack(kept)
        assert 0.1 < decisions.double().mean() < 0.9, "both verdicts must occur"
        assert torch.equal(posterior.trace.accepted == 1, decisions)


def test_denoiser_and_posterior_are_the_library_s() -> None:
    mixture = standalone.image_mixture()
    A, y = measurement(mixture)
    prior, exact = library_prior(mixture), mixture.posterior(A, y)
    x = mixture.sample(5, torch.Generator().manual_seed(0))
    t = torch.linspace(0.1, 1.0, 5, dtype=torch.float64)
    found = prior.denoise(x.reshape(5, 1, 8, 8), t).flatten(1)
    torch.testing.assert_close(mixture.denoise(x, t[:, None]), found)
    [expected] = lavps.exact_posterior(prior, problem_of(A, y))
    torch.testing.assert_close(exact.weights, expected.weights)
    torch.testing.assert_close(exact.means, expected.means)
    torch.testing.assert_close(exact.covariances, expected.covariances, rtol=1e-6, atol=1e-9)


def documented() -> dict[str, list[str]]:
    """The lines of the table in the example's docstring."""
    lines = re.findall(r"^    (\S.{40,41}?) +([\d.]+) +(\d+) +(\d+) +([\d.]+|-)$", standalone.__doc__, re.M)
    return {name.strip(): list(numbers) for name, *numbers in lines}


@pytest.mark.slow
def test_it_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    expected, found = documented(), standalone.main()
    assert len(expected) == 8
    assert [name for name, *_ in found] == list(expected)
    for name, distance, forwards, backwards, kept in found:
        wanted = expected[name]
        assert abs(distance - float(wanted[0])) <= 0.03, (name, distance, wanted)
        assert [str(forwards), str(backwards)] == wanted[1:3]
        assert (math.isnan(kept) and wanted[3] == "-") or abs(kept - float(wanted[3])) <= 0.1, (name, kept)
    assert capsys.readouterr().out.splitlines()[0] == re.search(r"    method.*", standalone.__doc__)[0]


def test_it_is_one_file_of_200_lines_with_only_torch() -> None:
    text = PATH.read_text()
    tree = ast.parse(text)
    imported = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} - sys.stdlib_module_names == {"torch"}
    after = text.splitlines()[tree.body[0].end_lineno :]
    assert len([line for line in after if line.strip()]) <= 200
