"""Where memory runs out a run is cut up, and gives what it would have given cut up from the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lavps.cli import main
from lavps.devices import is_out_of_memory
from lavps.restoration import FileRestorer, MeasurementSpec, RestorationConfig
from lavps.restoration.memory import BatchLimits, within_memory
from lavps.tiling import TiledPrior
from support.restoring import picture, save, write_prior

FULL = "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you tried"
# A limit on the address space, set once a small run has loaded all there is to load: enough for a part of the
# rows asked for, not for all.
# The C library must give back what is freed: by default it keeps the addresses of blocks below 32 MB.
FRUGAL = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_ARENA_MAX": "1"}
LIMITED = """
import json, resource, sys
from dataclasses import replace
from pathlib import Path
from lavps.restoration import RestorationConfig, MeasurementSpec, FileRestorer

prior, file, samples, megabytes = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
config = RestorationConfig(prior, None, MeasurementSpec("denoise", 0.05), 2, quality="fast")
FileRestorer(config).restore(file)
restorer = FileRestorer(replace(config, samples=samples))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
used = int(status["VmSize"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20, resource.RLIM_INFINITY))
restored, manifest = restorer.restore(file)
finite = bool(restored.samples.isfinite().all())
print(json.dumps(manifest.sampling | {"finite": finite, "notes": manifest.notes}))
"""


def test_what_is_and_what_is_not_a_lack_of_memory() -> None:
    for error in (
        MemoryError(),
        RuntimeError(FULL),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not execute a primitive"),
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
    ):
        assert is_out_of_memory(error)
    for other in (RuntimeError("shape mismatch"), ValueError("out of memory")):
        assert not is_out_of_memory(other)


def test_halves_are_tried_until_one_fits() -> None:
    tried = []

    def work(at_once: BatchLimits) -> str:
        tried.append((at_once.rows, at_once.windows))
        if at_once.rows > 2:
            raise RuntimeError(FULL)
        return "done"

    assert within_memory(work, BatchLimits(9, 3)) == ("done", BatchLimits(2, 1))
    assert tried == [(9, 3), (4, 1), (2, 1)]

    def hopeless(at_once: BatchLimits) -> str:
        raise MemoryError

    with pytest.raises(MemoryError, match="one sample and one window at a time: restore a smaller image"):
        within_memory(hopeless, BatchLimits(4, 16))

    def broken(at_once: BatchLimits) -> str:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        within_memory(broken, BatchLimits(4, 16))


def test_a_restoration_in_halves_is_that_restoration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denoiser that takes two windows at most: what is restored equals a run that asked for two."""
    write_prior(tmp_path / "prior")
    files = [save(tmp_path / f"{name}.png", picture(12, 12)) for name in "ab"]
    asked = MeasurementSpec("denoise", 0.05)
    expected, _ = FileRestorer(
        RestorationConfig(str(tmp_path / "prior"), None, asked, 4, batch_size=1, tile_batch=2)
    ).restore(files[0])
    denoise, refused = TiledPrior.denoise, []

    def cramped(self: TiledPrior, x_t: Tensor, t: Tensor) -> Tensor:
        if self.batch > 2:
            refused.append(self.batch)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return denoise(self, x_t, t)

    monkeypatch.setattr(TiledPrior, "denoise", cramped)
    restorer = FileRestorer(RestorationConfig(str(tmp_path / "prior"), None, asked, 4))
    found, manifest = restorer.restore(files[0], tmp_path / "out")
    assert refused == [16, 8, 4]
    assert (manifest.sampling["batch_size"], manifest.sampling["tile_batch"]) == (1, 2)
    assert "memory ran out: 1 sample(s), 2 window(s) at a time" in manifest.notes
    assert found.samples_sha256 == expected.samples_sha256
    _, following = restorer.restore(files[1], tmp_path / "out")
    assert len(refused) == 3  # what fits is known by now
    assert following.sampling["tile_batch"] == 2
    main(["replay", str(tmp_path / "out" / "a.json")])


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
def test_memory_that_really_ends(tmp_path: Path) -> None:
    prior, file = write_prior(tmp_path / "prior"), save(tmp_path / "a.png", picture(8, 8))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, prior, file, "3000", "120"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | FRUGAL,
    )
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)
    assert 100 < about["batch_size"] < 3000
    assert about["finite"]
    assert any("memory ran out" in note for note in about["notes"])
