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
    lavps plan --prior runs/faces64/model --task sr4 --images 1000000 --lost-every 24
    lavps replay restored/photo.json
    lavps serve --models faces=zoo/faces64,zoo/faces64-sr4
    lavps demo --prior zoo/synthfaces64
    lavps doctor
    torchrun --nproc_per_node 8 -m lavps.cli train prior --data faces/ --size 64 --output runs/faces64
    lavps bench measure bench/sr4 --prior runs/faces64/model --task sr4 --validation val.tar --test test.tar

An interrupted training run resumes when the same command is run again.
"""

from __future__ import annotations

__all__ = ["main", "parse"]

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from .bench import Bench
from .calibrate import Calibrate
from .degrade import Degrade
from .demo import Demo
from .doctor import Doctor
from .info import Info
from .plan import Plan
from .replay import Replay
from .restore import Restore
from .restore_bulk import RestoreBulk
from .serve import Serve
from .train import Train
from .tune import Tune

_Commands = (
    Annotated[Restore, tyro.conf.subcommand("restore")]
    | Annotated[RestoreBulk, tyro.conf.subcommand("restore-bulk")]
    | Annotated[Replay, tyro.conf.subcommand("replay")]
    | Annotated[Degrade, tyro.conf.subcommand("degrade")]
    | Annotated[Info, tyro.conf.subcommand("info")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Plan, tyro.conf.subcommand("plan")]
    | Annotated[Serve, tyro.conf.subcommand("serve")]
    | Annotated[Demo, tyro.conf.subcommand("demo")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Calibrate, tyro.conf.subcommand("calibrate")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
)


def parse(arguments: Sequence[str] | None = None) -> Any:
    """Return the command of a command line, not yet run; exit with code 1 if there is none."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if any(word.split("=")[0].replace("_", "-") == "--jpeg-quality" for word in words):
        print("lavps: the quality is part of the task, as in --task jpeg20", file=sys.stderr)
        raise SystemExit(1)
    try:
        return tyro.cli(
            _Commands,
            prog="lavps",
            description="Posterior sampling for imaging inverse problems with diffusion priors.",
            args=arguments,
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
