"""Pages made from other files when the site is built: benchmarks, the command line, the drawing of imports.

Nothing made here is committed: what a page shows is what the repository holds.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shutil
import textwrap
import zlib
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from import_graph import ROOMS, draw, source_files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src" / "lavps"
MADE = DOCS / "_static" / "made"
LIBRARIES = {
    "python": "https://docs.python.org/3",
    "torch": "https://docs.pytorch.org/docs/stable",
}


def benchmark_pages() -> None:
    """Copy ``benchmarks/*.md`` with their figures; links out of the folder become plain names."""
    folder = DOCS / "benchmarks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for source in sorted((ROOT / "benchmarks").glob("*.md")):
        text = source.read_text()
        # Files outside of the folder have no page on the site.
        (folder / source.name).write_text(re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text))
        for name in set(re.findall(r"\]\(([^):#]+\.(?:png|svg|jpg|gif|json))\)", text)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source.parent / name, folder / name)


def questions() -> None:
    """The question of every study with a link, the first sentence of its answer, and its first chart."""
    text = (ROOT / "recipes" / "README.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `[^|]+` \| \[\w+\]\(\.\./(benchmarks/\w+\.md)\) \|$", text, re.M)
    parts = [
        f"**[{question}]({page})** {answer(ROOT / page)}\n{chart(ROOT / page)}" for question, page in rows
    ]
    (MADE / "questions.md").write_text("\n".join(parts))


def answer(page: Path) -> str:
    """The first sentence of a page's answer; nothing if the page has none."""
    found = re.search(r"^\*\*Answer\.\*\* (.+?\.)(?=\s+[A-Z]|\n\n)", page.read_text(), re.M | re.S)
    return " ".join(found[1].split()) if found else ""


def chart(page: Path) -> str:
    """The first figure of a page, if it is above the first table; nothing otherwise."""
    found = re.search(r"^!\[([^\]]*)\]\(([^)]+\.png)\)$", page.read_text().partition("\n| ")[0], re.M)
    return f"\n```{{image}} /benchmarks/{found[2]}\n:alt: {found[1]}\n:width: 80%\n```\n" if found else ""


def reference_pages() -> dict[str, list[str]]:
    """Return the modules of each page of the reference: one page per package and per subpackage."""
    pages: dict[str, list[str]] = {room: [f"lavps.{room}"] for room in ROOMS if room != "cli"}
    for path in source_files(SOURCE):
        *packages, name = path.relative_to(SOURCE).with_suffix("").parts
        if packages and packages[0] in pages:
            modules = pages.setdefault(".".join(packages), [".".join(["lavps", *packages])])
            modules += [] if name.startswith("__") else [".".join(["lavps", *packages, name])]
    return pages


def own_names(module: str, package: str) -> list[str]:
    """What a module defines and offers, and its package, where it is another, does not offer already."""
    loaded, above = importlib.import_module(module), importlib.import_module(package)
    taken = set() if module == package else set(above.__all__)
    objects = {name: getattr(loaded, name) for name in loaded.__all__ if name not in taken}
    return [
        name for name, thing in objects.items() if str(getattr(thing, "__module__", "")).startswith(module)
    ]


def reference_text(page: str, modules: list[str]) -> str:
    """A page of the reference: the package as it is imported, then its modules one by one."""
    package = modules[0]
    parts = [f"# lavps.{page}", ""]
    for module in modules:
        if module != package:
            parts += [f"## {module}", ""]
        parts += ["```{eval-rst}", f".. automodule:: {module}"]
        names = own_names(module, package)
        if module.rpartition(".")[2] in importlib.import_module(package).__all__:
            parts += ["   :no-index:"]  # a module that shares its name with what it offers
        if names:
            parts += [f"   :members: {', '.join(names)}", "   :imported-members:"]
        parts += ["```", ""]
    return "\n".join(parts)


def write_reference() -> None:
    """The pages made from docstrings."""
    for page, modules in reference_pages().items():
        (DOCS / "reference" / f"{page}.md").write_text(reference_text(page, modules))


def root_pages() -> None:
    """CONTRIBUTING.md and CHANGELOG.md, their links into the repository as plain names."""
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"`\1`", (ROOT / name).read_text())
        (MADE / name.lower()).write_text(text)


def inventories() -> None:
    """Inventories for intersphinx, from the lines "library name type page" of a text file."""
    lines = [line.split() for line in (DOCS / "intersphinx.txt").read_text().splitlines()]
    for library in LIBRARIES:
        entries = "".join(
            f"{n} py:{kind} 1 {page}#$ -\n" for place, n, kind, page in lines if place == library
        )
        header = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        (MADE / f"{library}.inv").write_bytes(header.encode() + zlib.compress(entries.encode()))


def narrow(line: str, width: int = 84) -> list[str]:
    """Break a line that is wider than code on the site; commands continue after a backslash."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    if not line.startswith("$ "):
        return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False) or [""]
    parts = textwrap.wrap(line, width - 2, subsequent_indent=indent, break_on_hyphens=False)
    return [f"{part} \\" for part in parts[:-1]] + parts[-1:]


def help_of(command: str) -> str:
    """What ``lavps COMMAND --help`` prints."""
    from lavps.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())
    return "\n".join(line for long in plain.splitlines() for line in narrow(long))


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

    os.environ["COLUMNS"] = "82"
    parts = ["# Command line", "", "What `lavps COMMAND --help` prints.", ""]
    for command in commands(cli.command_type()):
        parts += [f"## lavps {command}", "", "```text", help_of(command).strip(), "```", ""]
    (DOCS / "reference" / "command_line.md").write_text("\n".join(parts))


def front_figure() -> None:
    """The figure of the README."""
    shutil.copy(ROOT / "benchmarks" / "showcase.png", MADE)


def import_drawing() -> None:
    """The architecture page's figure."""
    draw(SOURCE).savefig(MADE / "packages.svg")


def make_all(*_: object) -> None:
    """Everything; called when a build begins."""
    MADE.mkdir(parents=True, exist_ok=True)
    benchmark_pages()
    questions()
    root_pages()
    inventories()
    command_page()
    write_reference()
    front_figure()
    import_drawing()
