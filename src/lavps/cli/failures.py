"""How a command fails: with its reason in one line, and exit code 1."""

from __future__ import annotations

__all__ = ["FAILURES", "fatal", "line_of"]

import sys
from collections.abc import Iterator
from contextlib import contextmanager

FAILURES: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    TypeError,
    RuntimeError,
    ArithmeticError,
    MemoryError,
)


@contextmanager
def fatal(command: str, kinds: tuple[type[Exception], ...] = (*FAILURES, ImportError)) -> Iterator[None]:
    """What cannot be begun ends the command with its reason in a line, and exit code 1.

    Args:
        command: its name.
        kinds: of errors that say why; others are faults of the program, and keep their traceback.
    """
    try:
        yield
    except kinds as error:
        print(f"lavps {command}: {line_of(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def line_of(error: BaseException) -> str:
    """An error in one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}"
    return " ".join(text.split()) or type(error).__name__
