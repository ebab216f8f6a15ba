"""The product's code stays as easy to read as it is: one statement does one thing.

The limits are rates over all rooms together. Run it alone: python -m pytest tests/test_style.py
"""

import ast
from collections import Counter
from functools import cache

from tests.test_rooms import LAYERS, ROOT

PACKED = 2.0
"""Tuple assignments of computed values per 1,000 statements; nanochat 6.1, prime-rl 0.9."""

POSITIONAL = 2.0
"""Calls with five or more positional arguments per 1,000 statements; torchtitan 4.5."""

DENSE = 1.5
"""Statements of eight or more calls, conditions and comprehensions per 1,000; speculators 1.2."""

VAGUE = 0.005
"""Share of the names in `SAYS_NOTHING` among all bound names; nanochat 0.003."""

SAYS_NOTHING = set(
    [
        "found",
        "each",
        "own",
        "kept",
        "given",
        "wanted",
        "named",
        "told",
        "place",
        "places",
        "other",
        "others",
        "these",
        "those",
        "it",
        "thing",
        "things",
        "stuff",
    ]
)
INNER = (ast.Call, ast.IfExp, ast.comprehension, ast.BoolOp, ast.Lambda, ast.NamedExpr)
SIMPLE = (ast.Assign, ast.Return, ast.Expr, ast.AugAssign, ast.AnnAssign)


def is_packed(node: ast.AST) -> bool:
    """True for a tuple assignment of values that are not all plain names or constants."""
    if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
        return False
    if not isinstance(node.value, ast.Tuple):
        return False
    return any(not isinstance(value, (ast.Constant, ast.Name)) for value in node.value.elts)


def bound_names(node: ast.AST) -> list[str]:
    """The names that a node binds: a variable, or a function's parameters."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        return [parameter.arg for parameter in parameters]
    return []


def counts_of(source: str) -> Counter[str]:
    """What the limits are about, counted in one file."""
    counts: Counter[str] = Counter()
    for node in ast.walk(ast.parse(source)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        counts["statements"] += isinstance(node, ast.stmt) and not is_docstring
        counts["packed"] += is_packed(node)
        if isinstance(node, ast.Call):
            positional = [value for value in node.args if not isinstance(value, ast.Starred)]
            counts["positional"] += len(positional) >= 5
        if isinstance(node, SIMPLE):
            counts["dense"] += sum(isinstance(part, INNER) for part in ast.walk(node)) >= 8
        names = bound_names(node)
        counts["names"] += len(names)
        counts["vague"] += sum(name.strip("_") in SAYS_NOTHING for name in names)
    return counts


@cache
def product() -> Counter[str]:
    """The counts of all rooms."""
    total: Counter[str] = Counter()
    for room in LAYERS:
        for path in (ROOT / room).rglob("*.py"):
            total += counts_of(path.read_text(encoding="utf-8"))
    return total


def test_what_is_counted() -> None:
    packed = "a, b = f(), 1\na, b = b, a\n"
    assert counts_of(packed)["packed"] == 1
    assert counts_of("f(1, 2, 3, 4, 5)\nf(1, 2, 3, 4, e=5)\n")["positional"] == 1
    assert counts_of("x = a(b(c(d(e(f(g(h())))))))\nx = a(b())\n")["dense"] == 1
    assert counts_of("found = 1\nreplica = 1\ndef f(each, row): ...\n")["vague"] == 2


def test_the_product_stays_readable() -> None:
    total = product()
    assert 1000 * total["packed"] / total["statements"] <= PACKED
    assert 1000 * total["positional"] / total["statements"] <= POSITIONAL
    assert 1000 * total["dense"] / total["statements"] <= DENSE
    assert total["vague"] / total["names"] <= VAGUE
