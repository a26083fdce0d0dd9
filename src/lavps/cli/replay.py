"""``lavps replay``: repeats a restoration from its manifest, and compares the samples bit by bit.

The same files, weights, settings and seed on the same device with as many threads give the same numbers.
Other files or weights raise an error; other versions or another device are reported.
"""

from __future__ import annotations

__all__ = ["Replay"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from ..checkpoints.hashes import file_hash
from ..devices import resolve_device
from ..restoration.config import RestorationConfig
from ..restoration.degraded import OperatorDraw, script_of
from ..restoration.job import FileRestorer
from ..restoration.manifest import Manifest, found, versions
from ..restoration.spec import MeasurementSpec
from .failures import fatal
from .old_manifests import stored_settings
from .options import Device, File, Folder, Model, PriorPath


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Repeat a restoration from its manifest, and check that the samples are identical to the last bit."""

    manifest: Annotated[File[Path], tyro.conf.Positional]  # Manifest that lavps restore wrote (photo.json).
    output: Folder[Path | None] = None  # Folder for the files; without one, samples are only compared.
    input: File[Path | None] = None  # Measured file, if it was moved.
    prior: PriorPath[str | None] = None  # Prior, if it was moved.
    inference_model: Model[str | None] = None  # Inference model, if it was moved.
    trust_manifest: bool = False  # Execution of the Python file that the manifest names as its operator.
    device: Device[str | None] = None  # cpu, cuda, mps or xpu; default the manifest's.

    def run(self) -> None:
        """Compare; exit with code 1 if the samples differ or cannot be compared."""
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
            reason = "; ".join(differing) or "no recorded value differs: this machine's arithmetic does"
            print(f"different: the samples are not those of {self.manifest} ({reason})")
            raise SystemExit(1)
        print(f"identical: the {workshop.job.samples} sample(s) of {file.name}, to the last bit")

    def _workshop(self, manifest: Manifest) -> FileRestorer:
        """Load the models of the manifest, and check that files and weights are the same."""
        folder, recorded, sampling = self.manifest.parent, manifest.measurement, manifest.sampling
        files: dict[str, Path | None] = dict.fromkeys(("mask", "kernel", "script"))
        for name in files:
            if (record := recorded[name]) is not None:
                files[name] = file = Path(found(record["path"], folder))
                _require_same(f"the {name}", file, record["sha256"])
        task, drawn = recorded["task"], recorded["drawn"]
        if script_of(task) is not None or files["script"] is not None:
            if not self.trust_manifest:
                raise ValueError(
                    f"{self.manifest} names the Python file of {task}, which is not executed: read the file, "
                    "then give --trust-manifest"
                )
            if files["script"] is None:
                raise ValueError(f"{self.manifest} has no sha256 of the Python file of {task}")
            task = f"{files['script']}:{task.rpartition(':')[2]}"
        if drawn is not None:
            drawn = OperatorDraw(drawn["seed"], drawn["item"], tuple(drawn["image_shape"]))
        model = self.inference_model
        if model is None and manifest.model is not None:
            model = found(manifest.model["path"], folder)
        workshop = FileRestorer(
            RestorationConfig(
                self.prior or found(manifest.prior["path"], folder),
                model,
                MeasurementSpec(
                    task,
                    recorded["noise"],
                    files["mask"],
                    files["kernel"],
                    drawn,
                    keep_known=recorded.get("keep_known"),
                ),
                sampling["samples"],
                sampling["seed"],
                stored_settings(manifest.settings, manifest.model is not None),
                batch_size=sampling["batch_size"],
                tile_batch=sampling["tile_batch"],
                device=resolve_device(self.device or manifest.machine["device"]),
                label=sampling.get("label"),
                precision=sampling.get("precision", "fp32"),
                compiled=sampling.get("compiled", False),
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
        """Return the differences that may change the numbers."""
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
        raise FileNotFoundError(f"{what} is no longer at {file}: give its path with --input, or put it back")
    if file_hash(file) != sha256:
        raise ValueError(f"{what} {file} has changed: its sha256 is not {sha256}")
