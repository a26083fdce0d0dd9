r"""The inputs that determine a restored file, and the key by which finished files are recognised.

.. math:: \mathrm{key} = \mathrm{sha256}(\text{input, measurement, prior, model, settings, samples, seed,
    version})

Two runs with the same key give the same image. The batch, the number of workers and the device are not part
of the key, nor is compilation: they affect rounding only.
"""

from __future__ import annotations

__all__ = ["Recipe", "fingerprint"]

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from ...amortization.few_step import few_step_folder
from ...checkpoints import load_prior, local_copy
from ...checkpoints.hashes import file_hash
from ...priors import LatentPrior
from ...restoration.config import RestorationConfig
from ...restoration.degraded import DegradedRecord, script_of
from ...restoration.presets import Quality, chosen, front_for
from ...samplers import Settings


def fingerprint(path: str | Path) -> str:
    """Return a hash that identifies a model (folder of this or another library, or file) without loading it.

    Raises:
        FileNotFoundError: The path does not exist.
    """
    found = local_copy(path)
    if found.is_file():
        return file_hash(found)
    if _is_native(found):  # loading checks the weights against the config's hash
        return file_hash(found / "config.json")
    files = sorted(file for file in found.rglob("*") if file.is_file())
    lines = [f"{file.relative_to(found).as_posix()} {file_hash(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@lru_cache(maxsize=64)
def _settings(
    folder: Path,
    amortized: bool,
    task: str | None,
    latent: bool,
    quality: Quality | None,
    evaluations: int | None,
) -> Settings:
    return chosen(front_for(folder, amortized, task, latent), quality, evaluations).settings


def _is_native(folder: Path) -> bool:
    """Return whether a folder was saved by this library: its config then holds the weights' SHA-256."""
    config = folder / "config.json"
    return config.is_file() and "weights_hash" in config.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """Models, settings and seed of a run, in plain values that pickle.

    Attributes:
        job: Prior, model, measurement, samples, seed and quality.
        own_noise: Whether each file has its own noise, a function of its content. Otherwise all files share
            the noise of the seed, as in ``lavps restore``.
        hashes: Hashes of prior, model, mask, kernel and script, verified by every worker.
        latent: Whether the prior is a latent prior, which has its own settings.
    """

    job: RestorationConfig
    own_noise: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False

    @classmethod
    def from_config(cls, job: RestorationConfig, own_noise: bool = False) -> Recipe:
        """Return the recipe of a job, with the hashes of the files on this machine."""
        if job.budget is not None:
            raise ValueError(
                "a budget depends on the clock, so a resumed run could differ: give --evaluations instead"
            )
        native = _is_native(local_copy(job.prior))
        latent = not native and isinstance(load_prior(job.prior, label=job.label), LatentPrior)
        return cls(job, own_noise, cls._hashes(job), latent)

    @staticmethod
    def _hashes(job: RestorationConfig) -> dict[str, str]:
        spec = job.measuring
        models = {"prior": job.prior, "model": job.model or few_step_folder(local_copy(job.prior))}
        files = {"mask": spec.mask, "kernel": spec.kernel, "script": script_of(spec.task)}
        return {name: fingerprint(path) for name, path in models.items() if path is not None} | {
            name: file_hash(Path(path)) for name, path in files.items() if path is not None
        }

    def verify(self) -> None:
        """Check that the models and files on this machine are those of the recipe.

        Raises:
            ValueError: A model or file differs.
        """
        for name, digest in self._hashes(self.job).items():
            if digest != self.hashes[name]:
                raise ValueError(f"the {name} on this machine differs from the one the run was started with")

    def settings(self, task: str | None) -> Settings:
        """Return the sampler settings for a task."""
        job = self.job
        if job.schedule is not None:
            return job.schedule.settings
        if job.settings is not None:
            return job.settings
        folder = local_copy(job.model or job.prior)
        return _settings(folder, job.model is not None, task, self.latent, job.quality, job.evaluations)

    def seed(self, sha256: str) -> int:
        """Return the seed of a file's noise."""
        return self.job.seed ^ int(sha256[:15], 16) if self.own_noise else self.job.seed

    def key(self, sha256: str, record: DegradedRecord | None = None) -> str:
        """Return the key of a file from its hash and its record in a manifest of ``lavps degrade``.

        Raises:
            ValueError: The measurement of the file is not specified.
        """
        spec = self.job.measuring.resolved(record)
        task, script = spec.task, script_of(spec.task)
        if task is not None and script is not None:
            task = task.rpartition(":")[2]
            if self.job.measuring.task is None:  # named by a trusted manifest, so not among the hashes
                task += f" of {file_hash(script)}"
        measurement = [task, spec.noise, None if spec.drawn is None else asdict(spec.drawn)]
        values = {
            "input": sha256,
            "measurement": measurement if spec.keep_known is None else [*measurement, spec.keep_known],
            "hashes": dict(self.hashes),
            "settings": self.settings(spec.task).to_dict(),
            "samples": self.job.samples,
            "seed": self.seed(sha256),
            "label": self.job.label,
            "version": version("lavps"),
        }
        if self.job.precision != "fp32":
            values["precision"] = self.job.precision
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
