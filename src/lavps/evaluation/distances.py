"""Distances between sets of samples, for judging a sampler against an exact posterior."""

from __future__ import annotations

__all__ = ["sliced_wasserstein"]

from torch import Tensor

from ..random import NoiseStreams, Purpose


def sliced_wasserstein(a: Tensor, b: Tensor, projections: int = 256, seed: int = 0) -> float:
    r"""Sliced Wasserstein-2 distance between two sets of as many samples.

    .. math:: SW_2^2 = E_\theta \big[\tfrac1N \sum_n (\theta^T a_{(n)} - \theta^T b_{(n)})^2\big]

    over directions theta uniform on the sphere; (n) is the n-th smallest. Two sets from one law do not give
    0: their own distance is the Monte-Carlo floor of the estimate.

    Args:
        a: samples (N, *shape).
        b: samples (N, *shape).
        projections: number of directions.
        seed: of the directions.
    """
    if a.shape != b.shape:
        raise ValueError(
            f"as many samples of one shape are needed, got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    a, b = a.flatten(1).double(), b.flatten(1).double()
    directions = NoiseStreams.of(projections, seed).normal(Purpose.PROBE, (a.shape[1],), a)
    directions = directions / directions.norm(dim=1, keepdim=True)
    gaps = (a @ directions.T).sort(dim=0).values - (b @ directions.T).sort(dim=0).values
    return float(gaps.square().mean().sqrt())
