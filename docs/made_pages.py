"""Pages made from other files when the site is built: benchmarks, the command line, the drawing of imports.

Nothing made here is committed: what a page shows is what the repository holds.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from import_graph import draw

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "_static" / "made"


def benchmark_pages() -> None:
    """Copies of ``benchmarks/*.md`` with their figures, and links to recipes as plain names."""
    folder = DOCS / "benchmarks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for source in sorted((ROOT / "benchmarks").glob("*.md")):
        text = source.read_text()
        # What lies outside of the folder has no page here.
        (folder / source.name).write_text(re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text))
        for name in set(re.findall(r"\]\(([^):#]+\.(?:png|svg|jpg|gif|json))\)", text)):
            shutil.copy(source.parent / name, folder / name)


def contributing_text() -> None:
    """CONTRIBUTING.md, its links into the repository as plain names."""
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"`\1`", (ROOT / "CONTRIBUTING.md").read_text())
    (MADE / "contributing.md").write_text(text)


def help_of(command: str) -> str:
    """What ``lavps COMMAND --help`` prints."""
    from lavps.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    return re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())


def commands(union: Any, above: str = "") -> list[str]:
    """Names of all commands, from the types the command line is made of; groups give way to their members."""
    found = []
    for part in get_args(union):
        if get_origin(part) is not Annotated:
            continue
        command, name = part.__origin__, f"{above} {part.__metadata__[0].name}".strip()
        hints = get_type_hints(command, include_extras=True).values()
        members = [member for hint in hints for member in commands(hint, name)]
        found += members or [name]
    return found


def command_page() -> None:
    """The help of every command, as it is printed."""
    from lavps import cli

    os.environ["COLUMNS"] = "100"
    parts = ["# Command line", "", "What `lavps COMMAND --help` prints.", ""]
    for command in commands(cli._Commands):
        parts += [f"## lavps {command}", "", "```text", help_of(command).strip(), "```", ""]
    (DOCS / "reference" / "command_line.md").write_text("\n".join(parts))


def import_drawing() -> None:
    """The architecture page's figure."""
    draw(ROOT / "src" / "lavps").savefig(MADE / "rooms.svg")


def make_all(*_: object) -> None:
    """Everything; called when a build begins."""
    MADE.mkdir(parents=True, exist_ok=True)
    benchmark_pages()
    contributing_text()
    command_page()
    import_drawing()
