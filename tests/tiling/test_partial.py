"""Denoiser evaluations of tiled images that were interrupted: the same evaluation continues, no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lavps.priors import GaussianPrior
from lavps.tiling import TiledPrior
from lavps.tiling.partial import PartialEvaluation


class Interrupted(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("change", ["nothing", "image", "time", "network", "run", "damage"])
def test_an_interrupted_evaluation_continues_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, change: str
) -> None:
    monkeypatch.setattr("lavps.tiling.partial._SHARE", 0.0)
    covariance = torch.eye(16, dtype=torch.float64)
    prior, other = (GaussianPrior(torch.full((1, 4, 4), mean), covariance) for mean in (0.3, 0.5))
    x, t = torch.randn(rows, 1, 13, 11, generator=torch.Generator().manual_seed(0)), torch.tensor(0.4)
    counts: list[int] = []

    def progress(count: int) -> None:
        counts.append(count)
        if len(counts) == 3 and sum(counts) == 6:
            raise Interrupted

    partial = PartialEvaluation(tmp_path / "evaluation", "key", 0.0)
    tiled = TiledPrior(prior, window=4, batch=2, progress=progress, partial=partial)
    with pytest.raises(Interrupted):
        tiled.denoise(x, t)
    assert partial.windows == 4  # the third call was not saved
    counts.clear()
    counts.append(0)
    again = PartialEvaluation(tmp_path / "evaluation", "other" if change == "run" else "key", 1e9)
    if change == "damage":
        again.file.write_bytes(again.file.read_bytes()[:-10])
    given = replace(tiled, prior=other if change == "network" else prior, partial=again)
    x = x + 1e-3 if change == "image" else x
    t = torch.tensor(0.41) if change == "time" else t
    found = given.denoise(x, t)
    whole = replace(given, partial=None, progress=None).denoise(x, t)
    assert torch.equal(found, whole)
    total = rows * given.count((13, 11))
    assert sum(counts) == (total - 4 if change == "nothing" else total)
    again.remove()
    assert not list(tmp_path.iterdir())
