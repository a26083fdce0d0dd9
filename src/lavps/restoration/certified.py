"""Certified restorations: interval images, the coverage to quote, and the fit of the measurement.

For ``photo.png`` the ends of the 90 % interval are ``photo-lower-90.png`` and ``photo-upper-90.png``.
"""

from __future__ import annotations

__all__ = ["certified_outputs", "certified_report", "check_certified", "interval_names"]

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..evaluation import fit_statistics
from ..io.encode import encode_image
from .certificate import Certificate
from .files import RestoredFile
from .restorer import Restorer
from .spec import MeasuredFile

_DOUBT = 0.01


def interval_names(stem: str, suffix: str, levels: Sequence[float]) -> list[str]:
    """Return the names of the interval images, lower and upper by level; arrays also as PNG."""
    suffixes = [suffix, ".png"] if suffix == ".npy" else [suffix]
    ends = [f"-{end}-{100 * level:g}" for level in levels for end in ("lower", "upper")]
    return [f"{stem}{end}{form}" for end in ends for form in suffixes]


def check_certified(certificate: Certificate, restorer: Restorer, measured: MeasuredFile) -> None:
    """Raise ValueError unless a certificate holds for a file and the settings of its restoration."""
    if measured.grey is not None:
        raise ValueError("the certificate was made for colour images, not for a grey one")
    shape = measured.problem.image_shape
    certificate.check(restorer.hashes, measured.measuring, restorer.settings, shape)


def certified_outputs(
    restored: RestoredFile,
    certificate: Certificate,
    levels: Sequence[float],
    restorer: Restorer,
    stem: str,
    suffix: str,
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Return the interval images by name, and the entries of the manifest's result."""
    like, posterior = restored.measured.like, restored.posterior
    contents = []
    for level in levels:
        for end in posterior.interval(level, certificate):
            pixels = end[0].cpu()
            contents.append(encode_image(pixels, like, like.format))
            if suffix == ".npy":
                flat = replace(like, alpha=None, palette=None, mode="L", dtype="uint8")
                contents.append(encode_image(pixels, flat, "PNG"))
    assert posterior.samples is not None
    problem = restored.measured.problem.to(posterior.samples.device)
    statistics = fit_statistics(problem, posterior.samples, restorer.prior)[0]
    record = {
        "coverage": {f"{level:g}": certificate.statement(level) for level in levels},
        "p_value": certificate.p_value(statistics),
        "held_out_images": certificate.images,
    }
    return dict(zip(interval_names(stem, suffix, levels), contents, strict=True)), {"certified": record}


def certified_report(result: Mapping[str, Any]) -> list[str]:
    """Return the lines about coverage and fit that the result of a manifest has, if any."""
    if (record := result.get("certified")) is None:
        return []
    p_value, count = record["p_value"], record["held_out_images"]
    fit = "fits" if p_value >= _DOUBT else "DOES NOT FIT"
    line = f"the measurement {fit} what was certified: p = {p_value:.2g}"
    if p_value <= 1 / (count + 1) + 1e-9 and p_value >= _DOUBT:
        line = f"the measurement is the least usual of {count + 1}: p = {p_value:.2g}, the smallest possible"
    if p_value < _DOUBT:
        line += "; check the operator, the noise level and the kind of image. The coverage is not valid"
    return [*record["coverage"].values(), line]
