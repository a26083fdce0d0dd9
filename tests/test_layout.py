"""The rooms of the package are read in order: each imports only from those before it."""

from __future__ import annotations

import ast
from functools import cache
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


UNKNOWN = {
    "nn": {"operators", "noise", "problem"},
    "io": {"priors", "operators", "problem"},
    "samplers": {"io", "checkpoints"},
    "evaluation": {"benchmark"},
    "restoration": {"benchmark"},
}
APPS = sorted(path.parent.name for path in SOURCE.glob("apps/*/__init__.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """Dotted name of a file of the package, as a tuple, without the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


MODULES = {module_of(path): path for path in FILES}


@cache
def imported_modules(path: Path) -> set[tuple[str, ...]]:
    """Modules of the package that a file imports, at any depth of the file; the package itself left out."""
    parts = path.relative_to(SOURCE).parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.ImportFrom):
            words = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = (*parts[: len(parts) - node.level], *words)
            elif words[:1] == ("lavps",):
                base = words[1:]
            else:
                continue
            for alias in node.names:
                inner = (*base, alias.name)
                shadowed = base in MODULES and alias.name in defined_names(MODULES[base])
                names.append(inner if inner in MODULES and not shadowed else base)
        elif isinstance(node, ast.Import):
            names = [tuple(a.name.split(".")[1:]) for a in node.names if a.name.startswith("lavps.")]
        found |= {name for name in names if name}
    return found


@cache
def defined_names(path: Path) -> set[str]:
    """Names that a package's front door imports from its modules."""
    nodes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes if node.module for alias in node.names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_a_part_must_not_import(path: Path) -> None:
    part = room_of(path, SOURCE)
    imported = imported_rooms(ast.parse(path.read_text()), path, SOURCE)
    assert not imported & UNKNOWN.get(part, set())
    if part == "apps":
        own = path.relative_to(SOURCE).parts[1]
        others = {module[1] for module in imported_modules(path) if module[0] == "apps" and len(module) > 1}
        assert not (others & set(APPS)) - {own}, f"{own} imports another application"


def test_imports_form_no_circle() -> None:
    graph = {module: imported_modules(path) for module, path in MODULES.items()}
    unknown = {other for others in graph.values() for other in others} - graph.keys()
    assert not unknown, f"imports of modules that do not exist: {unknown}"
    done: set[tuple[str, ...]] = set()

    def visit(module: tuple[str, ...], path: tuple[tuple[str, ...], ...]) -> None:
        assert module not in path, " -> ".join(".".join(step) for step in (*path, module))
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_class_name_occurs_twice() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice


@pytest.mark.parametrize("part", [room for room in ROOMS if (SOURCE / room).is_dir() and room != "apps"])
def test_a_package_stays_small(part: str) -> None:
    assert sum(len(path.read_text().splitlines()) for path in (SOURCE / part).rglob("*.py")) <= 3000
