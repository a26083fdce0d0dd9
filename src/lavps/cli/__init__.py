"""The command ``lavps``: each subcommand is a dataclass whose fields are its options.

.. code-block:: shell

    lavps train prior --data faces/ --size 64 --output runs/faces64
    lavps train inference --data faces/ --prior runs/faces64/model --task sr4 --output runs/faces64-sr4
    lavps tune --prior runs/faces64/model --task sr4 --noise 0.05 --data faces/ --evaluations 8
    lavps calibrate --prior runs/faces64/model --task sr4 --noise 0.05 --images held-out/ --evaluations 8
    lavps degrade photo.png --task sr4 --noise 0.05 --output measured/
    lavps info runs/faces64/model
    lavps restore measured/ --prior runs/faces64/model --samples 4 --output restored/
    lavps restore-bulk shards/ restored/ --prior runs/faces64/model --task sr4
    lavps plan --prior runs/faces64/model --task sr4 --count 1000000 --lost-every 24
    lavps replay restored/photo.json
    lavps serve --models faces=zoo/synthfaces64,zoo/synthfaces64-sr4
    lavps demo --prior zoo/synthfaces64
    lavps doctor
    torchrun --nproc_per_node 8 -m lavps.cli train prior --data faces/ --size 64 --output runs/faces64
    lavps bench measure bench/sr4 --prior runs/faces64/model --task sr4 --validation val.tar --test test.tar

An interrupted training run resumes when the same command is run again.
"""

from __future__ import annotations

__all__ = ["command_type", "main", "parse"]

import os
import sys
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from operator import or_
from typing import Annotated, Any

import tyro

# The class of restore-bulk is RestoreBulk in the module restore_bulk. A command imports only its own module.
_COMMANDS = (
    "restore",
    "restore-bulk",
    "replay",
    "degrade",
    "info",
    "doctor",
    "plan",
    "serve",
    "demo",
    "train",
    "tune",
    "calibrate",
    "bench",
)


def command_type(name: str | None = None) -> Any:
    """Return the dataclass of a command, or the union of all commands."""
    if name is None:
        found = ((name, command_type(name)) for name in _COMMANDS)
        commands = (
            Annotated[kind, tyro.conf.subcommand(name, description=_first_line(kind))] for name, kind in found
        )
        return reduce(or_, commands)
    module = import_module(f".{name.replace('-', '_')}", __package__)
    return getattr(module, name.title().replace("-", ""))


def _first_line(kind: Any) -> str:
    return str(kind.__doc__).strip().splitlines()[0]


def parse(arguments: Sequence[str] | None = None) -> Any:
    """Return the command of a command line, not yet run; exit with code 1 if there is none."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if any(word.split("=")[0].replace("_", "-") == "--jpeg-quality" for word in words):
        print("lavps: the quality is part of the task, as in --task jpeg20", file=sys.stderr)
        raise SystemExit(1)
    if words == ["--version"]:
        print(f"lavps {version('lavps')}")
        raise SystemExit(0)
    name, rest = (words[0], words[1:]) if words and words[0] in _COMMANDS else (None, words)
    about = None if name else "Posterior sampling for imaging inverse problems with diffusion priors."
    try:
        return tyro.cli(
            command_type(name),
            prog=f"lavps {name}" if name else "lavps",
            description=about,
            args=rest,
            config=(
                tyro.conf.OmitSubcommandPrefixes,
                tyro.conf.OmitArgPrefixes,
                tyro.conf.DisallowNone,
            ),
        )
    except SystemExit as end:
        raise SystemExit(1 if end.code else 0) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run the command.

    Exit with code 1 if parsing fails or the reader of the output is gone (``| head``), 130 on Ctrl-C.
    """
    try:
        try:
            parse(arguments).run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print(interrupt or "interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # The interpreter flushes again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
