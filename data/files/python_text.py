"""Python's text of dicts and of models' objects, as programs write it in place of JSON.

    python_value("{'role': 'user', 'content': None}")       # {"role": "user", "content": None}
    python_value("Message(role='user', content='Hi')")      # {"role": "user", "content": "Hi"}

LiteLLM's loggers before its standard payload (1.44) wrote `str(value)`, and so do `print(row)`,
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
"""Longer texts are not parsed, which takes about 100 bytes for each of theirs."""

CONSTANTS = {"true": True, "false": False, "null": None, "nan": float("nan")}
"""Names of values that a `print` of NumPy's and JavaScript's objects may have."""


def python_value(text: str) -> Any:
    """Returns the value of Python's text of literals and models.

    Raises:
        ValueError: If the text is anything else.
    """
    if len(text) > LONGEST or not _BEGIN.match(text):
        raise ValueError("no object of Python's")
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
    is_model = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    if is_model and node.func.id[:1].isupper() and not node.args:
        return {str(field.arg): _value(field.value) for field in node.keywords if field.arg}
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    value = ast.literal_eval(node)
    if not isinstance(value, str | int | float | bool | None):
        raise ValueError(f"a value of {type(value).__name__}")
    return value


def _key(node: ast.expr | None) -> str:
    key = ast.literal_eval(node) if node is not None else None
    if not isinstance(key, str):
        raise ValueError("a key that is no text")
    return key
