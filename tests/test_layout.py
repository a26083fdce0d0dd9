"""The rooms of the package are read in order: each imports only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lavps
from import_graph import ROOMS, imported_rooms, room_of, source_files

SOURCE = Path(lavps.__file__).parent
FILES = source_files(SOURCE)
CORE = {"torch", "numpy", "tqdm", "PIL", "safetensors", "tyro"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_from_rooms_before_it(path: Path) -> None:
    room = room_of(path, SOURCE)
    assert room in ROOMS, f"{room} has no place in the reading order"
    for other in imported_rooms(ast.parse(path.read_text()), path, SOURCE):
        assert ROOMS.index(other) <= ROOMS.index(room), f"{room} imports {other}, which comes after it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_heavy_libraries_are_imported_where_they_are_used(path: Path) -> None:
    for node in ast.parse(path.read_text()).body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            top = name.split(".")[0]
            assert top in CORE or top in __import__("sys").stdlib_module_names, f"{top} is imported by all"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree)
    exported = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert exported, "no __all__"
    assert len(path.read_text().splitlines()) <= 320


def unpickling(tree: ast.AST) -> list[str]:
    """What in a file could run code from a file it reads."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "_pickle", "joblib", "dill"):
            found += [alias.name for alias in node.names if not alias.name.endswith("Error")]
        if isinstance(node, ast.Import):
            found += [
                alias.name for alias in node.names if alias.name in ("_pickle", "joblib", "dill", "shelve")
            ]
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        if name in ("eval", "exec", "pickle.load", "pickle.loads", "pickle.Unpickler", "pandas.read_pickle"):
            found.append(name)
        if name == "torch.load" and given.get("weights_only") != "True":
            found.append("torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
            found.append("np.load without allow_pickle=False")
    return found


def test_nothing_unpickles() -> None:
    for path in FILES:
        tree = ast.parse(path.read_text())
        assert not unpickling(tree), path
        calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert "torch.manual_seed" not in calls, path


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(file)",
        "from pickle import loads",
        "pickle.Unpickler(file).load()",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "np.load(file)",
        "import joblib",
    ],
)
def test_what_unpickles_is_found(line: str) -> None:
    assert unpickling(ast.parse(line))
