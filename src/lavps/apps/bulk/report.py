"""The report of a bulk run: one page that shows what to check before the images are used."""

from __future__ import annotations

__all__ = ["write_report"]

import io
import math
from collections.abc import Sequence

from PIL import Image

from ...io.decode import read_image
from ...io.image import ImageError
from ...pages import data_uri, render
from ...pages.panels import picture_panel
from ...restoration.manifest import LARGEST_MISFIT
from .records import Record, RecordStore
from .run import Bulk
from .sinks import Sink
from .sources import Partition, Source
from .stats import RunStats
from .stores import Store

PAGE = "report.html"
_SIDE = 112  # side of an image on the contact sheet, in pixels
_WORST = 12  # number of images shown with the largest misfits


def write_report(bulk: Bulk, tally: RunStats) -> str:
    """Write ``report.html`` to the destination and return its path or URL."""
    source, store = Source.open(bulk.source, bulk.column), Store(bulk.destination)
    sink = Sink(RecordStore(store, source.id), bulk.kind or source.kind)
    worst = [(partition, record) for *_, partition, record in sorted(tally.worst, key=lambda e: -e[0])]
    shown = [(partition, record) for *_, partition, record in sorted(tally.shown, key=lambda e: e[1])]
    page = render(
        "bulk",
        "bulk",
        title=f"lavps restore-bulk: {bulk.destination}",
        bulk=bulk,
        job=bulk.recipe.job,
        tally=tally,
        limit=LARGEST_MISFIT,
        infinity=math.inf,
        worst=[record for _, record in worst],
        worst_shown=_images(worst[:_WORST], source, sink),
        shown=_images(shown, source, sink),
    )
    store.write(PAGE, page.encode())
    return f"{bulk.destination.rstrip('/')}/{PAGE}"


def _images(
    records: Sequence[tuple[Partition, Record]], source: Source, sink: Sink
) -> list[tuple[Record, dict[str, str]]]:
    """Pair each record with thumbnails of its measurement and its result."""
    pairs = []
    for partition, record in records:
        output = next((name for name in record.outputs if ".mean." in name), next(iter(record.outputs), ""))
        measured, restored = source.find(partition, record.name), sink.find(partition, output)
        pairs.append((record, {"measured": _thumbnail(measured), "restored": _thumbnail(restored)}))
    return pairs


def _thumbnail(content: bytes | None) -> str:
    """Return an image file as the data URL of a small PNG; empty if it is not an image."""
    try:
        image = Image.fromarray(picture_panel(read_image(content or b"").pixels, "").pixels)
    except ImageError:
        return ""
    if max(image.size) > 2 * _SIDE:
        image.thumbnail((2 * _SIDE, 2 * _SIDE), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")
