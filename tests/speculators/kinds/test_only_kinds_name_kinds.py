"""Outside speculators/kinds/ no code names a kind of drafter, by identifier or string."""

import ast
import re

from tests.test_rooms import LAYERS, ROOT

KIND = re.compile(r"(?<![a-z])(mtp|eagle_?3?|d_?flash|d_?spark|n_?gram)(?![a-z])", re.IGNORECASE)
"""A kind's name as a word of an identifier (`load_mtp`) or of a string."""

EXCEPTIONS = {
    "serving/vllm_hooks/capture_extension.py": "calls vLLM's supports_eagle3",
}
"""Folders and files that may name a kind, and why."""


class Undocumented(ast.NodeTransformer):
    """A tree without docstrings, which are prose."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def test_no_code_outside_the_folder_names_a_kind() -> None:
    wrong = []
    for path in (path for room in LAYERS for path in sorted((ROOT / room).rglob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("speculators/kinds/") or name in EXCEPTIONS:
            continue
        code = ast.unparse(Undocumented().visit(ast.parse(path.read_text(encoding="utf-8"))))
        # CamelCase split, so that MTPSpeculator holds the word MTP.
        code = re.sub(r"([A-Z]+)([A-Z][a-z])|([a-z0-9])([A-Z])", r"\1\3_\2\4", code)
        wrong += [f"{name}: {line.strip()}" for line in code.split("\n") if KIND.search(line)]
    assert not wrong, "\n".join(wrong)
