r"""Typicality of images under a prior: whether they resemble the images that it was trained on.

An image x has five features: the logarithm of the residual, the mean square of
:math:`D(x + \sigma z, \sigma) - x`, at three noise levels, of its variance and of its mean squared gradient.
Speckle raises the residual at low noise, other content that at high noise; blur lowers them. The distance of
an image is the Mahalanobis distance of its features from those of reference images.

Misfit and typicality are independent: a sample can explain the measurement and resemble no training image.
The distance is not a classifier of content: single images of another kind often have ordinary features, and
many windows of a large image are more reliable than one.
"""

from __future__ import annotations

__all__ = ["REFERENCE", "TypicalityReference"]

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..io.atomic import write_json
from ..priors import Prior
from ..random import NoiseStreams, Purpose
from ..schedule import as_time

REFERENCE = "typicality.json"
_LEVELS = (0.1, 0.5, 3.0)
_BATCH = 16
_FEWEST = 20  # images of a reference
_RIDGE = 1e-3  # added to the variances of the features
_QUANTILES = (0.95, 0.99)
_FAR = 1.5  # times the distance of a rare image: a sample is a little farther from the mean than a true image
_MANY, _SHARE = 4, 0.25  # windows whose shares count, and the share of unusual ones that an image can have


@dataclass(frozen=True)
class TypicalityReference:
    """Features of reference images under a prior.

    Attributes:
        mean: Mean of the features.
        precision: Inverse of their covariance.
        unusual: Distance that 95 % of the reference images do not exceed, each compared with the others.
        rare: Distance that 99 % of them do not exceed.
        images: Number of reference images.
        weights_hash: Hash of the prior's weights.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    unusual: float
    rare: float
    images: int
    weights_hash: str | None

    @classmethod
    def measure(cls, prior: Prior, images: Tensor, weights_hash: str | None) -> TypicalityReference:
        """Measure reference images (N, C, *spatial) in [-1, 1].

        Raises:
            ValueError: There are too few images.
        """
        if len(images) < _FEWEST:
            raise ValueError(f"typicality needs at least {_FEWEST} reference images, got {len(images)}")
        features = _features(prior, images)
        mean, precision = _fitted(features)
        # Each image is compared with the others; a fit to all would make it seem closer than a new one.
        rows = range(len(features))
        others = [_fitted(features[[other for other in rows if other != row]]) for row in rows]
        distances = torch.stack([_mahalanobis(features[row], *others[row]) for row in rows])
        ranks = (min(math.ceil((len(images) + 1) * level), len(images)) for level in _QUANTILES)
        unusual, rare = (float(distances.sort().values[rank - 1]) for rank in ranks)
        kept = tuple(tuple(row) for row in precision.tolist())
        return cls(tuple(mean.tolist()), kept, unusual, rare, len(images), weights_hash)

    @classmethod
    def read(cls, folder: str | Path, weights_hash: str | None) -> TypicalityReference | None:
        """Read the reference of a model folder; None without one, or if it is that of other weights.

        Raises:
            ValueError: The file is no reference.
        """
        file = Path(folder) / REFERENCE
        if not file.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            rows = tuple(tuple(map(float, row)) for row in values.pop("precision"))
            found = cls(tuple(map(float, values.pop("mean"))), rows, **values)
            found._distances(torch.zeros(1, len(found.mean), dtype=torch.float64))
        except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            raise ValueError(f"{file} is no reference of typicality: {error!r}") from error
        return found if found.weights_hash == weights_hash else None

    def write(self, folder: str | Path) -> None:
        """Write the reference to a model folder."""
        write_json(Path(folder) / REFERENCE, asdict(self))

    def distances(self, prior: Prior, images: Tensor) -> Tensor:
        """Return the distance of each image (N,)."""
        return self._distances(_features(prior, images))

    def is_unlike(self, distances: Tensor) -> bool:
        """Return whether the windows of an image are unlike the reference: a quarter, or one by far."""
        if len(distances) < _MANY:
            return bool((distances > _FAR * self.rare).any())
        return float((distances > self.unusual).double().mean()) > _SHARE

    def describe(self, distances: Tensor) -> str:
        """Return in words whether the windows of an image are like the reference.

        The first word is "like", "unusual" (for fewer than four windows, beyond 99 % of the reference) or
        "unlike" (half as far again).
        """
        farthest, far = float(distances.max()), int((distances > self.unusual).sum())
        if len(distances) >= _MANY:
            numbers = f"{far} of {len(distances)} windows are farther from their mean than 95% of them"
        else:
            numbers = f"distance {farthest:.3g}; 99% of them are within {self.rare:.3g}"
        unusual = farthest > self.rare and len(distances) < _MANY
        word = "unlike" if self.is_unlike(distances) else "unusual among" if unusual else "like"
        return f"{word} the images of the prior ({numbers})"

    def _distances(self, features: Tensor) -> Tensor:
        mean, precision = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.precision))
        return _mahalanobis(features, mean, precision)


def _fitted(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of features (N, 5) and the inverse of their covariance."""
    covariance = torch.cov(features.T) + _RIDGE * torch.eye(features.shape[1], dtype=torch.float64)
    return features.mean(0), torch.linalg.inv(covariance)


def _mahalanobis(features: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Return the distances (...) of features (..., 5)."""
    offset = features - mean
    return torch.einsum("...i,ij,...j->...", offset, precision, offset).clamp(min=0.0).sqrt()


@torch.no_grad()
def _features(prior: Prior, images: Tensor) -> Tensor:
    """Return the features (N, 5), float64; the noise is the same for all images."""
    columns = [_log_square(images - images.mean((2, 3), keepdim=True))]
    steps = (images[..., 1:, :-1] - images[..., :-1, :-1], images[..., :-1, 1:] - images[..., :-1, :-1])
    columns.append(_log_square(torch.cat(steps, 1)))
    for number, level in enumerate(_LEVELS):
        t = prior.schedule.time(as_time(level))
        rows = []
        for part in torch.split(images, _BATCH):
            streams = NoiseStreams.from_seed(len(part), 0, [0] * len(part))
            noise = streams.normal(Purpose.PROBE, part.shape[1:], part, number)
            alpha, sigma = (value.to(part.dtype).to(part.device) for value in prior.schedule.coefficients(t))
            rows.append(_log_square(prior.denoise(alpha * part + sigma * noise, t) - part))
        columns.append(torch.cat(rows))
    return torch.stack(columns, 1)


def _log_square(x: Tensor) -> Tensor:
    return x.square().flatten(1).mean(1).clamp(min=1e-8).log().double().cpu()
