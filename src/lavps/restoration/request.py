"""Request of a restoration: the part of its manifest that is known before it is sampled.

Two runs with equal requests give equal samples. :func:`request_key` identifies the run that an interrupted
one continues. :func:`differences` compares with outputs that are already there, where sizes of batches and
the machine do not matter.
"""

from __future__ import annotations

__all__ = ["differences", "request_key", "requested"]

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ..amortization.few_step import few_step_folder
from ..checkpoints import local_copy
from ..samplers import Settings
from .config import RestorationConfig
from .degraded import script_of
from .files import ITEM
from .manifest import Manifest, file_record, model_record, versions
from .memory import BatchLimits
from .spec import MeasuredFile

_SAMPLING = ("samples", "seed", "label", "precision", "compiled", "intervals")


def requested(
    job: RestorationConfig,
    hashes: tuple[str | None, str | None],
    file: Path,
    folder: Path,
    measured: MeasuredFile,
    settings: Settings,
    how: Mapping[str, object],
    at_once: BatchLimits,
) -> Manifest:
    """Return the manifest of a run without result, outputs and notes.

    Args:
        job: Configuration.
        hashes: Hashes of the weights of prior and inference model.
        file: Measurement.
        folder: Folder of the manifest.
        measured: Inverse problem of the file.
        settings: Settings of the sampler.
        how: Reason for the settings: a quality, a number of evaluations or a budget.
        at_once: Sizes of batches.
    """
    spec, model = measured.measuring, job.model
    if model is None and hashes[1] is not None:
        model = str(few_step_folder(local_copy(job.prior)))
    return Manifest(
        input={
            **(file_record(file, folder) or {}),
            "sha256": measured.sha256,
            "measurement_shape": list((measured.grey or measured.problem).y.shape[1:]),
        },
        measurement={
            "task": spec.task,
            "script": file_record(script_of(spec.task), folder),
            "noise": spec.noise,
            "noise_uncertainty": None if measured.estimate is None else measured.estimate.uncertainty,
            "keep_known": spec.keep_known,
            "mask": file_record(spec.mask, folder),
            "kernel": file_record(spec.kernel, folder),
            "drawn": None if spec.drawn is None else asdict(spec.drawn),
            "image_shape": list(measured.problem.image_shape),
        },
        prior=model_record(job.prior, hashes[0], folder) or {},
        model=model_record(model, hashes[1], folder),
        settings=settings.to_dict(),
        sampling={
            "samples": job.samples,
            "seed": job.seed,
            "item": ITEM,
            "batch_size": at_once.rows,
            "tile_batch": at_once.windows,
            "label": job.label,
            "precision": job.precision,
            "compiled": job.compiled,
            "intervals": None if job.certificate is None else [job.certificate.key, *job.levels],
            **how,
        },
        machine={"device": job.device, "threads": torch.get_num_threads(), "versions": versions()},
        result={},
        outputs={},
        notes=[],
    )


def request_key(request: Manifest) -> str:
    """Return a hash of all on which the samples depend."""
    values = asdict(request)
    values["sampling"].pop("predicted_seconds", None)  # differs from run to run
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def differences(one: Manifest, other: Manifest) -> list[str]:
    """Return the names of the entries in which two requests differ."""
    first, second = _compared(one), _compared(other)
    return [name for name in first | second if first.get(name) != second.get(name)]


def _compared(request: Manifest) -> dict[str, Any]:
    """Return the entries on which the outputs depend; files count by content, a budget by its seconds."""
    budget = request.sampling.get("budget")
    values = {
        "input": request.input["sha256"],
        **{name: value for name, value in request.measurement.items() if name != "noise_uncertainty"},
        "prior": request.prior["weights_hash"] or request.prior["path"],
        "model": (request.model or {}).get("weights_hash"),
        "settings": request.settings if budget is None else budget,
        **{name: request.sampling.get(name) for name in _SAMPLING},
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return {
        name: value["sha256"] if isinstance(value, dict) and "sha256" in value else value
        for name, value in plain.items()
        if name != "task" or plain["script"] is None
    }
