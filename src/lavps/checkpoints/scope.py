"""Scope of a learned file: the prior, the tasks and the noise levels it holds for."""

from __future__ import annotations

__all__ = ["check_scope"]

_TOLERANCE = 0.05  # relative, of the noise range


def check_scope(
    made: str,
    own: tuple[str, tuple[str, ...], tuple[float, float]],
    prior: str | None,
    task: str | None,
    noise: float | None,
    remedy: str,
) -> None:
    """Check that something learned holds for a prior, a task and a noise level.

    Args:
        made: Subject and verb of the message, such as "the schedule was tuned".
        own: Hash of its prior, its tasks, its lowest and highest noise.
        prior: Hash of the prior in use; None if it has none.
        task: Task in use.
        noise: Noise in use.
        remedy: Command that makes another one.

    Raises:
        ValueError: It holds for others; the message states which.
    """
    known, tasks, (low, high) = own
    if prior is not None and prior != known:
        raise ValueError(f"{made} for prior {known[:12]}, not for {prior[:12]}")
    if task not in tasks:
        raise ValueError(f"{made} for task {', '.join(tasks)}, not for {task}: run {remedy}")
    if noise is None or not low * (1 - _TOLERANCE) <= noise <= high * (1 + _TOLERANCE):
        levels = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        raise ValueError(f"{made} for noise {levels}, not for {noise}")
