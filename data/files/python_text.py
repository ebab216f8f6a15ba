"""Python's text of dicts and of models' objects, as programs write it in place of JSON.

    python_value("{'role': 'user', 'content': None}")       # {"role": "user", "content": None}
    python_value("Message(role='user', content='Hi')")      # {"role": "user", "content": "Hi"}

LiteLLM's loggers before its standard payload wrote `str(value)`, and so do `print(row)`,
pandas' CSV of columns with objects, and `print` of a client's response. The text is parsed and
never run.
"""

import ast
import re
import warnings
from typing import Any

_MODEL = r"[A-Z]\w{0,60}\([a-z_]\w{0,60}="

OBJECT = re.compile(rf"\s*(?:\{{|{_MODEL})")
"""How an object's text begins, in JSON or as Python writes it."""

_BEGIN = re.compile(rf"\s*\[?\s*(?:\{{'|{_MODEL})")
"""How Python's text begins: an object with a key in single quotes, or a model with fields."""

LONGEST = 4 * 2**20
"""Characters of a text that is parsed."""

MOST_COMMAS = 50_000
"""Texts with more are not parsed: a number in a list takes about 1 kB of memory until it is read,
and 5 microseconds."""

CONSTANTS = {"true": True, "false": False, "null": None, "nan": float("nan")}
"""Names of values that a `print` of NumPy's and JavaScript's objects may have."""


def python_value(text: str) -> Any:
    """Returns the value of Python's text of literals and models.

    Raises:
        ValueError: If the text is anything else.
    """
    if not _BEGIN.match(text):
        raise ValueError("no object of Python's")
    if len(text) > LONGEST or text.count(",") > MOST_COMMAS:
        raise ValueError("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # a backslash in a text
            parsed = ast.parse(text.strip(), mode="eval")
        return _value(parsed.body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr) -> Any:
    """Returns the value of a literal, a list, a dict, or a model's named fields."""
    if isinstance(node, ast.Dict):
        keys = [_key(key) for key in node.keys]
        if len(set(keys)) < len(keys):
            raise ValueError("the same key twice")
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _fields(node, node.func.id)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"a value of {type(value).__name__}")
    return value


def _fields(node: ast.Call, name: str) -> dict[str, Any]:
    """Returns the named fields of a model; a function has a name in lower case."""
    if node.args or not name[:1].isupper():
        raise ValueError(f"a call of {name[:40]}")
    return {field.arg: _value(field.value) for field in node.keywords if field.arg}


def _key(node: ast.expr | None) -> str:
    key = ast.literal_eval(node) if node is not None else None
    if not isinstance(key, str):
        raise ValueError("a key that is no text")
    return key
