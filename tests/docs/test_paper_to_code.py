"""The page "paper to code" is complete, and everything it names exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGE = (ROOT / "docs" / "paper_to_code.md").read_text()
LIST = [line.split() for line in (ROOT / "docs" / "paper_labels.txt").read_text().splitlines()]
LABELS = {label for _, _, label in LIST if label != "-"}
SYMBOLS = sorted(
    {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"\{py:(?:obj|mod|class|func|meth)\}`~?(lavps[\w.]*)`", page.read_text())
    }
)
WORDS = {"equation": "Eq", "figure": "Figure", "table": "Table", "algorithm": "Algorithm"}


def resolve(name: str) -> object:
    """The object of a dotted name, through modules first and attributes then."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize(("page", "name"), SYMBOLS)
def test_a_named_symbol_exists(page: str, name: str) -> None:
    resolve(name)


def test_a_symbol_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("lavps.samplers.MGDM.guided_time")
    assert len(SYMBOLS) > 60


def test_every_label_used_is_the_paper_s() -> None:
    used = set(re.findall(r"`((?:eq|fig|tab|alg):[\w-]+)`", PAGE))
    assert used == LABELS


def numbers_on_page(word: str) -> list[int]:
    """The numbers that rows or headings of the page begin with, ranges spelt out."""
    found = re.findall(rf"^(?:\| |## ){word}s?\.? (\d+)(?:-(\d+))?", PAGE, re.M)
    return [n for first, last in found for n in range(int(first), int(last or first) + 1)]


@pytest.mark.parametrize("kind", WORDS)
def test_every_equation_table_figure_and_algorithm_has_its_place(kind: str) -> None:
    expected = [int(number) for what, number, _ in LIST if what == kind]
    assert expected
    assert numbers_on_page(WORDS[kind]) == expected


def test_a_number_stands_beside_its_own_label() -> None:
    for kind, number, label in LIST:
        if label != "-":
            assert re.search(rf"{WORDS[kind]}\.? {number} \(?`{label}`", PAGE), (kind, number, label)


@pytest.mark.parametrize(("algorithm", "lines"), [(1, 14), (2, 25)])
def test_every_line_of_an_algorithm_has_its_place(algorithm: int, lines: int) -> None:
    section = PAGE.split(f"## Algorithm {algorithm} ")[1].split("\n## ")[0]
    named = []
    for cell in re.findall(r"^\| ([\d, -]+) \|", section, re.M):
        for part in cell.split(","):
            first, _, last = part.strip().partition("-")
            named += range(int(first), int(last or first) + 1)
    assert sorted(named) == list(range(1, lines + 1))


def test_every_recipe_and_benchmark_named_is_there() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:recipes|benchmarks|examples|tests|zoo)/[\w/]+\.\w+)", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_docstrings_number_the_paper_s_equations_as_the_list_does() -> None:
    """A docstring that says "the paper's Eq. n" says so of a number the paper has."""
    last = max(int(number) for what, number, _ in LIST if what == "equation")
    quoted = {
        "schedule.py": {1},
        "transitions.py": {1},
        "problem.py": {5, 7},
        "variational.py": {15, 16, 21, 22},
        "model.py": {20},
        "inference.py": {17},
        "midpoints.py": {13},
    }
    found: dict[str, set[int]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for first, second in re.findall(r"the paper's\s+Eqs?\. (\d+)(?:-(\d+))?", path.read_text()):
            found.setdefault(path.name, set()).update(int(n) for n in (first, second) if n)
    assert found == quoted
    assert max(max(numbers) for numbers in found.values()) <= last
