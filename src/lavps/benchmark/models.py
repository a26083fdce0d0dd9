"""Prior of a benchmark and models of its methods, each loaded once."""

from __future__ import annotations

__all__ = ["Models", "Precision"]

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..amortization.few_step import load_model
from ..amortization.loading import load_conditional
from ..checkpoints.folder import load_model_prior, read_config
from ..priors import EDMPrior, NetworkPrior
from ..priors.precision import in_half, with_autocast
from ..problem import InverseProblem
from ..samplers import FewStepModel, OutOfDistributionWarning, Posterior, Sampler, Settings, Supervised
from .methods import model_name

Precision = Literal["fp32", "bf16"]


class Models:
    """Networks that methods are built from.

    Args:
        prior: Model folder or Hub id of the prior.
        precision: Precision of the networks; "bf16" runs them under autocast.
        device: Device of the networks.

    Attributes:
        prior: Prior, loaded.
    """

    def __init__(self, prior: str | Path, precision: Precision = "fp32", device: str = "cpu") -> None:
        self.precision, self.device = precision, device
        self.path = str(prior)
        loaded = load_model_prior(prior, device)
        self.prior: NetworkPrior | EDMPrior = with_autocast(loaded) if precision == "bf16" else loaded
        self._loaded: dict[tuple[str, bool], Any] = {}

    def model(self, method: Settings) -> Any:
        """Load the inference model or conditional denoiser of a method; None if it has none."""
        name = model_name(method)
        if name is None:
            return None
        supervised = isinstance(method.template, Supervised)
        if (name, supervised) not in self._loaded:
            load: Any = load_conditional if supervised else partial(load_model, prior=self.prior)
            model = load(name, device=self.device)
            if self.precision == "bf16" and not isinstance(model, FewStepModel):
                model.network = in_half(model.network)
            self._loaded[name, supervised] = model
        return self._loaded[name, supervised]

    def sampler(self, method: Settings) -> Sampler:
        """Build the sampler of a method."""
        return method.sampler(self.prior, self.model(method))

    def sample(
        self, method: Settings, problem: InverseProblem, seed: int, items: Sequence[int], **how: Any
    ) -> Posterior:
        """Draw samples of every item, without warnings of low acceptance rates, which rows record."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutOfDistributionWarning)
            return self.sampler(method).sample(problem, seed=seed, items=items, **how)

    def hashes(self, method: Settings) -> dict[str, str]:
        """Return hashes of the weights that a method uses."""
        known = {"prior": self.prior.weights_hash or ""}
        name = model_name(method)
        return known if name is None else known | {"model": read_config(name).weights_hash}
