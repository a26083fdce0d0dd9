"""What depends on the installed version of torch; the oldest permitted one runs these tests, too."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lavps.checkpoints.reading import read_checkpoint

SAFE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


class Attack:
    """An object whose unpickling creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle"])
def test_pickled_checkpoints_are_read_only_by_a_torch_that_is_safe(tmp_path: Path, form: str) -> None:
    weights, file, executed = {"weight": torch.ones(2, 2)}, tmp_path / "weights", tmp_path / "executed"
    for content in (weights, weights | {"attack": Attack(executed)}):
        if form == "pickle":
            file.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
        if SAFE and content is weights:
            assert torch.equal(read_checkpoint(file).tensors["weight"], weights["weight"])
        else:
            reason = "is refused" if SAFE else r"is a pickled checkpoint.* install torch 2\.10"
            with pytest.raises(ValueError, match=reason):
                read_checkpoint(file)
    assert not executed.exists()


def test_safetensors_are_read_by_every_torch(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "weights.safetensors")
    assert torch.equal(read_checkpoint(tmp_path / "weights.safetensors").tensors["weight"], torch.ones(2, 2))
