"""The rooms of the package, who imports whom, and a drawing of it: all read off the source.

    python docs/import_graph.py rooms.svg

The order of the rooms is that of reading; ``tests/test_layout.py`` keeps imports pointing backwards in it.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

ROOMS = [
    "schedule",
    "transitions",
    "random",
    "priors",
    "operators",
    "noise",
    "problem",
    "variational",
    "minimizers",
    "initializers",
    "samplers",
    "networks",
    "amortization",
    "evaluation",
    "restoration",
    "cli",
]


def room_of(path: Path, source: Path) -> str:
    """The room a file belongs to."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST, path: Path, source: Path) -> set[str]:
    """The rooms a file imports from, by relative or absolute name, at any depth of the file."""
    depth_of_file = len(path.relative_to(source).parts)
    rooms = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == depth_of_file:  # relative to the package's root
                rooms |= {module.split(".")[0]} if module else {alias.name for alias in node.names}
            elif node.level == 0 and module.split(".")[0] == "lavps":
                rooms |= {module.split(".")[1]} if "." in module else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lavps.")}
    return rooms


def source_files(source: Path) -> list[Path]:
    """Every module but the package's own front door."""
    return sorted(path for path in source.rglob("*.py") if path != source / "__init__.py")


def import_graph(source: Path) -> tuple[dict[str, set[str]], dict[str, int]]:
    """For every room the rooms it imports, and its lines of code."""
    imports: dict[str, set[str]] = {room: set() for room in ROOMS}
    lines = dict.fromkeys(ROOMS, 0)
    for path in source_files(source):
        text, room = path.read_text(), room_of(path, source)
        imports[room] |= imported_rooms(ast.parse(text), path, source) - {room}
        lines[room] += len(text.splitlines())
    return imports, lines


def draw(source: Path) -> Any:
    """A square where the room of a line imports from the room of a column; all lie below the diagonal."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    imports, lines = import_graph(source)
    count = len(ROOMS)
    figure = Figure(figsize=(8.0, 7.2), layout="constrained")
    axis = figure.add_subplot()
    for row, room in enumerate(ROOMS):
        axis.add_patch(Rectangle((row - 0.5, row - 0.5), 1, 1, color="#dddddd"))
        axis.text(row, row, f"{lines[room]}", ha="center", va="center", fontsize=7, color="#333333")
        for other in imports[room]:
            axis.add_patch(Rectangle((ROOMS.index(other) - 0.36, row - 0.36), 0.72, 0.72, color="#4477aa"))
    axis.set_xticks(range(count), ROOMS, rotation=60, ha="left", rotation_mode="anchor", family="monospace")
    axis.set_yticks(range(count), ROOMS, family="monospace")
    axis.xaxis.tick_top()
    axis.set_xlim(-0.5, count - 0.5)
    axis.set_ylim(count - 0.5, -0.5)
    axis.set_xticks([place - 0.5 for place in range(count)], minor=True)
    axis.set_yticks([place - 0.5 for place in range(count)], minor=True)
    axis.grid(which="minor", color="#eeeeee")
    axis.tick_params(which="both", length=0)
    axis.set_aspect("equal")
    axis.set_xlabel("grey: lines of the room itself")
    axis.set_ylabel("this room imports from ...")
    return figure


if __name__ == "__main__":
    draw(Path(__file__).parents[1] / "src" / "lavps").savefig(sys.argv[1])
