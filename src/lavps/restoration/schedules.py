"""Files of learned schedules: the settings, with what they were tuned for.

A schedule holds for one prior, the tasks of its tuning and one range of noise levels.
:meth:`TunedSchedule.check` refuses others: a schedule learned for one operator can diverge on another.
"""

from __future__ import annotations

__all__ = ["TunedSchedule"]

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.scope import check_scope
from ..io.atomic import write_atomically
from ..samplers import Settings

_FORMAT = 1


@dataclass(frozen=True)
class TunedSchedule:
    """A learned schedule and what it was tuned for.

    Attributes:
        settings: Settings of the sampler.
        prior: Hash of the prior's weights.
        tasks: Names of the tasks.
        noise: Lowest and highest standard deviation of the noise.
        scores: Validation score of the initial ("before") and of the learned schedule ("after").
    """

    settings: Settings
    prior: str
    tasks: tuple[str, ...]
    noise: tuple[float, float]
    scores: dict[str, float]

    @classmethod
    def read(cls, file: str | Path) -> TunedSchedule:
        """Read a schedule.

        Raises:
            ValueError: The file is not a schedule.
        """
        try:
            values: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
            low, high = (float(value) for value in values["noise"])
            settings, scores = Settings.from_dict(values["settings"]), dict(values["scores"])
            tasks = tuple(str(task) for task in values["tasks"])
            return cls(settings, str(values["prior"]), tasks, (low, high), scores)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is no schedule of lavps tune: {error!r}") from error

    def write(self, file: str | Path) -> None:
        """Write the schedule as JSON."""
        values = {"format": _FORMAT, **asdict(self), "settings": self.settings.to_dict()}
        write_atomically(Path(file), (json.dumps(values, indent=2) + "\n").encode())

    def check(self, prior: str | None, task: str | None, noise: float | None) -> None:
        """Check that the schedule was tuned for a prior, a task and a noise level.

        Raises:
            ValueError: It was tuned for others; the message states which.
        """
        own = (self.prior, self.tasks, self.noise)
        check_scope("the schedule was tuned", own, prior, task, noise, "lavps tune")
