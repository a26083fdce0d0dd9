"""The pages of the site run: their Python blocks, their commands, their examples of thirty lines."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import tyro
from PIL import Image

import check_links
import made_pages
from import_graph import ROOMS, import_graph
from lavps import cli
from lavps.apps.service import Client

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = {"benchmarks", "_build", "_static"}
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if not MADE & set(path.relative_to(DOCS).parts)]


def fences(path: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page: language, text. Openings and closings take turns."""
    found, language, body = [], None, []
    for line in path.read_text().splitlines():
        if not line.startswith("```"):
            body.append(line)
        elif language is None:
            language, body = line[3:].strip(), []
        else:
            found.append((language, "\n".join(body)))
            language = None
    assert language is None, f"{path} leaves a block open"
    return found


BLOCKS = [(path, block) for path in PAGES for language, block in fences(path) if language == "python"]
COMMANDS = [
    (path.name, line)
    for path in [*PAGES, ROOT / "README.md"]
    for language, block in fences(path)
    for line in block.replace("\\\n", " ").splitlines()
    if language == "" and re.match(r"(lavps|torchrun .* lavps\.cli) ", line)
]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the page "start" leaves it: the zoo, the examples, and a face cut by its command."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("zoo", "examples"):
        (folder / name).symlink_to(ROOT / name)
    subprocess.run([sys.executable, DOCS / "a_face.py", "face.png"], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize(("path", "block"), BLOCKS, ids=[path.stem for path, _ in BLOCKS])
def test_a_python_block_runs(
    path: Path,
    block: str,
    workplace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workplace)
    exec(compile(block, str(path), "exec"), {})
    printed = re.search(
        re.escape(block) + r"\n```\n\nIt prints\n\n```text\n(.*?)\n```", path.read_text(), re.S
    )
    if printed is not None:
        # The words as they stand, the numbers within a tenth: processors round differently.
        found, promised = capsys.readouterr().out, printed[1]
        number = r"\d+\.\d+"
        assert re.sub(number, "#", found).split() == re.sub(number, "#", promised).split()
        pairs = zip(re.findall(number, found), re.findall(number, promised), strict=True)
        assert all(abs(float(a) - float(b)) <= 0.1 * float(b) + 0.01 for a, b in pairs), found


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=lambda path: path.stem)
def test_code_fits_the_width_of_the_site(path: Path) -> None:
    blocks = [block for language, block in fences(path) if not language.startswith("{")]
    lines = [line for block in blocks for line in block.splitlines()]
    assert not [line for line in lines if len(line) > 84]


def test_the_commands_of_the_start_page_run(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    for name, command in COMMANDS:
        if name == "start.md":
            cli.main(shlex.split(command)[1:])
    for output in ("face-1.png", "face-mean.png", "face-comparison.png", "face.json"):
        assert list((workplace / "restored").glob(output)), sorted((workplace / "restored").iterdir())
    assert (workplace / "denoised" / "face.png").is_file()


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_is_understood(page: str, command: str) -> None:
    """Every option exists and has a value of its kind; nothing is run."""
    words = shlex.split(command)
    words = words[1:] if words[0] == "lavps" else words[words.index("lavps.cli") + 1 :]
    assert callable(cli.parse(words).run)


RECIPES = sorted(
    {
        tuple(shlex.split(line)[2:])
        for path in PAGES
        for language, block in fences(path)
        for line in block.replace("\\\n", " ").splitlines()
        if language == "" and line.startswith("python -m recipes.")
    }
)


@pytest.mark.parametrize("words", RECIPES, ids=" ".join)
def test_a_recipe_s_command_is_understood(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is parsed by the recipe's own settings; nothing is run."""
    monkeypatch.syspath_prepend(str(ROOT))
    recipe = importlib.import_module(words[0])
    config = tyro.cli(recipe.Config, args=words[1:])
    if words[0] == "recipes.zoo.run":
        assert set(config.names) <= set(recipe.MODELS)


def test_a_command_with_a_wrong_option_is_noticed() -> None:
    with pytest.raises(SystemExit):
        cli.parse(["train", "prior", "--data", "images", "--output", "runs", "--step", "3"])
    assert len(COMMANDS) > 25
    assert len(BLOCKS) >= 4


def test_the_command_page_knows_every_command() -> None:
    found = made_pages.commands(cli.command_type())
    assert {"train prior", "train inference", "bench sweep", "bench report"} <= set(found)
    assert found[0] == "restore"
    assert "usage: lavps train prior" in made_pages.help_of("train prior")


def test_an_example_has_thirty_lines() -> None:
    """Blank lines, imports and docstrings aside."""
    for path in sorted((ROOT / "examples" / "extend").glob("*.py")):
        tree = ast.parse(path.read_text())
        aside: set[int] = set()
        for node in ast.walk(tree):
            documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            if documented and ast.get_docstring(node) is not None:
                aside |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            if isinstance(node, ast.Import | ast.ImportFrom):
                aside |= set(range(node.lineno, (node.end_lineno or 0) + 1))
        lines = enumerate(path.read_text().splitlines(), 1)
        assert len([text for number, text in lines if text.strip() and number not in aside]) <= 30, path
        assert max(len(line) for line in path.read_text().splitlines()) <= 84, path


def test_the_drawing_is_of_the_real_imports() -> None:
    imports, lines = import_graph(ROOT / "src" / "lavps")
    assert list(imports) == ROOMS
    assert imports["transitions"] == {"schedule"}
    assert "priors" in imports["samplers"]
    assert min(lines.values()) > 0


def site(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return folder


def test_the_link_check_finds_what_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = '<h1 id="top">a</h1><a href="b.html#x">to b</a><a href="#top">up</a><a href="https://example.org">out</a>'
    root = site(tmp_path, a=good, b='<p id="x">b</p>')
    assert check_links.main([str(root)]) == 0
    site(tmp_path, b='<p id="y">b</p><a href="c.html">c</a><code class="xref py py-obj">lavps.nothing</code>')
    assert check_links.main([str(root)]) == 1
    printed = capsys.readouterr().out
    assert "b.html#x leads to a page without that anchor" in printed
    assert "c.html leads nowhere" in printed
    assert "lavps.nothing is no link" in printed
    shutil.rmtree(tmp_path)
    assert check_links.main([str(root)]) == 1, "no pages, no praise"


def markdown_files() -> list[Path]:
    folders = (
        ROOT,
        ROOT / "benchmarks",
        DOCS,
        DOCS / "howto",
        DOCS / "explanation",
        *(path for path in (ROOT / "zoo").iterdir() if path.is_dir()),
    )
    return [path for folder in folders for path in sorted(folder.glob("*.md"))]


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_relative_links_of_a_markdown_file_exist(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        place = link.split("#")[0]
        if place and "://" not in link and "auto_tutorials" not in link:
            assert (path.parent / place).exists(), f"{path.name} links to {link}"


@pytest.mark.slow
def test_links_to_elsewhere_lead_somewhere() -> None:
    """Of the Markdown sources; the built site is checked by docs/check_links.py --external."""
    texts = "\n".join(path.read_text() for path in [*PAGES, *markdown_files()])
    addresses = set(re.findall(r"\]\((https?://[^)\s]+)\)", texts))
    try:
        socket.getaddrinfo(urlsplit(min(addresses)).hostname, 443)
    except OSError:
        pytest.skip("there is no network here")
    problems = {address: check_links.check_external(address) for address in sorted(addresses)}
    assert not {address: reason for address, reason in problems.items() if reason}


def test_the_service_page_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service is started, its request is sent, its Python block is run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    blocks = [
        (language, block.replace("8000", port)) for language, block in fences(DOCS / "howto" / "service.md")
    ]
    start = next(line for _, block in blocks for line in block.splitlines() if line.startswith("lavps serve"))
    for name in ("zoo", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "lavps.cli", *shlex.split(start)[1:]]
    service = subprocess.Popen([*command, "--port", port, "--workers", "0"], cwd=tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        client = Client(f"http://127.0.0.1:{port}")
        end = time.monotonic() + 120
        while not client.healthy() and service.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
        asked = next(block for language, block in blocks if language == "sh" and block.startswith("curl"))
        if shutil.which("curl") is not None:
            command = shlex.split(asked.replace("\\\n", " "))
            answer = subprocess.run(command, capture_output=True, check=True).stdout
            job, promised = json.loads(answer), next(b for language, b in blocks if language == "json")
            assert client.job(job["id"], wait=60)["state"] == "done"
            assert set(re.findall(r'"(\w+)":', promised.split("links")[0])) <= set(job)
        exec(compile(next(b for language, b in blocks if language == "py"), "service.md", "exec"), {})
    finally:
        service.terminate()
        service.wait(60)
    width, height = Image.open("examples/small.png").size
    assert Image.open("mean.png").size == (4 * width, 4 * height)
    assert Image.open("uncertainty.png").size[0] >= 4 * width
