"""The help of every command: named values, and descriptions that stand alone."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

import lavps
from lavps.cli import main
from lavps.operators.registry import NAMES, TASKS, block_side

PREPOSITION = re.compile(
    r"(of|to|in|for|from|with|by|at|on|under|over|until|into|as|than|within|without|beside|where|when|how|what|"
    r"which|who)\b",
    re.IGNORECASE,
)


def _help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as end:
        main([*command, "--help"])
    assert not end.value.code
    return capsys.readouterr().out


def _descriptions(text: str) -> list[str]:
    """Return the first words of every option's description, on its own line or on the next."""
    found = []
    for line, following in pairwise(text.splitlines()):
        if re.match(r"(--?[a-z]|[A-Z|.=\[\]]+ {2,})", line.strip("│| ")):
            _, *described = re.split(r" {2,}", line.strip("│| "))
            found.append(described[0] if described else following.strip("│| "))
    return found


def test_the_overview_has_a_sentence_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys)
    assert len(text.splitlines()) < 45
    assert "Make synthetic measurements from images." in text


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"lavps {lavps.__version__}\n"


def test_help_of_restore_lists_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys, "restore")
    for name, line in TASKS.items():
        assert re.search(rf"(?m)^ +{name} +{re.escape(line)}$", text), name
    patterns = {"inpaint", "deblur", "srN", "jpegQ"}
    assert {name for name in NAMES if block_side(name) is None} | patterns == set(TASKS)


def test_help_of_every_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    commands: list[tuple[str, ...]] = [()]
    for command in commands:  # grows by the subcommands that are found
        text = _help(capsys, *command)
        commands += [(*command, name) for name in re.findall(r"(?m)^\W+[•*] ([a-z-]+)", text)]
        assert "{None}|" not in text, command
        assert not re.findall(r"\(default: (?:None|'')?\)", text), command
        assert not re.findall(r"(?m)^\W+--[^ ]+ \{.*\}\W*\n\W*--", text), f"{command}: no description"
        descriptions = _descriptions(text)
        assert "show this help message and exit" in descriptions
        assert not [line for line in descriptions if PREPOSITION.match(line)], command
        assert not [line for line in descriptions if line.startswith("(default")], (
            f"{command}: no description"
        )
    known = {("restore",), ("train", "prior"), ("train", "few-step"), ("bench", "sweep"), ("doctor",)}
    assert known <= set(commands)
    assert len(commands) == 26, commands


@pytest.mark.parametrize("words", [["--jpeg-quality", "20"], ["--jpeg-quality=20"], ["--jpeg_quality", "20"]])
def test_the_quality_of_jpeg_leads_to_its_task(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["degrade", "photo.png", "--task", "jpeg", "--output", "measured", *words])
    assert end.value.code == 1
    assert capsys.readouterr().err == "lavps: the quality is part of the task, as in --task jpeg20\n"
