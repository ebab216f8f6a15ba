"""The product's code stays as easy to read as it is: one statement does one thing.

The limits are rates over all rooms together. Run it alone: python -m pytest tests/test_style.py
"""

import ast
import io
import tokenize
from collections import Counter
from functools import cache

from tests.test_rooms import LAYERS, ROOT

ROOMS = (*LAYERS, "requirements")
"""The folders that are counted: all that is installed, and what installs it."""

PACKED = 2.0
"""Tuple assignments of computed values per 1,000 statements; nanochat 6.1, prime-rl 0.9."""

POSITIONAL = 2.0
"""Calls with five or more positional arguments per 1,000 statements; torchtitan 4.5.

Functions and classes of ours are never called with so many (`positional_calls_of_ours`).
"""

DENSE = 1.5
"""Statements of eight or more calls, conditions and comprehensions per 1,000; speculators 1.2."""

VAGUE = 0.005
"""Share of the names in `SAYS_NOTHING` among all bound names; nanochat 0.003."""

COMMENTS = 2.0
"""Least number of lines with a comment per 100 lines; nanochat 12."""

TO_PROGRAMS = ("# type:", "# noqa", "#!")
"""Beginnings of comments that people need not read."""

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


def positional(call: ast.Call) -> int:
    """The number of a call's positional arguments, without those that are unpacked."""
    return sum(not isinstance(value, ast.Starred) for value in call.args)


def comments(source: str) -> int:
    """The number of comments for people."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return sum(not text.startswith(TO_PROGRAMS) for text in texts)


def counts_of(source: str) -> Counter[str]:
    """What the limits are about, counted in one file."""
    counts: Counter[str] = Counter()
    counts["lines"] = len(source.splitlines())
    counts["comments"] = comments(source)
    for node in ast.walk(ast.parse(source)):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        counts["statements"] += isinstance(node, ast.stmt) and not is_docstring
        counts["packed"] += is_packed(node)
        counts["positional"] += isinstance(node, ast.Call) and positional(node) >= 5
        if isinstance(node, SIMPLE):
            counts["dense"] += sum(isinstance(part, INNER) for part in ast.walk(node)) >= 8
        names = bound_names(node)
        counts["names"] += len(names)
        counts["vague"] += sum(name.strip("_") in SAYS_NOTHING for name in names)
    return counts


def positional_calls_of_ours(sources: dict[str, str]) -> list[str]:
    """Calls with five or more positional arguments to functions and classes defined in `sources`.

    Ours are found by their names, so that a call through a module or an object counts too.
    """
    trees = {path: ast.parse(source) for path, source in sources.items()}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    ours = {node.name for _, node in nodes if isinstance(node, definitions)}
    calls = [(path, node) for path, node in nodes if isinstance(node, ast.Call)]
    return [
        f"{path}:{call.lineno} {ast.unparse(call.func)}"
        for path, call in calls
        if positional(call) >= 5 and ast.unparse(call.func).split(".")[-1] in ours
    ]


@cache
def sources() -> dict[str, str]:
    """Path and text of every file of the product."""
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def product() -> Counter[str]:
    """The counts of all rooms."""
    total: Counter[str] = Counter()
    for source in sources().values():
        total += counts_of(source)
    return total


def test_what_is_counted() -> None:
    packed = "a, b = f(), 1\na, b = b, a\n"
    assert counts_of(packed)["packed"] == 1
    assert counts_of("f(1, 2, 3, 4, 5)\nf(1, 2, 3, 4, e=5)\n")["positional"] == 1
    assert counts_of("x = a(b(c(d(e(f(g(h())))))))\nx = a(b())\n")["dense"] == 1
    assert counts_of("x = 1  # s; RFC 1\ny = 2  # type: ignore\n# as vLLM\n")["comments"] == 2
    assert counts_of("found = 1\nreplica = 1\ndef f(each, row): ...\n")["vague"] == 2


def test_which_calls_are_ours() -> None:
    code = "class Row: ...\nRow(1, 2, 3, 4, 5)\nm.Row(1, 2, 3, 4, 5)\nmath.hypot(1, 2, 3, 4, 5)\n"
    assert positional_calls_of_ours({"a.py": code}) == ["a.py:2 Row", "a.py:3 m.Row"]
    assert not positional_calls_of_ours({"a.py": "def f(): ...\nf(1, 2, 3, 4, e=5)\nf(*xs)\n"})


def test_arguments_of_our_functions_are_given_by_name() -> None:
    calls = positional_calls_of_ours(sources())
    assert not calls, "\n".join(calls)


def test_the_product_stays_readable() -> None:
    total = product()
    assert 1000 * total["packed"] / total["statements"] <= PACKED
    assert 1000 * total["positional"] / total["statements"] <= POSITIONAL
    assert 1000 * total["dense"] / total["statements"] <= DENSE
    assert total["vague"] / total["names"] <= VAGUE
    assert 100 * total["comments"] / total["lines"] >= COMMENTS
