"""Jinja expressions of Ansible's plays that the same file's `vars` decide.

with_vars({"vars": {"tp": 2}, "command": "vllm serve m -tp {{ tp }}"})
# {"vars": {"tp": 2}, "command": "vllm serve m -tp 2"}
"""

import re
from collections.abc import Mapping
from typing import Any

from outrider.serving.commands.documents import mappings_in, with_texts

EXPRESSION = re.compile(r"\{\{-?\s*([\w.]+)\s*((?:\|[^{}]*)?)-?\}\}")
_DEFAULT = re.compile(r"\|\s*(?:default|d)\(\s*(?:(['\"])(.*?)\1|([\d.]+))")


def with_vars(document: Any) -> Any:
    """Returns a document with the values of its `vars`, and with the defaults of filters."""
    named = [mapping.get("vars") for mapping in mappings_in(document)]
    values = {
        str(name): str(value)
        for section in named
        if isinstance(section, Mapping)
        for name, value in section.items()
        if isinstance(value, str | int | float)
    }
    if not values:
        return document
    # A variable may be made of others.
    for _ in range(3):
        values = {name: _without_jinja(value, values) for name, value in values.items()}
    return with_texts(document, lambda text: _without_jinja(text, values), {})


def _without_jinja(text: str, values: Mapping[str, str]) -> str:
    """Replaces {{ name }} where the name has a value, or a filter gives a default."""

    def value(match: re.Match[str]) -> str:
        if match[1] in values:
            return values[match[1]]
        default = _DEFAULT.match(match[2])
        return match[0] if default is None else default[2] or default[3] or ""

    return EXPRESSION.sub(value, text)
