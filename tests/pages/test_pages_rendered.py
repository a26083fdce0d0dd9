"""HTML reports: whatever names and reasons contain, they are text; a page fetches nothing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lavps.apps.bulk import Bulk, Recipe, RunStats
from lavps.apps.bulk.engine import Result
from lavps.apps.bulk.records import Record
from lavps.apps.bulk.report import write_report
from lavps.apps.bulk.sources import Partition
from lavps.pages import render
from lavps.restoration import MeasurementSpec, RestorationConfig
from support.restoring import picture, save

pytest.importorskip("jinja2")
HOSTILE = "<script>alert('&\"1')</script>"


def test_values_are_escaped_and_code_is_marked() -> None:
    page = render(
        "benchmark",
        "report",
        title=HOSTILE,
        summary=[f"prior `{HOSTILE}` and `b`"],
        figures=[{"name": HOSTILE, "caption": HOSTILE, "src": "data:,"}],
        sections={HOSTILE: ([HOSTILE], [[HOSTILE]])},
    )
    assert "alert('" not in page
    assert page.count("alert(&#39;") == 7 + 1  # the title is also the heading
    assert "<code>b</code></p>" in page.replace("\n", "")
    assert page.startswith("<!doctype html>\n")


def bulk_page(tmp_path: Path, records: list[Record]) -> str:
    source = tmp_path / "in"
    source.mkdir()
    for record in records:
        save(source / record.name, picture(8, 8))
    partition = Partition("files-0", names=tuple(record.name for record in records))
    recipe = Recipe(RestorationConfig("prior", "warm", MeasurementSpec("sr4"), samples=2, seed=7))
    tally = RunStats(1)
    tally.add(Result(partition, 0, records, [True] * len(records), len(records)))
    place = write_report(Bulk(str(source), str(tmp_path / "out"), recipe), tally)
    assert place == str(tmp_path / "out" / "report.html")
    return Path(place).read_text()


def test_the_bulk_report_shows_what_to_check(tmp_path: Path) -> None:
    records = [
        Record("good.png", "files-0", "ok", "a", chi_square=1.02, acceptance=0.75),
        Record("far & away.png", "files-0", "ok", "b", chi_square=12.4, acceptance=0.25),
        Record("lost.png", "files-0", "failed", "c", reason=HOSTILE),
    ]
    page = bulk_page(tmp_path, records)
    assert "alert('" not in page
    assert page.count("<svg") == 2
    assert page.count("<rect") == 32 + 20
    assert len(re.findall(r'fill="var\(--bad\)"', page)) == 16  # bins of misfits from 3 on
    assert "<b>50%</b>acceptance rate" in page
    assert "far &amp; away.png<br>misfit 12</figcaption>" in page
    assert "good.png<br>misfit 1.02</figcaption>" in page
    assert "<h2>Failures: 1</h2>" in page
    assert page.count("data:image/png;base64,") == 3  # a measurement each; nothing was restored
    assert "restored: no image" in page
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_the_bulk_report_of_a_run_without_problems_says_so(tmp_path: Path) -> None:
    page = bulk_page(tmp_path, [Record("a.png", "files-0", "ok", "a", chi_square=0.9)])
    assert "no misfit exceeds 3." in page
    assert "Failures" not in page
    assert page.count("<svg") == 1
    assert 'class="bad"' not in page


def test_a_missing_jinja_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'jinja2 is not installed: pip install "lavps\[report\]"'):
        render("benchmark", "report")
