"""A page of one file: figures inside, tables that sort, readable by day and by night, nothing fetched."""

from __future__ import annotations

__all__ = ["page"]

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p { max-width: 48rem; }
figure { margin: 1.5rem 0; } figcaption { max-width: 48rem; font-size: .9rem; opacity: .8; }
figure img { max-width: 100%; background: #fff; border-radius: 6px; padding: 4px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; }
table { font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
th { cursor: pointer; position: sticky; top: 0; } tbody tr:hover { background: var(--soft); }
"""
# A click on a head sorts by that column, as numbers where they are numbers; again, the other way round.
_SCRIPT = """
for (const head of document.querySelectorAll("th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const sign = head.dataset.sign = head.dataset.sign === "1" ? "-1" : "1";
  const value = row => row.cells[column].textContent, number = text => parseFloat(text.replace("< .", ".0"));
  [...body.rows].sort((a, b) => {
    const [x, y] = [value(a), value(b)], [m, n] = [number(x), number(y)];
    return sign * (isNaN(m) || isNaN(n) ? x.localeCompare(y) : m - n);
  }).forEach(row => body.append(row));
};
"""


def page(
    title: str,
    summary: Sequence[str],
    sections: Mapping[str, tuple[list[str], list[list[str]]]],
    figures: Mapping[str, str],
    folder: Path,
) -> str:
    """The page.

    Args:
        title: its head.
        summary: paragraphs; words in backticks are set as code.
        sections: tables by title, a head and rows of cells each.
        figures: captions by name; their files are NAME.svg, or NAME.png for images.
        folder: of these files.
    """
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f"<p>{_inline(paragraph)}</p>" for paragraph in summary]
    parts += [_figure(folder, name, caption) for name, caption in figures.items()]
    parts += [_section(name, head, rows) for name, (head, rows) in sections.items()]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>\n{chr(10).join(parts)}\n<script>{_SCRIPT}</script></body></html>\n"
    )


def _inline(text: str) -> str:
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if place % 2 else piece for place, piece in enumerate(pieces))


def _figure(folder: Path, name: str, caption: str) -> str:
    # Photographs as pixels, plots as lines: an image in SVG is the same pixels, only larger.
    ending, kind = ("png", "image/png") if name == "images" else ("svg", "image/svg+xml")
    data = base64.b64encode((folder / f"{name}.{ending}").read_bytes()).decode()
    picture = f'<img alt="{escape(name)}" src="data:{kind};base64,{data}">'
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<section><h2>{escape(title)}</h2><div class="wide">{table}</div></section>'
