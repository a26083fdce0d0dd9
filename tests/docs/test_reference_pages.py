"""The reference leaves no module out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import made_pages
from import_graph import source_files

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lavps"


def test_every_module_is_in_the_reference() -> None:
    named = [module for modules in made_pages.reference_pages().values() for module in modules]
    existing = {
        ".".join(["lavps", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        for path in source_files(SOURCE)
        if path.relative_to(SOURCE).parts[0] != "cli"  # the page of the command line has what it prints
    }
    assert set(named) == existing
    assert len(named) == len(existing)


def test_every_page_is_in_the_contents() -> None:
    index = (ROOT / "docs" / "reference" / "index.md").read_text()
    listed = re.search(r":maxdepth: 1\n\n(.*?)\n```", index, re.S)
    assert listed is not None
    assert sorted(listed[1].split()) == sorted([*made_pages.reference_pages(), "command_line"])


def test_a_name_is_documented_once_and_where_it_is_imported_from() -> None:
    pages = made_pages.reference_pages()
    assert "MGDM" in made_pages.own_names("lavps.samplers", "lavps.samplers")
    assert made_pages.own_names("lavps.samplers.mgps", "lavps.samplers") == []
    own = made_pages.own_names("lavps.samplers.ddim", "lavps.samplers")
    assert own == ["DDIMSampler", "ddim_chain", "denoising_noise"]
    assert "GaussianNoise" not in made_pages.own_names("lavps.problem", "lavps.problem")
    text = made_pages.reference_text("samplers", pages["samplers"])
    assert re.search(r"automodule:: lavps.samplers\n   :members: .*MGDM", text)


def test_the_names_of_other_libraries_exist() -> None:
    lines = [line.split() for line in (ROOT / "docs" / "intersphinx.txt").read_text().splitlines()]
    assert {library for library, *_ in lines} == set(made_pages.LIBRARIES)
    for _, name, kind, page in lines:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module or "builtins"), attribute), name
        assert kind in {"class", "data", "exception"}
        assert page.endswith(".html")


def test_every_benchmark_is_a_question_of_the_overview(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(made_pages, "MADE", tmp_path)
    made_pages.questions()
    text = (tmp_path / "questions.md").read_text()
    listed = re.findall(r"\?\]\(benchmarks/(\w+)\.md\)", text)
    assert sorted(listed) == sorted(path.stem for path in (ROOT / "benchmarks").glob("*.md"))
    charts = re.findall(r"\{image\} /(benchmarks/\S+)", text)
    assert len(charts) >= 8
    assert all((ROOT / chart).is_file() for chart in charts)
