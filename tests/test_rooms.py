"""Rooms import only downwards; no modules and no packages import each other in a circle."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = (
    "common",
    "recipes",
    "speculators",
    "serving",
    "data",
    "training",
    "eval",
    "pipeline",
    "live",
    "adapt",
    "outrider",
    "cli",
)
"""From the bottom up: a room imports from itself and from those before it."""

STRANGERS = {
    ("eval", "training"),
    *(("live", room) for room in ("training", "data", "eval", "pipeline")),
}
"""Room and lower room that it must not import all the same."""


def modules() -> dict[str, Path]:
    """Dotted name of every module to its file."""
    found = {}
    for room in LAYERS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            outer = () if room == "outrider" else ("outrider",)
            found[".".join((*outer, *parts)).removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    """The room of a module; the package's own module, the Python interface, is a room too."""
    return module if module == "outrider" else module.split(".")[1]


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of this project that a file imports anywhere, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner if inner <= known.keys() else inner | {node.module}
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
    return names & known.keys()


MODULES = modules()


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module imports of the others."""
    return {name: imported(path, MODULES) - {name} for name, path in MODULES.items()}


def test_imports_point_downwards(imports: dict[str, set[str]]) -> None:
    wrong = []
    for name, targets in imports.items():
        room = room_of(name)
        for target in sorted(targets):
            other = room_of(target)
            if LAYERS.index(other) > LAYERS.index(room) or (room, other) in STRANGERS:
                wrong.append(f"{name} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    # Importers of a module import its package's __init__ anyway: only module to module counts.
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def package(module: str) -> str:
    """The package that a module belongs to; a package's own `__init__` belongs to it."""
    return module if MODULES[module].stem == "__init__" else module.rpartition(".")[0]


def test_no_packages_import_each_other(imports: dict[str, set[str]]) -> None:
    """Except a package and those inside it, which share the outer one's `config.py` and types."""
    pairs = {(package(name), package(target)) for name in imports for target in imports[name]}
    both = {pair for pair in pairs if pair[0] < pair[1] and pair[::-1] in pairs}
    assert not {(one, other) for one, other in both if not other.startswith(f"{one}.")}


def test_every_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = {
        f'"{package(module)}"' for module, path in MODULES.items() if path.name == "__init__.py"
    }
    missing = sorted(name for name in packages if name not in text)
    assert not missing, missing


def test_only_the_cluster_package_imports_ray() -> None:
    """The rest uses its sessions, tasks, actors and ranks."""
    imports_ray = re.compile(r"^\s*(import|from) ray\b", re.MULTILINE)
    importers = {
        package(name)
        for name, path in MODULES.items()
        if imports_ray.search(path.read_text(encoding="utf-8"))
    }
    assert importers == {"outrider.common.cluster"}
