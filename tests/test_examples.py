"""Examples in docstrings: they run, and the most used public names have one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import lavps
from lavps import guidance, operators, samplers

# Modules that need optional libraries at import are left to the tests of the applications.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(lavps.__path__, "lavps.")
    if not module.name.startswith(("lavps.apps", "lavps.cli"))
]
WITH_EXAMPLE = [
    *(lavps.MGDM, lavps.LAVPS, lavps.MGPS, lavps.DPS, lavps.MMPS, lavps.DDIM, lavps.Settings, lavps.restore),
    *(lavps.DiffPIR, lavps.WienerPIR, lavps.FusedPIR, lavps.TunedPIR, lavps.PiGDM, lavps.DDNM, lavps.DAPS),
    *(lavps.InverseProblem, lavps.GaussianNoise, lavps.PoissonNoise, lavps.exact_posterior, lavps.Flow),
    *(lavps.GaussianPrior, lavps.GaussianMixturePrior, lavps.NetworkPrior, lavps.EDMPrior, lavps.VPLinear),
    *(lavps.RescaledPrior, lavps.Rescheduled),
    *(lavps.InferenceModel, lavps.ConditionalDenoiser, lavps.DiagonalGaussian),
    *(guidance.Gradient, guidance.Linearized, guidance.Amortized, guidance.switch),
    *(operators.AveragePool, operators.Mask, operators.Blur, operators.check, operators.from_numpy),
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


@pytest.mark.parametrize("public", WITH_EXAMPLE, ids=lambda public: public.__name__)
def test_the_most_used_names_have_an_example(public: object) -> None:
    assert ">>>" in (public.__doc__ or "")


@pytest.mark.parametrize(
    "name",
    [
        "MGDM",
        "MGPS",
        "DPS",
        "MMPS",
        "DDIM",
        "Supervised",
        "DiffPIR",
        "WienerPIR",
        "FusedPIR",
        "TunedPIR",
        "PiGDM",
        "DDNM",
        "DAPS",
    ],
)
def test_samplers_state_their_reference_and_bias(name: str) -> None:
    sampler = getattr(samplers, name)
    text = f"{sampler.__doc__} {importlib.import_module(sampler.__module__).__doc__}"
    assert "Reference" in text
    assert "iased" in text or "exact" in text
