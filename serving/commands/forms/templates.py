"""Jinja expressions of Ansible's plays that the play's variables decide.

with_vars({"vars": {"tp": 2}, "command": "vllm serve m -tp {{ tp }}"}, folder=None)
# {"vars": {"tp": 2}, "command": "vllm serve m -tp 2"}

Variables are those of `vars`, of the files that `vars_files` names, and of `group_vars` and
`defaults` next to the play. Of an expression, a name and the filters in `FILTERS` are read.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.serving.commands.forms.documents import (
    LONGEST_TEXT,
    documents_in,
    mappings_in,
    with_texts,
)
from outrider.serving.commands.forms.variable_files import Folder, read_near

EXPRESSION = re.compile(r"\{\{-?\s*([\w.]+)\s*((?:\|[^{}]*)?)-?\}\}")
_FILTER = re.compile(r"\|\s*(\w+)\s*(?:\(\s*(?:(['\"])(.*?)\2|([\w.]+))?[^()]*\))?")

DEFAULTS = frozenset({"default", "d"})
"""Filters that give a name a value if it has none."""

FILTERS: dict[str, Callable[[Any], Any]] = {
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "trim": lambda value: str(value).strip(),
    "string": str,
    "to_json": json.dumps,
    "tojson": json.dumps,
    "to_nice_json": json.dumps,
    **dict.fromkeys(("int", "float", "bool", "quote"), lambda value: value),
}
"""Filters of Jinja and Ansible that are applied; a number stays as it is written."""

FILES = ("group_vars/all.yml", "group_vars/all.yaml", "defaults/main.yml", "../defaults/main.yml")
"""Files of variables that Ansible reads without being told."""


def with_vars(document: Any, folder: Folder | None) -> Any:
    """Returns a document with the values of its variables, and with the defaults of filters."""
    values: dict[str, Any] = {}
    for section in _sections(document, folder):
        values |= {str(name): value for name, value in section.items()}
    if not values:
        return document
    # A variable may be made of others.
    for _ in range(3):
        values = {
            name: _without_jinja(value, values) if isinstance(value, str) else value
            for name, value in values.items()
        }
    return with_texts(document, lambda text: _without_jinja(text, values), {})


def _sections(document: Any, folder: Folder | None) -> Iterator[Mapping[str, Any]]:
    """Yields mappings of variables, those of files first; a play's own come last and count."""
    mappings = list(mappings_in(document))
    named = [name for mapping in mappings for name in _file_names(mapping)]
    is_play = any("hosts" in mapping or "tasks" in mapping for mapping in mappings)
    for name in (*(FILES if is_play else ()), *named):
        text = None if folder is None else read_near(name, folder)
        for content in documents_in(text or ""):
            if isinstance(content, Mapping):
                yield content
    for mapping in mappings:
        section = mapping.get("vars")
        if isinstance(section, Mapping):
            yield section


def _file_names(mapping: Mapping[str, Any]) -> list[str]:
    listed = mapping.get("vars_files")
    names = listed if isinstance(listed, list) else [listed]
    return [name for name in names if isinstance(name, str)]


def _without_jinja(text: str, values: Mapping[str, Any]) -> str:
    """Replaces {{ name | filter }} where the name has a value, or a filter gives a default."""

    length = 0

    def written(match: re.Match[str]) -> str:
        nonlocal length
        word = value_of(match)
        length += len(word)
        if length > LONGEST_TEXT:  # before the values are joined
            raise OutriderError(
                f"--from-serve-command: {match[0]} makes a value longer than {LONGEST_TEXT}"
                " characters; write the command with shorter values"
            )
        return word

    def value_of(match: re.Match[str]) -> str:
        value = _value_at(values, match[1])
        for name, _, quoted, bare in _FILTER.findall(match[2]):
            if name in DEFAULTS:
                value = (quoted or bare) if value is None else value
            elif name not in FILTERS or value is None:
                return match[0]
            else:
                value = FILTERS[name](value)
        return match[0] if value is None or isinstance(value, dict | list) else str(value)

    return EXPRESSION.sub(written, text)


def _value_at(values: Mapping[str, Any], path: str) -> Any:
    """Returns the value under a name, or under names in one another; None if there is none."""
    value: Any = values
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
