"""Values of the expressions in a Python program, which is not executed.

    known = defaults_in(tree)
    follow_assignments(tree.body, known)
    value_of(ast.parse("MODEL + '-FP8'", mode="eval").body, known)    # "Qwen/Qwen3-8B-FP8"

Constants, lists, dictionaries and texts of them are followed through assignments, and attributes to
the defaults of argparse's arguments and of classes' fields. What is not known stays a reference,
`${MODEL}`.
"""

import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any

from outrider.serving.commands.forms.shell import END, words_of_script
from outrider.serving.commands.forms.variables import integer_of

LONGEST = 100_000
"""Characters and elements of a value that is followed: forty lines `a += a` stand for terabytes."""


def defaults_in(tree: ast.Module) -> dict[str, Any]:
    """Returns the defaults of arguments and fields, under `.NAME` as attributes are looked up.

    A name that has two of them is left out.
    """
    listed: list[tuple[str, Any]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".add_argument"):
            listed += _default_of_argument(node)
        elif isinstance(node, ast.ClassDef):
            fields = (field for field in node.body if isinstance(field, ast.AnnAssign))
            listed += [
                (field.target.id, _default_of_field(field.value))
                for field in fields
                if isinstance(field.target, ast.Name)
            ]
    counts = Counter(name for name, _ in listed)
    return {f".{name}": value for name, value in listed if counts[name] == 1 and value is not None}


def _default_of_argument(call: ast.Call) -> list[tuple[str, Any]]:
    """Returns the name and the default of an argument that `add_argument` adds."""
    options = named_arguments(call, {})
    flags = [value_of(argument, {}) for argument in call.args]
    long_flags = [str(flag) for flag in flags if str(flag).startswith("--")]
    name = options.get("dest") or next(iter(long_flags or map(str, flags)), "")
    default = next((word.value for word in call.keywords if word.arg == "default"), None)
    # A default that is a name is looked up when the program runs.
    value = False if default is None and options.get("action") == "store_true" else default
    return [(name.lstrip("-").replace("-", "_"), value)] if name else []


def _default_of_field(node: ast.expr | None) -> ast.expr | None:
    """Returns the default of a class's field; dataclasses' lists are in a function's."""
    if isinstance(node, ast.Call):
        options = {word.arg: word.value for word in node.keywords}
        factory = options.get("default_factory")
        return factory.body if isinstance(factory, ast.Lambda) else options.get("default")
    return node


def named_arguments(call: ast.Call, known: dict[str, Any]) -> dict[str, Any]:
    """Returns a call's named arguments, those of `**mapping` too."""
    named: dict[str, Any] = {}
    for word in call.keywords:
        value = value_of(word.value, known)
        if word.arg:
            named[word.arg] = value
        elif isinstance(value, dict):
            named |= value
    return named


def follow_assignments(statements: list[ast.stmt], known: dict[str, Any]) -> None:
    """Follows assignments, also in functions, whose names are taken for one program's."""
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            _assign(statement.targets[0].id, value_of(statement.value, known), known)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
            _set_item(statement.targets[0], value_of(statement.value, known), known)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            _assign(statement.target.id, value_of(statement.value, known), known)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            _add(statement.target.id, value_of(statement.value, known), known)
        elif isinstance(statement, ast.Expr):
            _call(statement.value, known)
        elif isinstance(statement, ast.If):
            test = value_of(statement.test, known)
            is_known = test is None or isinstance(test, bool | int | float | list)
            follow_assignments(statement.body if not is_known or test else statement.orelse, known)
        else:
            follow_assignments(getattr(statement, "body", []), known)


def _set_item(target: ast.Subscript, value: Any, known: dict[str, Any]) -> None:
    """Follows `mapping["key"] = value`."""
    if isinstance(target.value, ast.Name) and isinstance(known.get(target.value.id), dict):
        name = target.value.id
        key = value_of(target.slice, known)
        if isinstance(key, str):
            _assign(name, {**known[name], key: value}, known)


def _call(call: ast.expr, known: dict[str, Any]) -> None:
    """Follows `words.append(...)` and `words.extend(...)`."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    if isinstance(call.func.value, ast.Name) and len(call.args) == 1:
        value = value_of(call.args[0], known)
        if call.func.attr == "append":
            _add(call.func.value.id, [value], known)
        elif call.func.attr == "extend":
            _add(call.func.value.id, value, known)


def _add(name: str, value: Any, known: dict[str, Any]) -> None:
    before = known.get(name)
    is_list = isinstance(before, list) and isinstance(value, list)
    if is_list or (isinstance(before, str) and isinstance(value, str)):
        _assign(name, before + value, known)


def _assign(name: str, value: Any, known: dict[str, Any]) -> None:
    """Gives a name its value, or a reference in place of one that is too long to be followed."""
    known[name] = value if _is_short(value) else "${" + name + "}"


def _is_short(value: Any) -> bool:
    """Whether a value has at most `LONGEST` characters and elements, with those inside it."""
    waiting = [value]
    length = 0
    while waiting and length <= LONGEST:
        inner = waiting.pop()
        if isinstance(inner, str | list | dict):
            length += 1 + len(inner)
        if isinstance(inner, list):
            waiting += inner
        elif isinstance(inner, dict):
            waiting += inner.values()
    return length <= LONGEST


def _joined(separator: str, parts: list[Any], name: str) -> str:
    """Returns the parts as one text, or a reference if they are too long together."""
    return separator.join(map(str, parts)) if _is_short(parts) else "${" + name + "}"


def value_of(node: ast.expr | None, known: dict[str, Any]) -> Any:
    """Returns the value of an expression; a variable's reference if it is not known."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Attribute) and f".{node.attr}" in known:
        return _attribute(f".{node.attr}", known)
    evaluate = _EVALUATED.get(type(node))
    value = _UNKNOWN if evaluate is None else evaluate(node, known)
    if value is not _UNKNOWN:
        return value
    return "${" + re.sub(r"\W+", "_", ast.unparse(node) if node else "") + "}"


def _attribute(name: str, known: dict[str, Any]) -> Any:
    """Returns a name's value, or an attribute's default, which may name no other attribute."""
    value = known.get(name)
    if not isinstance(value, ast.expr):
        return value
    return value_of(value, {key: known[key] for key in known if not key.startswith(".")})


def _list(node: ast.List | ast.Tuple, known: dict[str, Any]) -> Any:
    return [inner for element in node.elts for inner in _element(element, known)]


def _element(node: ast.expr, known: dict[str, Any]) -> list[Any]:
    if isinstance(node, ast.Starred):
        value = value_of(node.value, known)
        return value if isinstance(value, list) else [value]
    return [value_of(node, known)]


def _text(node: ast.JoinedStr, known: dict[str, Any]) -> Any:
    return _joined("", [value_of(part, known) for part in node.values], "text")


def _part_of_text(node: ast.FormattedValue, known: dict[str, Any]) -> Any:
    return value_of(node.value, known)


def _negated(node: ast.UnaryOp, known: dict[str, Any]) -> Any:
    value = value_of(node.operand, known)
    is_known = isinstance(node.op, ast.Not) and isinstance(value, bool | int | list)
    return not value if is_known else _UNKNOWN


def _sum(node: ast.BinOp, known: dict[str, Any]) -> Any:
    number = integer_of(node, lambda name: _attribute(name, known))
    if number is not None:
        return number
    if not isinstance(node.op, ast.Add):
        return _UNKNOWN
    left = value_of(node.left, known)
    right = value_of(node.right, known)
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return _joined("", [left, right], "sum")


def _choice(node: ast.IfExp, known: dict[str, Any]) -> Any:
    test = value_of(node.test, known)
    return value_of(node.body if test is True or test == 1 else node.orelse, known)


def _mapping(node: ast.Dict, known: dict[str, Any]) -> Any:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        value = value_of(value_node, known)
        key = None if key_node is None else value_of(key_node, known)
        if isinstance(key, str | int):
            mapping[key] = value
        elif key is None and isinstance(value, dict):  # **value
            mapping |= value
    return mapping


def _result(node: ast.Call, known: dict[str, Any]) -> Any:
    """Returns what a well-known function returns."""
    name = ast.unparse(node.func)
    if name == "dict":
        return named_arguments(node, known)
    if len(node.args) not in (1, 2):
        return _UNKNOWN
    value = value_of(node.args[0], known)
    if name in ("str", "int"):
        return value
    if name == "json.dumps" and isinstance(value, dict | list) and _is_short(value):
        return json.dumps(value)
    if name == "shlex.quote" and isinstance(value, str):
        return shlex.quote(value)
    if name in ("shlex.split", "split") and isinstance(value, str):
        return [word for word in words_of_script(value) if word != END]
    if name.endswith(".join") and isinstance(value, list):
        return _joined(" ", value, "words")
    if name in ("os.environ.get", "os.getenv") and len(node.args) == 2:
        return value_of(node.args[1], known)
    return _UNKNOWN


_UNKNOWN = object()
"""What an expression has whose value is not known."""

_EVALUATED: dict[type, Callable[[Any, dict[str, Any]], Any]] = {
    ast.List: _list,
    ast.Tuple: _list,
    ast.JoinedStr: _text,
    ast.FormattedValue: _part_of_text,
    ast.UnaryOp: _negated,
    ast.BinOp: _sum,
    ast.IfExp: _choice,
    ast.Dict: _mapping,
    ast.Call: _result,
}
"""Expressions besides constants and names, and the functions that return their values."""
