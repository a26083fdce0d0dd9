r"""What a restored file is a function of, and the key that says whether it is there already.

.. math:: \mathrm{key} = \mathrm{sha256}(\text{input, measurement, prior, model, settings, samples, seed,
    version})

Two runs with the same key give the same picture. The batch, the number of workers and the device are not part
of it: they change roundings at most.
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
from typing import Any

from ...amortization import load_prior
from ...amortization.hashes import file_hash
from ...priors import LatentPrior
from ...priors.foreign import local_copy
from ..arrays import DegradedRecord
from ..job import Job
from ..presets import Settings, front_for, of_quality


def fingerprint(path: str | Path) -> str:
    """What tells a model from others without loading it: folder of this library, of another, or file.

    Raises:
        FileNotFoundError: there is none.
    """
    found = local_copy(path)
    if found.is_file():
        return file_hash(found)
    if _is_ours(found):  # weights of another hash than the config's are not loaded
        return file_hash(found / "config.json")
    files = sorted(file for file in found.rglob("*") if file.is_file())
    listed = [f"{file.relative_to(found).as_posix()} {file_hash(file)}" for file in files]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()


@lru_cache(maxsize=64)
def _chosen(folder: Path, amortized: bool, task: str | None, latent: bool, quality: Any) -> Settings:
    return of_quality(front_for(folder, amortized, task, latent), quality).settings


def _is_ours(folder: Path) -> bool:
    """Whether a folder is one of this library, whose config holds the sha256 of the weights."""
    config = folder / "config.json"
    return config.is_file() and "weights_hash" in config.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Recipe:
    """How all files of a run are restored, in plain values that pickle.

    Attributes:
        job: prior, model, measurement, samples, seed, quality.
        own_noise: every file has noise of its own, a function of its content; else all have that of the
            seed, which ``lavps restore`` gives them too.
        hashes: of prior, model, mask, kernel and script; a worker that finds others refuses to work.
        latent: whether the prior is one of latents, which has settings of its own.
    """

    job: Job
    own_noise: bool = False
    hashes: Mapping[str, str] = field(default_factory=dict)
    latent: bool = False

    @classmethod
    def of(cls, job: Job, own_noise: bool = False) -> Recipe:
        """With the hashes of what lies here."""
        if job.budget is not None:
            raise ValueError("a budget depends on the clock, and a run in parts must not: give --quality")
        ours = _is_ours(local_copy(job.prior))
        latent = not ours and isinstance(load_prior(job.prior, label=job.label), LatentPrior)
        return cls(job, own_noise, cls._hashes(job), latent)

    @staticmethod
    def _hashes(job: Job) -> dict[str, str]:
        how = job.measuring
        script = how.task.rpartition(":")[0] if how.task and ".py:" in how.task else None
        models = {"prior": job.prior, "model": job.model}
        files = {"mask": how.mask, "kernel": how.kernel, "script": script}
        return {name: fingerprint(path) for name, path in models.items() if path is not None} | {
            name: file_hash(Path(path)) for name, path in files.items() if path is not None
        }

    def verify(self) -> None:
        """Refuse models and files of this machine that are not those of the recipe.

        Raises:
            ValueError: says which.
        """
        for name, digest in self._hashes(self.job).items():
            if digest != self.hashes[name]:
                raise ValueError(f"the {name} on this machine is another one than where the run was started")

    def settings(self, task: str | None) -> Settings:
        """Of the sampler, for a task."""
        job = self.job
        if job.settings is not None:
            return job.settings
        folder = local_copy(job.model or job.prior)
        return _chosen(folder, job.model is not None, task, self.latent, job.quality or "balanced")

    def seed(self, sha256: str) -> int:
        """Of a file's noise."""
        return self.job.seed ^ int(sha256[:15], 16) if self.own_noise else self.job.seed

    def key(self, sha256: str, record: DegradedRecord | None = None) -> str:
        """The key of a file with this content, of which a manifest of ``lavps degrade`` says this.

        Raises:
            ValueError: how it was measured is not known.
        """
        how = self.job.measuring.resolved(record)
        task = how.task.rpartition(":")[2] if how.task and ".py:" in how.task else how.task
        values = {
            "input": sha256,
            "measurement": [task, how.noise, None if how.drawn is None else asdict(how.drawn)],
            "hashes": dict(self.hashes),
            "settings": self.settings(how.task).to_dict(),
            "samples": self.job.samples,
            "seed": self.seed(sha256),
            "label": self.job.label,
            "version": version("lavps"),
        }
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
