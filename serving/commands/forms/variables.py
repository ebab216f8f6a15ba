"""Values of shell variables and of integer arithmetic in a serve command's words.

    expand_variables("$((NODES * ${LOCAL:-8}))", {"NODES": "2"})      # "16"

What has no value stays as it is written, and the caller refuses it by name.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping

from outrider.common.errors import OutriderError

VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)"
    r"|\{(?P<braces>\w+)(?::?[-=](?P<default>[^}]*)|:?\?[^}]*|(?P<case>\^\^?|,,?))?\}"
    r"|\((?P<kube>\w+)\))"
)
"""$NAME, ${NAME}, ${NAME:-default}, ${NAME:=default}, ${NAME:?message}, Bash's ${NAME^^} and its
like, and $(NAME) (Kubernetes)."""

_IN_CASE: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}
"""Bash's changes of letters (its manual, "Shell Parameter Expansion")."""

ARITHMETIC = re.compile(r"\$\(\(([^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)\)")
"""$((EXPRESSION)), with at most one level of parentheses inside."""

IMAGE_USED = "image"
"""The variable with the image of a container. It is in lower case, so it is not exported."""

LONGEST_WORD = 20_000
"""Characters of a word with variables replaced: fifteen lines `A=$A$A$A$A` stand for gigabytes."""

LONGEST_SUM = 200
"""Characters of an arithmetic expression that is computed."""

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
"""Operations of the shell's arithmetic. Its division is that of integers."""


def expand_variables(word: str, variables: Mapping[str, str]) -> str:
    """Replaces variables that have a value, or a default in the word itself, and computes sums."""
    length = 0

    def value(match: re.Match[str]) -> str:
        nonlocal length
        name = match["plain"] or match["braces"] or match["kube"]
        replacement = variables.get(name)
        if replacement is None:
            default = match["default"]
            # A default may be another variable, but with no braces inside those of this one.
            replacement = match[0] if default is None else VARIABLE.sub(value, default)
        elif match["case"]:
            replacement = _IN_CASE[match["case"]](replacement)
        length += len(replacement)
        if length > LONGEST_WORD:  # before the values are joined
            raise OutriderError(
                f"--from-serve-command: the variable {name} stands for more than {LONGEST_WORD}"
                " characters with those in it; write the command with shorter values"
            )
        return replacement

    replaced = VARIABLE.sub(value, word)
    return ARITHMETIC.sub(lambda match: _computed(match, variables), replaced)


def _computed(match: re.Match[str], variables: Mapping[str, str]) -> str:
    """The value of an arithmetic expression; the expression itself if a name has no integer."""
    if len(match[1]) > LONGEST_SUM:
        return match[0]
    try:
        tree = ast.parse(match[1].strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return match[0]
    number = integer_of(tree.body, lambda name: variables.get(name))
    return match[0] if number is None else str(number)


def integer_of(node: ast.expr, value_of: Callable[[str], object]) -> int | None:
    """The integer that an expression of integers and names stands for; None for any other."""
    if isinstance(node, ast.Constant):
        is_integer = isinstance(node.value, int) and not isinstance(node.value, bool)
        return int(node.value) if is_integer else None  # type: ignore[arg-type]  # an int
    if isinstance(node, ast.Name):
        text = str(value_of(node.id))
        return int(text) if re.fullmatch(r"-?\d{1,12}", text) else None
    if isinstance(node, ast.Attribute):
        text = str(value_of(f".{node.attr}"))
        return int(text) if re.fullmatch(r"-?\d{1,12}", text) else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left = integer_of(node.left, value_of)
        right = integer_of(node.right, value_of)
        if left is None or right is None:
            return None
        if right == 0 and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            return None
        return _OPERATIONS[type(node.op)](left, right)
    return None
