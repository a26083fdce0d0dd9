r"""What a method costs, in forwards of the prior's denoiser.

.. math:: c = f \, n_{forward} + 2 f \, n_{backward} + m \, n_{model} + u \, n_{step},

a backward counted as two forwards, as is the custom. m is the time of the inference model's pass over that of
a denoiser's forward; f is 1 for all samplers that denoise with the prior, and for a supervised one its own
denoiser's over the prior's; u is that of a likelihood step, which some methods take late instead of asking
their model. All are measured once per model, at batch 1, the two taking turns so that whatever else the
machine does slows both, and kept: a benchmark counts every method by the same prices.
"""

from __future__ import annotations

__all__ = ["Prices", "known_prices", "measure_prices", "timed"]

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...amortization.checkpoint import write_json
from ...random import NoiseStreams, Purpose
from ...schedule import as_time
from ...variational import Context
from .measurements import MeasurementSet
from .methods import LIKELIHOOD_STEP, UNTRAINED, Method
from .models import Models
from .records import claim, read_json

_TURNS, _WARM_UP = 15, 3
_STEP = Method("lavps", model=LIKELIHOOD_STEP)
T = TypeVar("T")


@dataclass(frozen=True)
class Prices:
    """Relative costs, a forward of the prior's denoiser being 1.

    Attributes:
        forward: of the denoiser the method uses.
        backward: through it.
        model: a pass of the inference model.
        steps: all likelihood steps of a run in the model's place.
    """

    forward: float = 1.0
    backward: float = 2.0
    model: float = 0.0
    steps: float = 0.0

    def cost(self, rows: Sequence[Mapping[str, Any]]) -> float:
        """Mean over the rows of what they cost."""
        total = sum(
            self.forward * row["forwards"]
            + self.backward * row["backwards"]
            + self.model * row["model_forwards"]
            for row in rows
        )
        return float(total) / len(rows) + self.steps


def measure_prices(file: Path, method: Method, models: Models, measurements: MeasurementSet) -> Prices:
    """The prices of a method: from ``file`` where its model is known there, else measured and written.

    Args:
        file: of JSON, by model.
        method: which; all methods with the same model have the same prices.
        models: the networks.
        measurements: on whose first item they are measured.
    """
    with claim(file.with_suffix(".lock")):
        for priced in (method, _STEP) if method.likelihood_steps else (method,):
            if known_prices(file, replace(priced, r_step=None)) is None:
                ratio = _ratio(priced, models, measurements)
                own = Prices(ratio, 2 * ratio) if priced.sampler == "supervised" else Prices(model=ratio)
                write_json(file, read_json(file) | {_entry(priced): asdict(own)})
        prices = known_prices(file, method)
        assert prices is not None
        return prices


def known_prices(file: Path, method: Method) -> Prices | None:
    """The prices of a method without measuring; None where nobody has measured them."""
    if method.model is None:
        return Prices()
    entries = read_json(file)
    found, step = entries.get(_entry(method)), entries.get(_entry(_STEP))
    if found is None or (method.likelihood_steps and step is None):
        return None
    return Prices(**found | {"steps": method.likelihood_steps * step["model"] if step else 0.0})


def _entry(method: Method) -> str:
    model = LIKELIHOOD_STEP if method.model in UNTRAINED else method.model  # one computation, gentle or not
    return f"{'conditional' if method.sampler == 'supervised' else 'inference'}: {model}"


@torch.no_grad()
def _ratio(method: Method, models: Models, measurements: MeasurementSet) -> float:
    """Median over turns of a pass of the method's model over one of the prior's denoiser."""
    problem = measurements.problem(slice(0, 1), models.device, models.precision == "bf16")
    x_0 = measurements.images[slice(0, 1)].to_tensor().to(models.device)
    noise = NoiseStreams.of(1).normal(Purpose.PROBE, problem.image_shape, problem.like)
    s, t, schedule = as_time(0.45), as_time(0.5), models.prior.schedule
    x_t = float(schedule.alpha(t)) * x_0 + float(schedule.sigma(t)) * noise
    model = models.model(method)

    def prior_pass() -> object:
        return models.prior.denoise(x_t, t)

    def model_pass() -> object:
        if method.sampler == "supervised":
            return model.denoise(x_t, t, problem)
        return model(Context(x_0, x_t, s, t, problem, schedule))

    ratios = []
    for _ in range(_WARM_UP + _TURNS):
        (_, ours), (_, theirs) = timed(model_pass, models.device), timed(prior_pass, models.device)
        ratios.append(ours / theirs)
    return statistics.median(ratios[_WARM_UP:])


def timed(work: Callable[[], T], device: str) -> tuple[T, float]:
    """What a call returns and its wall time in seconds, the device's queue emptied before and after."""
    _wait(device)
    start = time.perf_counter()
    result = work()
    _wait(device)
    return result, time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device.startswith("mps"):
        torch.mps.synchronize()
