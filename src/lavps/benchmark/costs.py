r"""Cost of a method, in units of one denoiser evaluation.

.. math:: c = f \, n_{forward} + 2 f \, n_{backward} + m \, n_{model} + u \, n_{linearized},

where a backward pass counts as two forward passes, m is the relative time of a forward pass of the inference
model, and u that of a step of linearized guidance. f is 1 for samplers that denoise with the prior, and the
relative time of the conditional denoiser for supervised ones; a few-step model is the prior's network with
other weights. The ratios are measured once per model, at batch size 1, in alternation with the prior, so that
other load on the machine slows both. All methods of a benchmark use the stored ratios.
"""

from __future__ import annotations

__all__ = ["RelativeCost", "known_relative_cost", "measure_relative_cost"]

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..amortization import ConditionalDenoiser
from ..evaluation.timing import timed
from ..guidance import Linearized
from ..io.atomic import write_json
from ..random import NoiseStreams, Purpose
from ..samplers import FewStep, Settings, Supervised
from ..schedule import as_time
from ..variational import Context
from .measurements import MeasurementSet
from .methods import model_name
from .models import Models
from .records import claim, read_json

_ROUNDS, _WARM_UP = 15, 3
_LINEARIZED = "linearized"


@dataclass(frozen=True)
class RelativeCost:
    """Costs relative to one evaluation of the prior's denoiser.

    Attributes:
        forward: Cost of a forward pass of the method's denoiser.
        backward: Cost of a backward pass through it.
        model: Cost of a forward pass of the inference model.
        steps: Cost of all linearized steps of a run.
    """

    forward: float = 1.0
    backward: float = 2.0
    model: float = 0.0
    steps: float = 0.0

    def cost(self, rows: Sequence[Mapping[str, Any]]) -> float:
        """Return the mean cost of the rows."""
        total = sum(
            self.forward * row["forwards"]
            + self.backward * row["backwards"]
            + self.model * row["model_forwards"]
            for row in rows
        )
        return float(total) / len(rows) + self.steps


def measure_relative_cost(
    file: Path, method: Settings, models: Models, measurements: MeasurementSet
) -> RelativeCost:
    """Return the costs of a method from ``file``; costs that it lacks are measured and stored.

    Args:
        file: JSON file of costs by model.
        method: Method; all methods with the same model have the same costs.
        models: Networks.
        measurements: Measurements, the first of which is used.
    """
    with claim(file.with_suffix(".lock")):
        for entry in _entries(method):
            if entry not in read_json(file):
                ratio = _ratio(entry, method, models, measurements)
                own = RelativeCost(ratio, 2 * ratio) if _is_supervised(method) else RelativeCost(model=ratio)
                write_json(file, read_json(file) | {entry: asdict(own)})
        prices = known_relative_cost(file, method)
        assert prices is not None
        return prices


def known_relative_cost(file: Path, method: Settings) -> RelativeCost | None:
    """Return the costs of a method from ``file``; None if they have not been measured."""
    entries, wanted = read_json(file), _entries(method)
    if any(entry not in entries for entry in wanted):
        return None
    networks = [entries[entry] for entry in wanted if entry != _LINEARIZED]
    prices = RelativeCost(**networks[0]) if networks else RelativeCost()
    if _LINEARIZED in wanted:
        prices = replace(prices, steps=method.linearized_steps * entries[_LINEARIZED]["model"])
    return prices


def _is_supervised(method: Settings) -> bool:
    return isinstance(method.template, Supervised)


def _entries(method: Settings) -> list[str]:
    """Return the entries of the file that a method needs: its network, a linearized step."""
    name = None if isinstance(method.template, FewStep) else model_name(method)
    network = f"{'conditional' if _is_supervised(method) else 'inference'}: {name}"
    return [network] * (name is not None) + [_LINEARIZED] * (method.linearized_steps > 0)


@torch.no_grad()
def _ratio(entry: str, method: Settings, models: Models, measurements: MeasurementSet) -> float:
    """Return the median time of an entry's computation, relative to one denoiser evaluation."""
    problem = measurements.problem(slice(0, 1), models.device, models.precision == "bf16")
    x_0 = measurements.images[slice(0, 1)].to_tensor().to(models.device)
    noise = NoiseStreams.from_seed(1).normal(Purpose.PROBE, problem.image_shape, problem.like)
    s, t, schedule = as_time(0.45), as_time(0.5), models.prior.schedule
    x_t = float(schedule.alpha(t)) * x_0 + float(schedule.sigma(t)) * noise
    model = Linearized() if entry == _LINEARIZED else models.model(method)

    def model_pass() -> object:
        if isinstance(model, ConditionalDenoiser):
            return model.denoise(x_t, t, problem)
        return model(Context(x_0, x_t, s, t, problem, schedule))

    ratios = []
    for _ in range(_WARM_UP + _ROUNDS):
        _, ours = timed(model_pass, models.device)
        _, theirs = timed(lambda: models.prior.denoise(x_t, t), models.device)
        ratios.append(ours / theirs)
    return statistics.median(ratios[_WARM_UP:])
