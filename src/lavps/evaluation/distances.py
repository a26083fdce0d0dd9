"""Distances between sets of samples, such as those of a sampler and of an exact posterior."""

from __future__ import annotations

__all__ = ["sliced_wasserstein"]

from torch import Tensor

from ..random import NoiseStreams, Purpose


def sliced_wasserstein(a: Tensor, b: Tensor, projections: int = 256, seed: int = 0) -> float:
    r"""Return the sliced Wasserstein-2 distance between two sets of N samples each.

    .. math:: SW_2^2 = E_\theta \big[\tfrac1N \sum_n (\theta^T a_{(n)} - \theta^T b_{(n)})^2\big]

    over directions theta uniform on the sphere; (n) is the n-th smallest. Two sets from one distribution have
    a positive distance, the Monte Carlo floor of the estimate.

    Args:
        a: Samples, (N, *shape).
        b: Samples, (N, *shape).
        projections: Number of directions.
        seed: Seed of the directions.

    Example:
        >>> import torch
        >>> sliced_wasserstein(torch.zeros(5, 1), torch.ones(5, 1))
        1.0
    """
    if a.shape != b.shape:
        raise ValueError(f"the two sets of samples must have one shape, got {(*a.shape,)} and {(*b.shape,)}")
    a, b = a.flatten(1).double(), b.flatten(1).double()
    directions = NoiseStreams.from_seed(projections, seed).normal(Purpose.PROBE, (a.shape[1],), a)
    directions = directions / directions.norm(dim=1, keepdim=True)
    gaps = (a @ directions.T).sort(dim=0).values - (b @ directions.T).sort(dim=0).values
    return float(gaps.square().mean().sqrt())
