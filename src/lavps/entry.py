"""Checks of a problem against the prior of a sampler, in words instead of an error of torch."""

from __future__ import annotations

__all__ = ["check_images", "precision_error"]

import torch
from torch import nn

from .priors import LatentPrior, Prior
from .problem import InverseProblem, Unconditional


def check_images(problem: InverseProblem | Unconditional, prior: Prior) -> None:
    """Raise ValueError unless the problem's images have the axes and the channels of the prior's."""
    while (own := getattr(prior, "image_shape", None)) is None and hasattr(prior, "prior"):
        prior = prior.prior
    shape = tuple(problem.image_shape)
    if own is None or isinstance(prior, LatentPrior) or (len(shape), shape[0]) == (len(own), own[0]):
        return
    remedy = "check the axes of y, which are (B, *measurement), and the operator"
    if len(shape) == len(own) and shape[0] == 1:
        remedy = (
            f"y.expand(-1, {own[0]}, ...) replicates grey measurements, with the noise's standard deviation "
            f"times sqrt({own[0]}) (lavps.io.match_channels has the reason)"
        )
    elif len(shape) == len(own) and own[0] == 1:
        remedy = "restore the channels as grey images, y.flatten(0, 1)[:, None], or use a colour prior"
    elif len(shape) == len(own) - 1:
        remedy = "y seems to have no batch axis: use y[None]"
    raise ValueError(f"the problem's images are {shape}, the prior's are {tuple(own)}: {remedy}")


def precision_error(
    error: RuntimeError, problem: InverseProblem | Unconditional, prior: Prior
) -> TypeError | None:
    """Return the error of mixed precisions in words; None for another error."""
    if not any(words in str(error) for words in ("should be the same", "same dtype", "scalar type")):
        return None
    network = getattr(prior, "network", None)
    while network is None and hasattr(prior, "prior"):
        prior = prior.prior
        network = getattr(prior, "network", None)
    values = network.parameters() if isinstance(network, nn.Module) else ()
    own = next((value.dtype for value in values), torch.float32)
    given = problem.like.dtype
    if own != given:
        return TypeError(
            f"the measurements are in {given} and the prior's network is in {own}: convert the problem, "
            f"problem.to({own}) or y.to({own}), or the network"
        )
    return TypeError(
        f"the images are in {given} and the operator or the network mixes it with another precision: cast "
        f"its tensors to that of the images, as in weight.to(x) ({' '.join(str(error).split())})"
    )
