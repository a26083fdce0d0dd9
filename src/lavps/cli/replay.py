"""``lavps replay``: a restoration made again from its manifest, and compared bit for bit.

The same files, weights, settings and seed on the same device with as many threads give the same numbers. What
is not the same is refused (files and weights) or said (versions, device).
"""

from __future__ import annotations

__all__ = ["Replay"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from ..amortization.hashes import file_hash
from ..restoration.arrays import Drawn
from ..restoration.job import Job, Workshop
from ..restoration.manifest import Manifest, found, versions
from ..restoration.measuring import Measuring
from ..restoration.presets import Settings
from .failures import fatal


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Make a restoration again from its manifest, and check that it is the same to the last bit."""

    manifest: Annotated[Path, tyro.conf.Positional]  # photo.json, as lavps restore wrote it
    output: Path | None = None  # folder to write the files to again; left out: only compare
    input: Path | None = None  # where the measured file is now, if it was moved
    prior: str | None = None  # where the prior is now, if it was moved
    inference_model: str | None = None  # where the inference model is now, if it was moved
    device: str | None = None  # default the manifest's

    def run(self) -> None:
        """Exit code 0 if identical, 1 if refused or different."""
        with fatal("replay"):
            manifest = Manifest.read(self.manifest)
            folder = self.manifest.parent
            file = self.input or Path(found(manifest.input["path"], folder))
            _require_same("the input", file, manifest.input["sha256"])
            workshop = self._workshop(manifest)
            if self.output is not None:
                if self.output.resolve() == file.parent.resolve():
                    raise ValueError(f"--output {self.output} holds {file.name} itself")
                self.output.mkdir(parents=True, exist_ok=True)
            differing = self._differing(manifest)
            for difference in differing:
                print(f"note: {difference}")
            torch.set_num_threads(manifest.machine["threads"])
            restored, _ = workshop.restore(file, self.output)
        if restored.samples_sha256 != manifest.result["samples_sha256"]:
            reason = (
                "; ".join(differing) or "nothing that is recorded differs: this machine's arithmetic does"
            )
            print(f"different: the samples are not those of {self.manifest} ({reason})")
            raise SystemExit(1)
        print(f"identical: the {workshop.job.samples} sample(s) of {file.name}, to the last bit")

    def _workshop(self, manifest: Manifest) -> Workshop:
        """Loaded as it was, or refused."""
        folder, asked, sampling = self.manifest.parent, manifest.measurement, manifest.sampling
        places = {
            name: None if asked[name] is None else Path(found(asked[name]["path"], folder))
            for name in ("mask", "kernel", "script")
        }
        for name, place in places.items():
            if place is not None:
                _require_same(f"the {name}", place, asked[name]["sha256"])
        task = asked["task"]
        if places["script"] is not None:
            task = f"{places['script']}:{task.rpartition(':')[2]}"
        drawn = asked["drawn"]
        if drawn is not None:
            drawn = Drawn(drawn["seed"], drawn["item"], tuple(drawn["image_shape"]))
        model = self.inference_model
        if model is None and manifest.model is not None:
            model = found(manifest.model["path"], folder)
        workshop = Workshop(
            Job(
                self.prior or found(manifest.prior["path"], folder),
                model,
                Measuring(task, asked["noise"], places["mask"], places["kernel"], drawn),
                sampling["samples"],
                sampling["seed"],
                Settings.from_dict(manifest.settings),
                batch_size=sampling["batch_size"],
                tile_batch=sampling["tile_batch"],
                device=self.device or manifest.machine["device"],
                label=sampling.get("label"),
            )
        )
        for what, record, digest in zip(
            ("the prior", "the inference model"),
            (manifest.prior, manifest.model),
            workshop.restorer.hashes,
            strict=True,
        ):
            if (record or {}).get("weights_hash") != digest:
                raise ValueError(f"{what} has other weights than the one of {self.manifest}: {digest}")
        return workshop

    def _differing(self, manifest: Manifest) -> list[str]:
        """What is not as it was, and may change the numbers."""
        then, now = manifest.machine["versions"], versions()
        differing = [
            f"{name} was {then.get(name)}, is {now.get(name)}"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        ]
        device: Any = manifest.machine["device"]
        if self.device not in (None, device):
            differing.append(f"the device was {device}, is {self.device}")
        return differing


def _require_same(what: str, file: Path, sha256: str) -> None:
    if not file.is_file():
        raise FileNotFoundError(f"{what} is not at {file} any more: say where with --input, or put it back")
    if file_hash(file) != sha256:
        raise ValueError(f"{what} {file} has changed since: its sha256 is not {sha256}")
