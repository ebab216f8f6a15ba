"""Outside speculators/kinds/ no code names a kind of drafter, by identifier or string."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

ROOMS = (
    "common",
    "recipes",
    "speculators",
    "serving",
    "training",
    "data",
    "eval",
    "pipeline",
    "live",
    "cli",
)

KIND = re.compile(r"(?<![a-z])(mtp|eagle_?3?|d_?flash|n_?gram)(?![a-z])", re.IGNORECASE)
"""A kind's name as a word of an identifier (`load_mtp`) or of a string."""

EXCEPTIONS = {
    "pipeline/rehearsal/target.py": "writes a random R1, whose MTP layer is part of the model",
    "serving/vllm_hooks/auxiliary_states.py": "calls vLLM's supports_eagle3",
    "speculators/layers/deepseek_layer.py": "reads config.json's count of MTP layers (mtp_layers)",
}
"""Folders and files that may name a kind, and why."""


def words(name: str) -> str:
    """An identifier with CamelCase split, so that MTPSpeculator holds the word MTP."""
    return re.sub(r"([A-Z]+)([A-Z][a-z])|([a-z0-9])([A-Z])", r"\1\3_\2\4", name)


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of identifiers and strings that name a kind; docstrings are prose."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        texts: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            texts = [node.value]
        elif isinstance(node, ast.Name):
            texts = [node.id]
        elif isinstance(node, ast.Attribute):
            texts = [node.attr]
        elif isinstance(node, ast.arg | ast.keyword):
            texts = [node.arg or ""]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            texts = [node.name]
        elif isinstance(node, ast.ImportFrom):
            texts = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            texts = [alias.name for alias in node.names]
        for text in texts:
            if KIND.search(words(text)):
                yield getattr(node, "lineno", 0), text


def files() -> list[str]:
    """Python files of the rooms outside the kinds' folder, relative to the repository."""
    found = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith("speculators/kinds/"):
                found.append(name)
    return found


def is_exception(name: str) -> bool:
    return any(name.startswith(prefix) for prefix in EXCEPTIONS)


def test_no_code_outside_the_folder_names_a_kind() -> None:
    listed = [name for name in files() if not is_exception(name)]
    assert len(listed) > 150
    wrong = []
    for name in listed:
        for line, text in named(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            wrong.append(f"{name}:{line}: {text[:70]!r}")
    assert not wrong, "\n".join(wrong)
