"""Calibration tests agree with those of sbi on the samples of an exact and of a wrong posterior."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lavps.evaluation import ranks, tarp_ranks

pytest.importorskip("sbi")

COUNT, SAMPLES, SIZE = 300, 40, 3


def draws(scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Truths, posterior samples whose spread is wrong by a factor, and reference points."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    truth = normal(COUNT, SIZE)
    y = truth + normal(COUNT, SIZE)  # unit noise: the posterior is N(y / 2, 1 / 2)
    samples = y[:, None] / 2 + scale * 0.5**0.5 * normal(COUNT, SAMPLES, SIZE)
    return truth, samples, normal(COUNT, SIZE)


class Stored:
    """A posterior whose samples are given, in sbi's interface."""

    def __init__(self, samples: Tensor) -> None:
        self.samples = samples

    def sample_batched(self, shape: Any, x: Tensor, **_: Any) -> Tensor:
        """Return the samples (N, M, D)."""
        assert tuple(shape) == (SAMPLES,)
        assert len(x) == COUNT
        return self.samples.transpose(0, 1)


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_ranks_are_those_of_sbi(scale: float) -> None:
    from sbi.diagnostics import run_sbc

    truth, samples, _ = draws(scale)
    theirs, _ = run_sbc(
        truth, torch.zeros(COUNT, 1), Stored(samples), num_posterior_samples=SAMPLES, show_progress_bar=False
    )
    torch.testing.assert_close(ranks(truth, samples), theirs.double())


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_expected_coverage_is_that_of_sbi(scale: float) -> None:
    from sbi.diagnostics import run_tarp

    truth, samples, references = draws(scale)
    theirs, levels = run_tarp(
        truth,
        torch.zeros(COUNT, 1),
        Stored(samples),
        references=references,
        num_posterior_samples=SAMPLES,
        show_progress_bar=False,
        num_bins=7,  # no edge is a share k / 40
        z_score_theta=False,
    )
    share = tarp_ranks(truth, samples, references) / SAMPLES
    ours = torch.stack([(share < level).double().mean() for level in levels[1:-1]])
    torch.testing.assert_close(ours, theirs[1:-1].double(), atol=1e-6, rtol=0)
