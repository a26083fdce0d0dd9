"""The README's examples run as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from problems import ConvDenoiser, images

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "my_network": ConvDenoiser(3),
        "my_function": lambda x: x.flip(-1),
        "y": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)).mul(0.3),
        "lavps": __import__("lavps"),
    }
    if "in_shape=(3, 64, 64)" in BLOCKS[number]:
        given["y"] = images(1, (3, 64, 64))
    exec(compile(BLOCKS[number], f"README.md, example {number}", "exec"), given)
    if "oracle_mixture" in BLOCKS[number]:
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == ["MGDM", "MMPS", "DPS"]
        assert all(float(line.split()[2].rstrip(",")) < 0.12 for line in lines), lines


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 3
