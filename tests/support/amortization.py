"""A small prior, clean images and a model with outputs that are not zero."""

from __future__ import annotations

import torch
from torch import Tensor

import lavps
from lavps.amortization.model import InferenceModel
from lavps.evaluation import oracle_mixture

PRIOR = oracle_mixture()


NOISE = lavps.GaussianNoise(0.05)


ITEMS = range(40, 52)


def clean(count: int = len(ITEMS), seed: int = 3) -> Tensor:
    return PRIOR.sample(count, seed=seed)


def perturbed(network: InferenceModel) -> InferenceModel:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return network
