r"""Few-step models: a prior's network, fine-tuned through the sampler that uses it.

Images are measured with the operators and noise levels of several tasks; :class:`~lavps.TunedPIR` draws two
samples of each with K evaluations, and the gradient of their score (:func:`~lavps.training.scores.score_of`)
goes through all of them to the weights. The network is initialized with the prior's, so the initial score is
that of the sampler without training. Scores are relative to it, task by task.

Unlike distillation this needs no teacher, and unlike a squared error it rewards samples that differ as much
as the posterior does: the score is proper.

References:
    - Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, 2007.
    - De Bortoli et al., Distributional Diffusion Models with Scoring Rules, 2025.
"""

from __future__ import annotations

__all__ = ["FewStepTask"]

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..operators.families import OperatorFamily
from ..priors import CountingPrior, EDMPrior, NetworkPrior
from ..priors.precision import Autocast
from ..random import NoiseStreams
from ..samplers.base import Run
from ..samplers.few_step import FewStepModel, JudgedModel
from .scores import score_of, simulate_family

_VALIDATION_SEED = 1 << 30
_QUANTILE = 0.99  # of held-out predictions
_MARGIN = 2.0  # on the quantiles: measurements unlike those of the training have larger ones


class FewStepTask:
    """The task of training a few-step model.

    Args:
        prior: Prior, whose network is copied.
        evaluations: Number K of evaluations.
        families: Distribution of the operators, one for each task.
        noise: Lowest and highest standard deviation of the noise, drawn log-uniformly.
        references: Images (N, C, H, W) on which the scores of the prior are measured.
        perceptual: Differentiable distance (B,) of two batches of images, added to the score.
        group: Number of consecutive samples with the same task.
        seed: Seed of operators, measurements and noise.
        description: Plain values for the checkpoint (names of the tasks, hash of the prior, ...).
        preview_images: Images (N, C, H, W) restored for a preview; None for no preview.
    """

    def __init__(
        self,
        prior: NetworkPrior | EDMPrior,
        evaluations: int,
        families: Sequence[OperatorFamily],
        noise: tuple[float, float],
        references: Tensor,
        *,
        perceptual: Callable[[Tensor, Tensor], Tensor] | None = None,
        group: int = 4,
        seed: int = 0,
        description: Mapping[str, Any] | None = None,
        preview_images: Tensor | None = None,
    ) -> None:
        if not isinstance(prior.network, nn.Module):
            raise TypeError("the prior has no torch network to train")
        self.network: nn.Module = copy.deepcopy(prior.network).requires_grad_(True)
        self.prior = copy.copy(prior)
        self.prior.network, self.prior.weights_hash = self.network, None
        self.model = FewStepModel(self.prior, (math.inf,) * evaluations)
        self.sampler = self.model.sampler_for(self.prior)
        self.families, self.noise, self.perceptual = tuple(families), noise, perceptual
        self.group, self.seed, self.preview_images = group, seed, preview_images
        self.description = dict(description or {})
        self.initial = [float(f"{score:.4g}") for score in self._scores(references)]

    def loss(self, images: Tensor, items: Sequence[int]) -> Tensor:
        """Return the score of two samples per image (B,), relative to the prior's on the same task."""
        losses = images.new_zeros(len(images))
        tasks = [item // self.group % len(self.families) for item in items]
        for task in sorted(set(tasks)):
            rows = [row for row, number in enumerate(tasks) if number == task]
            score = self._score(task, images[rows], [items[row] for row in rows], self.seed)
            index = torch.tensor(rows, device=images.device)
            losses = losses.index_add(0, index, score / self.initial[task])
        return losses

    def validate(self, images: Tensor) -> dict[str, Any]:
        """Return the mean relative score, and that of every task."""
        found = [score / unit for score, unit in zip(self._scores(images), self.initial, strict=True)]
        return {"loss": sum(found) / len(found), "score_by_task": found}

    def preview(self) -> Tensor | None:
        """Return images with one sample for each task beside them."""
        if self.preview_images is None:
            return None
        images = self.preview_images.to(next(self.network.parameters()).device)
        found = [images]
        for family in self.families:
            problem = simulate_family(images, range(len(images)), family, self.noise, _VALIDATION_SEED)
            samples = self.sampler.sample(problem, seed=self.seed).samples
            assert samples is not None
            found.append(samples[:, 0])
        return torch.cat(found, dim=-1)

    @torch.no_grad()
    def limits(self, images: Tensor) -> tuple[float, ...]:
        """Return the largest powers of the residual that the safeguard accepts, one per evaluation."""
        found: list[list[Tensor]] = [[] for _ in self.sampler.levels]
        for family in self.families:
            problem = simulate_family(images, range(len(images)), family, self.noise, _VALIDATION_SEED)
            streams = NoiseStreams.from_seed(len(images), _VALIDATION_SEED)
            run = Run(CountingPrior(self.prior), problem, streams)
            judged = JudgedModel(run, self.model)
            for _ in self.sampler.steps(replace(run, prior=judged)):
                pass
            for step, powers in zip(found, judged.powers, strict=True):
                step.append(powers.double().cpu())
        quantiles = [torch.cat(step).quantile(_QUANTILE) for step in found]
        return tuple(float(f"{_MARGIN * float(value):.4g}") for value in quantiles)

    def describe(self) -> dict[str, Any]:
        """Return JSON values of everything but the weights."""
        return {
            "kind": "few-step",
            "evaluations": len(self.sampler.levels),
            "families": [repr(family) for family in self.families],
            "noise": list(self.noise),
            "group": self.group,
            "seed": self.seed,
            "initial_scores": self.initial,
            **self.description,
        }

    @torch.no_grad()
    def _scores(self, images: Tensor) -> list[float]:
        """Return the mean score of every task."""
        images, found = images.to(next(self.network.parameters()).device), []
        for task in range(len(self.families)):
            parts = torch.split(torch.arange(len(images)), self.group)
            scores = [self._score(task, images[p], p.tolist(), _VALIDATION_SEED) for p in parts]
            found.append(float(torch.cat(scores).mean()))
        return found

    def _score(self, task: int, images: Tensor, items: Sequence[int], seed: int) -> Tensor:
        prior, device = copy.copy(self.prior), images.device.type
        if torch.is_autocast_enabled(device):
            prior.network = Autocast(self.network, torch.get_autocast_dtype(device))
        # Data steps solve linear systems, which takes full precision.
        with torch.autocast(device, enabled=False):
            problem = simulate_family(images, items, self.families[task], self.noise, seed).repeat(2)
            run = Run(CountingPrior(prior), problem, NoiseStreams.from_seed(len(images), seed, items, 2))
            *_, last = self.sampler.steps(run)
            return score_of(last.x_0, images, problem, self.perceptual)
