"""Names of vLLM that Outrider uses and another release lacks.

    python -m tools.vllm_names            # in the environment of that release; status 1 if any

Imports are read from the source, with the attributes of what is imported: `from vllm import
_custom_ops` and `_custom_ops.CPUDNNLGEMMHandler` are two names.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("serving", "speculators", "data", "eval", "live")


class Use(NamedTuple):
    """One use of a name."""

    name: str
    """Dotted, such as vllm.v1.sample.rejection_sampler.expand_kernel"""
    place: str
    """File and line"""


def uses(path: Path) -> Iterator[Use]:
    """The names of vLLM that a file uses."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: dict[str, str] = {}
    nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
    for node in nodes:
        place = f"{path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                imported[alias.asname or alias.name] = name
                yield Use(name, place)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            module = imported.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if module is not None:
                yield Use(f"{module}.{node.attr}", place)


def exists(name: str) -> bool:
    """Whether a module, or an attribute of one, has this dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                # Fields without a default are in a class's annotations only.
                return part in getattr(value, "__annotations__", {})
            value = getattr(value, part)
        return True
    return False


def missing(paths: list[Path]) -> dict[str, list[str]]:
    """Names that the installed vLLM lacks, with the places that use them."""
    places: dict[str, list[str]] = {}
    for path in paths:
        for use in uses(path):
            places.setdefault(use.name, []).append(use.place)
    return {name: found for name, found in sorted(places.items()) if not exists(name)}


def main() -> int:
    """Prints a line for each missing name."""
    lacking = missing([path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))])
    for name, found in lacking.items():
        print(f"missing: {name} ({', '.join(found)})")
    print(f"{len(lacking)} names are missing")
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
