"""``lavps train few-step``: a prior's network, fine-tuned for a few evaluations on any of several tasks."""

from __future__ import annotations

__all__ = ["TrainFewStep"]

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated

from torch import Tensor

from ..amortization.few_step import save_few_step
from ..amortization.loading import prior_hash
from ..checkpoints.folder import load_model_prior, model_name, read_config
from ..evaluation.lpips import LPIPS
from ..operators.registry import family_from
from ..training.few_step import FewStepTask
from ..training.finetune import add_change, init_from
from ..training.task import Task
from .options import File, Folder, Model, N, NoiseRange, argument, lowest_and_highest
from .training import Training, Writer

TASKS = (
    *("sr2", "sr4", "sr8", "motion-blur", "random-motion-blur", "gaussian-blur"),
    *("centre-box", "random-rectangle", "random-pixels", "denoise"),
)
_REFERENCES = 8  # images for the scores of the prior


@dataclass(frozen=True, kw_only=True)
class TrainFewStep(Training):
    """Fine-tune a prior's network through the sampler, for a few evaluations; write it to OUTPUT/model."""

    prior: Model[Path]  # Model folder or Hub id of the prior, whose network is the initial one.
    # Linear operators: sr4, denoise, motion-blur, ..., or Python objects in files.
    task: Annotated[tuple[str, ...], argument(metavar="TASK [TASK ...]")] = TASKS
    # Standard deviation of the noise, or the lowest and the highest one.
    noise: NoiseRange = (0.005, 0.2)
    evaluations: N[int] = 4  # Evaluations per sample.
    group: N[int] = 4  # Consecutive images with the same task.
    lpips: File[Path | None] = None  # Weights of LPIPS, which is then added to the score.
    lpips_weight: N[float] = 1.0  # Factor of LPIPS in the sum: below 1 for a better CRPS and coverage.
    init_from: Folder[Path | None] = None  # Few-step model whose weights initialize the network.
    # Prior of that model, if it is another one: the change of the weights from it to --prior is added.
    init_prior: Folder[Path | None] = None

    @cached_property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W) of the prior's images."""
        return read_config(self.prior).image_shape

    def plan(self) -> tuple[Task, Writer]:
        """Return the task of sampling with few evaluations."""
        noise = lowest_and_highest(self.noise)
        if not self.task or self.group < 1:
            raise ValueError("--task needs at least one task, and --group must be at least 1")
        if self.lpips is None and self.lpips_weight != 1.0:
            raise ValueError("--lpips-weight is the factor of LPIPS, whose weights are missing: give --lpips")
        if (held_out := self.held_out) is None:
            raise ValueError("a few-step model needs --validation, for its safeguard")
        prior = load_model_prior(self.prior)
        task = FewStepTask(
            prior,
            self.evaluations,
            [family_from(name, self.image_shape) for name in self.task],
            noise,
            held_out[:_REFERENCES],
            perceptual=None if self.lpips is None else _distance(self.lpips, self.lpips_weight),
            group=self.group,
            seed=self.trainer.seed,
            description={"tasks": list(self.task), "prior_hash": prior_hash(prior)},
            preview_images=self.previewed,
        )
        source, name = read_config(self.prior), model_name(self.prior)
        origin, predicted = {"prior": name}, (prior.schedule, source.prediction or "")
        if self.init_from is not None:
            origin["init_from"] = init_from(task.network, self.init_from, *predicted, "few-step")
        if self.init_prior is not None:
            if self.init_from is None:
                raise ValueError(
                    "--init-prior is the prior of a few-step model, --init-from, which is missing"
                )
            old, new = (copy.deepcopy(task.network) for _ in range(2))
            init_from(old, self.init_prior, *predicted)
            init_from(new, self.prior, *predicted)
            add_change(task.network, old, new)
        return task, lambda folder, about, dtype: save_few_step(
            folder, task, source, task.limits(held_out), about | origin, dtype
        )


def _distance(file: Path, weight: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return weighted LPIPS, on the device of the images, which is known when the training starts."""
    moved = lru_cache(maxsize=1)(LPIPS.load(file).to)
    return lambda a, b: weight * moved(a.device).distance(a, b)
