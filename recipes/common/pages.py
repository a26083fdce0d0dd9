"""Pages of results: a template in the study's folder, filled with numbers from the study's JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lavps.benchmark.report import markdown_table

from .labels import METHODS, NFE

RECIPES = Path(__file__).parents[1]
MEASURED = "## Measured"


def read(pages: Path, study: str, missing: Any = None) -> Any:
    """Return the stored numbers of a study; those given as ``missing``, if any, where nothing is stored."""
    file = pages / f"{study}.json"
    return missing if missing is not None and not file.exists() else json.loads(file.read_text())


def write_json(pages: Path, study: str, values: Any, indent: int | None = 1) -> None:
    """Store the numbers of a study."""
    pages.mkdir(parents=True, exist_ok=True)
    (pages / f"{study}.json").write_text(json.dumps(values, indent=indent) + "\n")


def write_page(pages: Path, study: str, **fields: Any) -> Path:
    """Fill ``recipes/STUDY/page.md`` and write it as ``STUDY.md``; every template may use {methods} and {nfe}."""
    template = (RECIPES / study / "page.md").read_text()
    page = pages / f"{study}.md"
    page.write_text(template.format(**{"methods": METHODS, "nfe": NFE} | fields))
    print(page)
    return page


def figures(study: str, titles: Mapping[str, str]) -> str:
    """Return the image grids of a study in Markdown, one per task."""
    return "\n\n".join(f"**{title}**\n\n![{task}]({study}/{task}.png)" for task, title in titles.items())


def versions_of(result: Mapping[str, Any]) -> str:
    """Return the recorded versions of the packages."""
    return ", ".join(f"{name} {version}" for name, version in result["versions"].items())


def span(values: Sequence[float], digits: int = 0) -> str:
    """Return the range of some numbers: "3.61", or "1.17 to 3.04"."""
    ends = dict.fromkeys(f"{value:,.{digits}f}" for value in (min(values), max(values)))
    return " to ".join(ends)


def add_measured(folder: Path, page: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Append what a study measured to the card of a model, replacing an earlier table."""
    if not (card := folder / "README.md").exists():
        return
    text = card.read_text().split(MEASURED)[0].rstrip()
    source = f"On test images, by the study of [`benchmarks/{page}`](../../benchmarks/{page})."
    card.write_text(f"{text}\n\n{MEASURED}\n\n{source}\n\n{markdown_table(head, rows)}\n")
