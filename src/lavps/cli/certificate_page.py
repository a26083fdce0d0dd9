"""HTML page of a certificate."""

from __future__ import annotations

__all__ = ["certificate_page"]

from collections.abc import Sequence

import torch

from ..pages import data_uri, render
from ..pages.panels import comparison, picture_panel
from ..restoration.certificate import Certificate
from ..restoration.certify import Example


def certificate_page(certificate: Certificate, examples: Sequence[Example]) -> str:
    """Return the page of a certificate, with a few of its images."""
    images = [data_uri(_panels(certificate, example), "image/png") for example in examples]
    low, high = certificate.noise
    scope = {
        "prior": certificate.prior,
        "inference model": certificate.model or "none",
        "task": certificate.task,
        "mask, kernel or Python file": certificate.operator_file or "none",
        "noise": f"{low:g}" if low == high else f"{low:g} to {high:g}",
        "settings": f"{certificate.settings.key}: {certificate.settings.to_dict()}",
        "samples per image": certificate.samples,
        "image": " x ".join(map(str, certificate.image_shape)),
        "number of images": certificate.images,
    }
    return render(
        "certificate",
        "report",
        title=f"Certificate: {certificate.task}, noise {scope['noise']}",
        sentence=summary(certificate),
        certificate=certificate,
        curve=_curve(certificate.histogram),
        examples=images,
        scope=scope,
    )


def summary(certificate: Certificate) -> str:
    """Return the result in one sentence."""
    found = certificate.corrections[-1]
    if certificate.source == "images":
        return (
            f"{certificate.statement(found.level)}; without the correction they covered "
            f"{100 * found.before:.0f} %."
        )
    gap = found.before - found.level
    error = 2 * found.before_error
    meaning = "as they should" if abs(gap) <= error else "too few" if gap < 0 else "too many"
    return (
        f"On {certificate.images} images drawn from the prior, the sampler's {found.level * 100:g} % "
        f"intervals covered {100 * found.before:.0f} % of pixels (+- {100 * found.before_error:.1f}): "
        f"{meaning}."
    )


def _curve(histogram: Sequence[float]) -> list[tuple[float, float]]:
    """Return nominal and empirical coverage of the intervals between order statistics, without correction."""
    count = len(histogram)
    pairs = [(count - 2 * cut, sum(histogram[cut : count - cut])) for cut in range(count // 2 + 1)]
    return [(kept / count, share) for kept, share in pairs]


def _panels(certificate: Certificate, example: Example) -> bytes:
    found = certificate.corrections[-1]
    scale = found.scale if certificate.source == "images" else 1.0
    lower, upper = example.interval(found.level, scale)
    missed = ((example.truth < lower) | (example.truth > upper)).double().mean(0, keepdim=True)
    y, operator = example.problem.y, example.problem.operator
    panels = []
    if y.ndim == 4 and y.shape[1] in (1, 3) and not y.is_complex():
        observed = operator.observed(y)
        known = None if observed is None else observed.reshape(-1, *observed.shape[-2:])[:1]
        panels.append(picture_panel(y[0], "measurement", "", known))
    level = f"{found.level * 100:g} % interval"
    return comparison(
        [
            *panels,
            picture_panel(example.truth, "truth"),
            picture_panel(torch.as_tensor(lower), f"lower end, {level}"),
            picture_panel(torch.as_tensor(upper), f"upper end, {level}"),
            picture_panel(2 * missed - 1, "truth outside (white)", f"{float(missed.mean()):.1%} of pixels"),
        ]
    )
