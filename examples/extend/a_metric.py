"""A metric of your own: how much edges differ."""

import torch
from torch import Tensor

from lavps.evaluation import ImageBatch


def edge_error(a: ImageBatch, b: ImageBatch) -> Tensor:
    """Root mean square difference of image gradients in grey levels, shape (B,)."""
    a.check_alike(b)
    difference = a.pixels.double() - b.pixels.double()
    edges = [difference.diff(dim=axis).flatten(1) for axis in (2, 3)]
    return torch.cat(edges, dim=1).square().mean(1).sqrt()
