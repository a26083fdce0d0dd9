"""The packages of the library, their imports and a figure of them, all read from the source.

    python docs/import_graph.py packages.svg

The packages have a reading order; ``tests/test_layout.py`` checks that imports point backwards in it.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "lavps"
READING_ORDER = [
    "extras",
    "devices",
    "image_formats",
    "schedule",
    "transitions",
    "random",
    "nn",
    "io",
    "priors",
    "noise",
    "operators",
    "checkpoints",
    "problem",
    "entry",
    "data_step",
    "variational",
    "minimizers",
    "guidance",
    "intervals",
    "streaming",
    "samplers",
    "training",
    "amortization",
    "pages",
    "evaluation",
    "benchmark",
    "tiling",
    "restoration",
    "apps",
    "cli",
]
ROOMS = [name for name in READING_ORDER if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()]


def room_of(path: Path, source: Path) -> str:
    """Return the package that a file belongs to."""
    return path.relative_to(source).parts[0].removesuffix(".py")


def imported_rooms(tree: ast.AST, path: Path, source: Path) -> set[str]:
    """Return the packages that a file imports from, by relative or absolute name, anywhere in the file."""
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
    """Return all modules except the top-level ``__init__``."""
    return sorted(path for path in source.rglob("*.py") if path != source / "__init__.py")


def import_graph(source: Path) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Return the imports of every package, and its lines of code."""
    imports: dict[str, set[str]] = {room: set() for room in ROOMS}
    lines = dict.fromkeys(ROOMS, 0)
    for path in source_files(source):
        text, room = path.read_text(), room_of(path, source)
        imports[room] |= imported_rooms(ast.parse(text), path, source) - {room}
        lines[room] += len(text.splitlines())
    return imports, lines


def draw(source: Path) -> Any:
    """Draw a square where the package of a row imports from the package of a column."""
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
    axis.set_xlabel("numbers: lines of code of the package")
    axis.set_ylabel("importing package")
    return figure


if __name__ == "__main__":
    draw(SOURCE).savefig(sys.argv[1])
