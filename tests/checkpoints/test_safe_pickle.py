"""Checkpoint files execute nothing, and every refusal says why."""

from __future__ import annotations

import os
import pickle
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import lavps
from lavps.checkpoints import UnknownLayoutError
from lavps.checkpoints.reading import read_checkpoint
from lavps.checkpoints.safe_pickle import Instance, read_pickle
from support.persistent_pickles import SOURCE, Persistent, write


class Malicious:
    """Runs a command when unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def attacks(mark: Path) -> dict[str, Any]:
    return {
        "system": Malicious(os.system, f"touch {mark}"),
        "mkdir": Malicious(os.mkdir, str(mark)),
        "exec": Malicious(exec, f"open({str(mark)!r}, 'w')"),
        "getattr": Malicious(getattr, "", "format"),
        "import": Malicious(__import__, "os"),
        "load": Malicious(pickle.loads, pickle.dumps(Malicious(os.mkdir, str(mark)))),
        "torch": Malicious(torch.load, str(mark)),
        "numpy": Malicious(np.fromfile, str(mark)),
    }


@pytest.mark.parametrize("attack", attacks(Path("x")))
@pytest.mark.parametrize("form", ["pickle", "torch", "torch legacy", "beside weights"])
def test_a_malicious_file_executes_nothing(tmp_path: Path, attack: str, form: str) -> None:
    mark, path = tmp_path / "executed", tmp_path / "model.pt"
    payload: Any = attacks(mark)[attack]
    if form == "beside weights":
        payload = {"ema": {"time_embed.0.weight": torch.zeros(2, 2)}, "extra": payload}
    if form in ("pickle", "beside weights"):
        path.write_bytes(pickle.dumps(payload))
    else:
        torch.save(payload, path, _use_new_zipfile_serialization=form == "torch")
    with pytest.raises(ValueError, match=r"is refused.*Nothing of it was executed"):
        lavps.load_prior(path)
    assert not mark.exists()


def test_a_storage_within_a_pickle_executes_nothing(tmp_path: Path) -> None:
    mark, path = tmp_path / "executed", tmp_path / "model.pkl"
    inside = tmp_path / "inside.pt"
    torch.save(Malicious(os.mkdir, str(mark)), inside, _use_new_zipfile_serialization=False)
    path.write_bytes(pickle.dumps({"ema": Malicious(torch.storage._load_from_bytes, inside.read_bytes())}))
    with pytest.raises(ValueError, match="is refused"):
        lavps.load_prior(path)
    assert not mark.exists()


def test_source_code_in_a_pickle_is_dropped(tmp_path: Path) -> None:
    write(tmp_path / "net.pkl", Persistent("Net", {"width": 3}))
    read = read_pickle(tmp_path / "net.pkl")
    assert isinstance(read, Instance)
    assert (read.kind, read.arguments) == ("Net", {"width": 3})
    assert read.state["skip_scale"] == pytest.approx(0.5**0.5)
    assert SOURCE not in repr(read)
    assert "torch_utils" not in sys.modules


def test_classes_of_networks_are_read_as_their_names(tmp_path: Path) -> None:
    code = b"\x80\x02cmodels.hdit\nHDiT\n)\x81}X\x05\x00\x00\x00widthK\x07sb."
    (tmp_path / "net.pkl").write_bytes(code)
    read = read_pickle(tmp_path / "net.pkl")
    assert (read.kind, read.state) == ("HDiT", {"width": 7})
    assert "models" not in sys.modules


def test_what_a_pickle_alters_is_gone_with_it(tmp_path: Path) -> None:
    # BUILD on a class: an attempt to change what later files are rebuilt with.
    code = b"\x80\x02ccollections\nOrderedDict\nN}X\x05\x00\x00\x00itemsK\x01s\x86b."
    (tmp_path / "net.pkl").write_bytes(code)
    with pytest.raises(ValueError):  # noqa: PT011 (refused one way or the other)
        lavps.load_prior(tmp_path / "net.pkl")
    assert OrderedDict(a=1).items()
    (tmp_path / "ok.pkl").write_bytes(pickle.dumps(OrderedDict(a=torch.ones(2))))
    torch.testing.assert_close(read_checkpoint(tmp_path / "ok.pkl").tensors["a"], torch.ones(2))


def test_tensors_survive_a_pickle_exactly(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "view": base[1:3, ::2],
        "transposed": base.T,
        "half": base.half(),
        "index": torch.tensor([3, 1]),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(base + 1),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": tensors}))
    read = read_checkpoint(tmp_path / "a.pkl").tensors
    for name, value in tensors.items():
        expected = value.detach().float() if value.is_floating_point() else value
        torch.testing.assert_close(read[name], expected, rtol=0, atol=0)


def test_a_tensor_cannot_reach_beyond_its_data(tmp_path: Path) -> None:
    rebuild, (storage, *_) = torch.zeros(4).__reduce_ex__(2)
    bad = Malicious(rebuild, storage, 0, (1000,), (1,), False, OrderedDict())
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"model": {"a": bad}}))
    with pytest.raises(ValueError, match="reaches beyond its data"):
        read_checkpoint(tmp_path / "a.pkl")


@pytest.mark.parametrize("kind", ["safetensors", "pt", "legacy", "pkl"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.98])
def test_truncated_files_are_called_damaged(tmp_path: Path, kind: str, part: float) -> None:
    path = tmp_path / ("a.safetensors" if kind == "safetensors" else "a.pt")
    tensors = {f"layer.{i}.weight": torch.randn(32, 32) for i in range(4)}
    if kind == "safetensors":
        save_file(tensors, path)
    elif kind == "pkl":
        path.write_bytes(pickle.dumps(tensors))
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=kind == "pt")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match="damaged"):
        lavps.load_prior(path)


def test_other_files_are_called_by_what_they_begin_with(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"GIF89a not weights")
    with pytest.raises(ValueError, match=r"neither safetensors.*GIF89a"):
        lavps.load_prior(tmp_path / "a.pt")
    torch.save([1, 2, 3], tmp_path / "b.pt")
    with pytest.raises(ValueError, match="no weights by name, but a list"):
        lavps.load_prior(tmp_path / "b.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="0 checkpoint files"):
        lavps.load_prior(tmp_path / "empty")


def test_an_unknown_layout_lists_the_nearest_and_what_differs(tmp_path: Path) -> None:
    classifier = {
        "time_embed.0.weight": torch.zeros(8, 2),
        "time_embed.2.weight": torch.zeros(8, 8),
        "input_blocks.0.0.weight": torch.zeros(2, 3, 3, 3),
        "input_blocks.1.0.in_layers.0.weight": torch.zeros(2),
        "middle_block.0.in_layers.0.weight": torch.zeros(2),
        "middle_block.1.qkv.weight": torch.zeros(6, 2, 1),
        "out.0.weight": torch.zeros(2),
        "out.2.positional_embedding": torch.zeros(2, 65),
    }
    torch.save(classifier, tmp_path / "classifier.pt")
    with pytest.raises(UnknownLayoutError) as caught:
        lavps.load_prior(tmp_path / "classifier.pt")
    message = str(caught.value)
    first = next(line for line in message.splitlines() if ": has " in line)
    assert "guided-diffusion: has 7 of 11" in first
    assert "output_blocks.0.0.in_layers.0.weight" in first
    assert "time_embed.0.weight 8x2" in message
    assert len([line for line in message.splitlines() if ": has " in line]) == 3


def test_weights_of_diffusers_without_their_folder_are_named(tmp_path: Path) -> None:
    names = ("conv_in.weight", "time_embedding.linear_1.weight", "down_blocks.0.resnets.0.conv1.weight")
    torch.save({name: torch.zeros(2) for name in names}, tmp_path / "unet.pt")
    with pytest.raises(UnknownLayoutError, match=r"weights of diffusers .*: pass the folder") as caught:
        lavps.load_prior(tmp_path / "unet.pt")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("version", ["2.4.1", "2.5.1+cu121", "2.9.1"])
def test_pickles_are_refused_where_torch_cannot_read_them_safely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    weights = {"time_embed.0.weight": torch.zeros(2, 2)}
    torch.save(weights, tmp_path / "zip.pt")
    torch.save(weights, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps(weights))
    save_file(weights, tmp_path / "safe.safetensors")
    monkeypatch.setattr(torch, "__version__", version)
    for name in ("zip.pt", "legacy.pt", "plain.pkl"):
        with pytest.raises(ValueError, match=rf"{name} is a pickled checkpoint.* install torch 2\.10"):
            read_checkpoint(tmp_path / name)
    assert set(read_checkpoint(tmp_path / "safe.safetensors").tensors) == set(weights)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"_class_name": "UNet2DModel"}')
    (tmp_path / "model" / "diffusion_pytorch_model.bin").write_bytes(b"")
    pytest.importorskip("diffusers")
    with pytest.raises(ValueError, match=r"model is a pickled checkpoint"):
        lavps.load_prior(tmp_path / "model")
