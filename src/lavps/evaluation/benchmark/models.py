"""The prior of a benchmark and the models of its methods, each loaded once."""

from __future__ import annotations

__all__ = ["Models", "Precision"]

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from ...amortization.checkpoint import load_model_prior, read_config
from ...amortization.loading import load_conditional, load_inference_model
from ...initializers import LikelihoodStep
from ...priors import EDMPrior, NetworkPrior
from ...priors.precision import in_half, with_autocast
from ...problem import InverseProblem
from ...samplers import OutOfDistributionWarning, Posterior, Sampler
from .methods import LIKELIHOOD_STEP, UNTRAINED, Method

Precision = Literal["fp32", "bf16"]


class Models:
    """What methods are built from.

    Args:
        prior: model folder or Hub id of the prior.
        precision: "bf16" runs all networks under autocast, and nothing but the networks.
        device: where to compute.

    Attributes:
        prior: the prior.
    """

    def __init__(self, prior: str | Path, precision: Precision = "fp32", device: str = "cpu") -> None:
        self.precision, self.device = precision, device
        self.path = str(prior)
        loaded = load_model_prior(prior, device)
        self.prior: NetworkPrior | EDMPrior = with_autocast(loaded) if precision == "bf16" else loaded
        self._loaded: dict[tuple[str, bool], nn.Module] = {}

    def model(self, method: Method) -> Any:
        """What ``method.model`` names; None where it names nothing."""
        if method.model is None:
            return None
        if method.model in UNTRAINED:
            return LikelihoodStep() if method.model == LIKELIHOOD_STEP else LikelihoodStep.gentle()
        key = (method.model, method.sampler == "supervised")
        if key not in self._loaded:
            model: Any
            if method.sampler == "supervised":
                model = load_conditional(method.model, self.device)
            else:
                model = load_inference_model(method.model, self.prior, self.device)
            if self.precision == "bf16":
                model.network = in_half(model.network)
            self._loaded[key] = model
        return self._loaded[key]

    def sampler(self, method: Method) -> Sampler:
        """The method, ready to run."""
        return method.build(self.prior, self.model(method))

    def sample(
        self, method: Method, problem: InverseProblem, seed: int, items: Sequence[int], **how: Any
    ) -> Posterior:
        """A sample of every item. That a safeguard refuses much is a result here, no reason to warn."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfDistributionWarning)
            return self.sampler(method).sample(problem, seed=seed, items=items, **how)

    def hashes(self, method: Method) -> dict[str, str]:
        """What tells the weights it runs with from others."""
        known = {"prior": self.prior.weights_hash or ""}
        if method.model in (None, *UNTRAINED):
            return known
        return known | {"model": read_config(method.model).weights_hash}
