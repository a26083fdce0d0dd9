"""The defaults of the samplers are those that the study measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lavps.samplers import (
    DAPS,
    DDNM,
    MGDM,
    MMPS,
    UNBOUND,
    DiffPIR,
    PiGDM,
    Sampler,
    Settings,
    WienerPIR,
)

RECORDS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "benchmarks" / "defaults.json").read_text()
)
# Number of settings tried; gradients through the denoiser are expensive. DPS is not among them: large step
# sizes have a lower LPIPS, but are far from exact posteriors (tests/oracle/test_exact_posteriors.py).
TRIED = {DiffPIR: 9, WienerPIR: 9, DDNM: 9, MGDM: 9, DAPS: 9, PiGDM: 9, MMPS: 6}


@pytest.mark.parametrize("sampler", list(TRIED))
def test_a_default_is_close_to_the_best_setting_on_every_task(sampler: type[Sampler]) -> None:
    tried = [record for record in RECORDS if record["sampler"] == sampler.__name__]
    default = Settings(sampler(UNBOUND))  # type: ignore[call-arg]
    measured = {Settings.from_dict(record["method"]): record for record in tried}
    assert len(measured) == len(tried) >= TRIED[sampler]
    [found] = [r for s, r in measured.items() if s == default.with_num_steps(s.num_steps)]
    for task in ("sr4", "motion-blur", "centre-box"):
        assert found[task]["lpips"] <= min(r[task]["lpips"] for r in tried) + 0.005
