"""Failures of commands: the reason in one line, and exit code 1."""

from __future__ import annotations

__all__ = ["FAILURES", "fatal", "line_of", "terminable"]

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

FAILURES = (OSError, ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError)


@contextmanager
def fatal(command: str, kinds: tuple[type[Exception], ...] = (*FAILURES, ImportError)) -> Iterator[None]:
    """Print an error in one line and exit with code 1.

    Args:
        command: Name of the command.
        kinds: Expected errors; others are faults of the program and keep their traceback.
    """
    try:
        yield
    except BrokenPipeError:  # main ends the command without a message
        raise
    except kinds as error:
        print(f"lavps {command}: {line_of(error)}", file=sys.stderr)
        raise SystemExit(1) from None


@contextmanager
def terminable() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C in this context, so that a run ends with its state saved."""
    if threading.current_thread() is not threading.main_thread():  # has no signal handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def line_of(error: BaseException) -> str:
    """Return an error in one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}"
    return " ".join(text.split()) or type(error).__name__
