"""The report of a bulk run: one page, nothing fetched, with what to look at before the images are used."""

from __future__ import annotations

__all__ = ["write_report"]

import base64
import io
from collections.abc import Sequence
from html import escape

from PIL import Image

from ..images import ImageError
from ..pictures import picture_panel
from ..reading import read_image
from .records import Ledger, Record
from .run import Bulk
from .sinks import Sink
from .sources import Partition, Source
from .stores import Store
from .tally import Histogram, Tally

PAGE = "report.html"
_SIDE = 112  # pixels of a picture on the contact sheet
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --bar: #4a7dbd; --bad: #c0563f; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } p { max-width: 48rem; }
.facts { display: flex; flex-wrap: wrap; gap: .8rem; } .facts div { background: var(--soft);
  border-radius: 8px; padding: .5rem .9rem; } .facts b { display: block; font-size: 1.3rem; }
.facts .bad b { color: var(--bad); }
.sheet { display: flex; flex-wrap: wrap; gap: .9rem; } .sheet figure { margin: 0; width: 232px; }
.sheet img { width: 112px; height: 112px; object-fit: contain; image-rendering: pixelated;
  background: #8882; }
figcaption { font-size: .75rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.pair { display: flex; gap: 6px; } .plots { display: flex; flex-wrap: wrap; gap: 2.5rem; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
"""


def write_report(bulk: Bulk, tally: Tally) -> str:
    """Write ``report.html`` to the destination, and say where it is."""
    source, store = Source.open(bulk.source, bulk.column), Store(bulk.destination)
    sink = Sink(Ledger(store, source.id), bulk.kind or source.kind)
    parts = [
        f"<h1>{escape(str(bulk.recipe.job.measuring.task or 'Restoration'))}: {tally.items} images</h1>",
        _facts(tally),
        f"<p>{escape(_words(bulk, tally))}</p>",
        "<h2>How well the results explain the measurements</h2><div class='plots'>",
        _histogram("misfit, 1 being ideal (chi-square, logarithmic)", tally.misfits, 3.0),
    ]
    if tally.acceptance is not None:
        parts.append(_histogram("warm starts kept by the safeguard, share", tally.shares, None))
    parts.append("</div>")
    parts += _distrusted(tally, source, sink)
    parts.append("<h2>A few images, drawn at random</h2>")
    parts.append(_sheet([(p, r) for _, _, p, r in sorted(tally.shown, key=lambda e: e[1])], source, sink))
    parts += _failures(tally)
    body = "\n".join(parts)
    title = f"lavps restore-bulk: {bulk.destination}"
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )
    store.write(PAGE, page.encode())
    return f"{bulk.destination.rstrip('/')}/{PAGE}"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _facts(tally: Tally) -> str:
    facts = [
        (f"{tally.fresh + tally.skipped}", "restored", False),
        (f"{tally.failed}", "failed", tally.failed > 0),
        (f"{tally.distrusted}", "do not trust", tally.distrusted > 0),
    ]
    if tally.rate > 0:
        facts.append((f"{tally.rate:.3g}", "images a second", False))
    if tally.acceptance is not None:
        facts.append((f"{tally.acceptance:.0%}", "warm starts kept", False))
    cells = [f'<div class="{"bad" if bad else ""}"><b>{n}</b>{escape(what)}</div>' for n, what, bad in facts]
    return f'<div class="facts">{"".join(cells)}</div>'


def _words(bulk: Bulk, tally: Tally) -> str:
    job = bulk.recipe.job
    how = f"with the prior {job.prior}" + (f" and the inference model {job.model}" if job.model else "")
    before = f" {tally.skipped} were there from earlier runs." if tally.skipped else ""
    return (
        f"From {bulk.source}, {how}, {job.samples} sample(s) an image, seed {job.seed}.{before} One sample "
        f"is one plausible picture, not the truth. Every item is in manifest/, a table in Parquet."
    )


def _histogram(title: str, histogram: Histogram, limit: float | None) -> str:
    """Bars as SVG; those beyond the limit in another colour."""
    width, height, most = 460, 150, max(*histogram.counts, 1)
    step = width / len(histogram.counts)
    bars = []
    for place, count in enumerate(histogram.counts):
        low, high = histogram.edges[place], histogram.edges[place + 1]
        tall = height * count / most
        colour = "var(--bad)" if limit is not None and low >= limit * 0.99 else "var(--bar)"
        bars.append(
            f'<rect x="{place * step + 1:.1f}" y="{height - tall:.1f}" width="{step - 2:.1f}" '
            f'height="{tall:.1f}" fill="{colour}"><title>{low:.3g} to {high:.3g}: {count}</title></rect>'
        )
    labels = [
        f'<text x="{place * step:.0f}" y="{height + 15}" text-anchor="middle">'
        f"{histogram.edges[place]:g}</text>"
        for place in histogram.marked
    ]
    return (
        f'<figure style="margin:0"><figcaption>{escape(title)}; the tallest bar is {most}</figcaption>'
        f'<svg viewBox="-14 0 {width + 28} {height + 22}" width="{width}" role="img" '
        f'aria-label="{escape(title)}">{"".join(bars)}{"".join(labels)}</svg></figure>'
    )


def _distrusted(tally: Tally, source: Source, sink: Sink) -> list[str]:
    if not tally.distrusted:
        return ["<p>Every result explains its measurement: no misfit is beyond 3.</p>"]
    worst = [(partition, record) for _, _, partition, record in sorted(tally.worst, key=lambda e: -e[0])]
    rows = "".join(
        f"<tr><td>{escape(record.name)}</td><td>{_number(record.chi_square or 0.0)}</td></tr>"
        for _, record in worst
    )
    return [
        f"<h2>Do not trust these {tally.distrusted}</h2>",
        "<p>Their misfit is beyond 3 times what the noise explains: the operator or the prior does not fit "
        "them, or their noise is larger than stated.</p>",
        _sheet(worst[:12], source, sink),
        f"<details><summary>the list{' begins' if tally.distrusted > len(worst) else ''}</summary>"
        f'<div class="wide"><table><tr><th>image</th><th>misfit</th></tr>{rows}</table></div></details>',
    ]


def _failures(tally: Tally) -> list[str]:
    if not tally.failed:
        return []
    rows = "".join(
        f"<tr><td>{escape(record.name)}</td><td>{escape(record.reason)}</td></tr>"
        for _, record in tally.failures
    )
    return [
        f"<h2>{tally.failed} failed</h2>",
        f'<div class="wide"><table><tr><th>image</th><th>why</th></tr>{rows}</table></div>',
    ]


def _sheet(records: Sequence[tuple[Partition, Record]], source: Source, sink: Sink) -> str:
    """Measurement and result side by side."""
    cells = []
    for partition, record in records:
        output = next((name for name in record.outputs if ".mean." in name), next(iter(record.outputs), ""))
        pictures = [
            _thumbnail(content, alt)
            for content, alt in (
                (source.find(partition, record.name), "measured"),
                (sink.find(partition, output), "restored"),
            )
        ]
        known = "" if record.chi_square is None else f"<br>misfit {_number(record.chi_square)}"
        cells.append(
            f'<figure><div class="pair">{"".join(pictures)}</div>'
            f'<figcaption title="{escape(record.name)}">{escape(record.name)}{known}</figcaption></figure>'
        )
    return f'<div class="sheet">{"".join(cells)}</div>'


def _thumbnail(content: bytes | None, alt: str) -> str:
    """A picture of a file's content; an empty frame where it is none."""
    try:
        pixels = picture_panel(read_image(content or b"").pixels, alt).pixels
    except ImageError:
        return f'<img alt="{alt}: no picture" src="data:,">'
    image = Image.fromarray(pixels)
    if max(image.size) > 2 * _SIDE:
        image.thumbnail((2 * _SIDE, 2 * _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}">'
