"""The language of the code: the field's own words, and documentation that stands alone."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "lavps"
FILES = sorted(SOURCE.rglob("*.py"))
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        ".github/**/*.md",
        "benchmarks/*.md",
        "docs/*.md",
        "docs/[ceht]*/*.md",
        "docs/reference/index.md",
        "docs/tutorials/*.py",
        "docs/tutorials/*.rst",
        "examples/*.md",
        "recipes/**/*.md",
        "zoo/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
_UNIT = "(step|sample|image|run|row|item|level|worker|replica|GPU|model|second|file|batch|folder|method)"
# Words that the field does not use, each with the one to write instead.
WORDS = {
    r"told|tells?|telling": "conditioned on; returns, reports",
    r"asks?|asked|asking": "evaluates, queries, requests",
    r"hears?|heard|says?|said": "receives; states, reports",
    r"knows?|knowing": "has, uses, is known",
    r"promis(e|es|ed)|forgiv\w+": "guarantees",
    r"dear|dearer|dearest": "expensive",
    r"rooms?": "module, package",
    r"pictures?": "image",
    r"rivals?": "baseline",
    r"gentle|gently": "damped",
    r"verdicts?": "decision, assessment",
    r"spread": "standard deviation",
    r"nobody|somebody|whoever": "name the subject",
    r"taking turns|takes turns|take turns": "in alternation, in parallel",
    r"(?<!forward )(?<!backward )pass(es)? of": "evaluations of, forward passes of",
    r"begun|anew": "started; again, new",
    rf"(forwards?|backwards?|gradients?|samples?|steps?|images?|seconds|rows?) an? {_UNIT}": "per",
}
# Keys of files on disk, which keep their names.
STORED = {"verdict", "begun", "told", "picture", "/v1/jobs/{id}/pictures/{name}"}
IDENTIFIERS = {"told", "walk", "reach", "places", "verdict", "stiffness", "pull", "remembered", "gentle"}
PREPOSITION = re.compile(
    r"(of|to|in|for|from|with|by|at|on|under|over|until|into|as|than|within|without|beside|where|when|how|what|"
    r"which|who)\b",
    re.IGNORECASE,
)


def _texts(file: Path) -> Iterator[tuple[int, str]]:
    """Comments and strings of a file, by line; names of files' keys are left out."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
        elif token.type == tokenize.STRING and token.string.lstrip("rbfRBF").strip("\"'") not in STORED:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line
        elif token.type == getattr(tokenize, "FSTRING_MIDDLE", -1):
            yield token.start[0], token.string


def _unusual(file: Path, texts: Iterable[tuple[int, str]]) -> list[str]:
    """Words of some lines that the field does not use, each with the one to write instead."""
    return [
        f"{file.name}:{line}: {match[0]!r} ({instead}) in {text.strip()[:90]!r}"
        for line, text in texts
        for pattern, instead in WORDS.items()
        if (match := re.search(rf"\b({pattern})\b", text, re.IGNORECASE))
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_words_are_those_of_the_field(file: Path) -> None:
    found = _unusual(file, _texts(file))
    assert not found, "\n" + "\n".join(found)


def _prose(file: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page; names in code, in the fields of templates and in addresses are left out."""
    fenced = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced:
            yield number, re.sub(r"`[^`]*`|\{\w+\}|\]\([^)]*\)", "", line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_words_of_a_page_are_those_of_the_field(page: Path) -> None:
    found = _unusual(page, _texts(page) if page.suffix == ".py" else _prose(page))
    assert not found, "\n" + "\n".join(found)


def test_an_unusual_word_on_a_page_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`told` is code.\n```\nnobody\n```\nA rival method.\n")
    assert [found.split(": ")[1] for found in _unusual(page, _prose(page))] == [
        "'rival' (baseline) in 'A rival method.'"
    ]
    assert len(PAGES) > 70


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_names_say_what_things_are(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not names & IDENTIFIERS


def _field_docs(file: Path) -> Iterator[tuple[int, str]]:
    """What documents options and attributes: comments of dataclass fields, and entries of docstrings."""
    source = file.read_text(encoding="utf-8")
    lines, tree = source.splitlines(), ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for item in node.body:
                comment = re.search(r"  # (.+)$", lines[(item.end_lineno or 1) - 1])
                if isinstance(item, ast.AnnAssign) and comment:
                    yield item.lineno, comment[1]
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            section = ""
            for line in (ast.get_docstring(node) or "").splitlines():
                if heading := re.fullmatch(r"(\w+):", line):
                    section = heading[1]
                elif section in ("Args", "Attributes") and (entry := re.match(r"    \*{0,2}\w+: (.+)", line)):
                    yield node.lineno, entry[1]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_documentation_of_a_field_stands_alone(file: Path) -> None:
    found = [
        f"{file.name}:{line}: {text[:90]!r}" for line, text in _field_docs(file) if PREPOSITION.match(text)
    ]
    assert not found, "begins with a preposition:\n" + "\n".join(found)
