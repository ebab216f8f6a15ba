"""Reads a YAML configuration as plain values, and explains mistakes in it.

    values, origins = read_yaml(Path("resume_screening.yaml"))
    origins[("training", "epochs")]      # "resume_screening.yaml:14"
    ...
    except ValidationError as error:
        raise OutriderError(explain(error, Recipe, origins, "a recipe")) from None

A message names the file, the line and the key, then the invalid value or, for an unknown key, the
most similar key and the valid keys.
"""

import difflib
import math
import re
import types
import typing
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ValidationError

from outrider.common.errors import OutriderError

Keys = tuple[str | int, ...]
Origins = dict[Keys, str]
"""File and line of each key, indexed by the key's path from the root."""


MOST_BYTES = 10**6
"""Largest YAML file. Shipped recipes have at most 3 kB; PyYAML, in pure Python, reads 0.1 to 0.2
MB/s, so that 10 MB take a minute and more than a GB of memory."""


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number; YAML 1.1 reads it as text. Refuses aliases.

    Nine lines of aliases can stand for a billion values.
    """

    # lm-format-enforcer, which vLLM imports, makes timestamps text in `yaml.SafeLoader` itself:
    # without constructors of its own, what a file means would depend on earlier imports.
    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        **yaml.SafeLoader.yaml_constructors,
        "tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_timestamp,
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Reads the next value; raises a `ComposerError` for an alias."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None,
                None,
                f"`*{event.anchor}` repeats another value; write the value itself",
                event.start_mark,
            )
        return super().compose_node(parent, index)


def _finite_number(loader: _Loader, node: yaml.ScalarNode) -> float:
    """Reads a number; an infinite learning rate would pass every check that it is positive."""
    number: float = loader.construct_yaml_float(node)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


_Loader.add_constructor("tag:yaml.org,2002:float", _finite_number)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, noun: str = "a recipe") -> tuple[dict[str, Any], Origins]:
    """Reads a YAML mapping; also returns each key's file and line.

    Raises an `OutriderError` if it is not a mapping. Messages call the file `noun`.
    """
    try:
        root = yaml.compose(_text(path, noun), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise OutriderError(f"{path}: not {noun}, a YAML file in UTF-8 ({error})") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise OutriderError(f"{path}{line}: not valid YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not have, such as NUL
        raise OutriderError(f"{path}: not valid YAML: {error}") from None
    except RecursionError:
        raise OutriderError(f"{path}: not {noun}: nested too deeply") from None
    origins: Origins = {}
    if root is None:
        return {}, origins
    if not isinstance(root, yaml.MappingNode):
        raise OutriderError(
            f"{path}:1: {noun} is a mapping (`key: value`), "
            f"not a {type(root).__name__.removesuffix('Node').lower()}"
        )
    return _value(root, (), path, origins), origins


def _text(path: Path, noun: str) -> str:
    """The text of a file of at most `MOST_BYTES`; nothing after them is read."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OutriderError(
            f"{path}: above {MOST_BYTES / 1e6:g} MB, so it is not {noun}; give the path of the YAML"
            " file"
        )
    return content.decode()


def read_value(text: str) -> Any:
    """Parses a `key=value` argument's YAML value: 3, 1e-4, true, [1, 4], text.

    Raises a `yaml.YAMLError` if it is none.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (RecursionError, ValueError) as error:  # an integer of 5,000 digits, 2026-13-01
        raise yaml.MarkedYAMLError(problem=f"{type(error).__name__}: {error}") from None


def _value(node: yaml.Node, keys: Keys, path: Path, origins: Origins) -> Any:
    here = f"{path}:{node.start_mark.line + 1}"
    if keys:
        origins.setdefault(keys, here)
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            inner = (*keys, str(key_node.value))
            origins[inner] = f"{path}:{key_node.start_mark.line + 1}"
            if inner[-1] in values:
                raise OutriderError(
                    f"{origins[inner]}: `{_dotted(inner)}` is given twice; keep one"
                )
            values[str(key_node.value)] = _value(value_node, inner, path, origins)
        return values
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_value(child, (*keys, index), path, origins) for index, child in items]
    loader = _Loader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        value = f"{_dotted(keys)} = {node.value!r:.100}"
        raise OutriderError(f"{here}: {value} is not a YAML value: {error}") from None
    finally:
        loader.dispose()


def explain(error: ValidationError, model: type[BaseModel], origins: Origins, noun: str) -> str:
    """Describes all mistakes that pydantic found, one per line.

    Messages call the configuration `noun`, such as "a recipe".
    """
    lines = []
    for detail in error.errors(include_url=False):
        keys, section = _written(detail["loc"], model)
        # The line of the key, or of the nearest enclosing section in the file.
        above = (keys[:length] for length in range(len(keys), -1, -1))
        origin = next((f"{origins[some]}: " for some in above if some in origins), "")
        lines.append(
            f"{origin}{_message(detail=detail, keys=keys, section=section, model=model, noun=noun)}"
        )
    return "\n".join(dict.fromkeys(lines))


def _message(
    detail: Any, keys: Keys, section: type[BaseModel], model: type[BaseModel], noun: str
) -> str:
    dotted = _dotted(keys)
    if detail["type"] == "extra_forbidden":
        *parents, key = map(str, keys)
        near = difflib.get_close_matches(key, section.model_fields, n=1)
        guesses = [path for path in _all_keys(model) if path.split(".")[-1] == key]
        guesses += [".".join([*parents, name]) for name in near]
        hint = f"did you mean `{guesses[0]}`? " if guesses else ""
        where = f"`{'.'.join(parents)}`" if parents else noun
        valid = ", ".join(sorted(section.model_fields))
        return f"{dotted}: no such key; {hint}{where} has: {valid}"
    if detail["type"] == "missing":
        return f"{dotted}: must be given"
    reason = detail["msg"].removeprefix("Value error, ")
    if not keys or isinstance(detail["input"], BaseModel | dict):
        return f"{dotted}: {reason}" if dotted else reason
    return f"{dotted} = {detail['input']!r}: {reason[:1].lower()}{reason[1:]}"


def _written(location: Keys, model: type[BaseModel]) -> tuple[Keys, type[BaseModel]]:
    """Maps pydantic's location to the file's keys and the last key's section.

    In a location, a union member's name can follow a field, such as `int` after `k`.
    """
    keys: list[str | int] = []
    section = model
    below = typing.cast(Any, model)
    for part in location:
        if isinstance(below, type):
            section = below
            field = section.model_fields.get(str(part))
            below = _below(field.annotation) if field else None
        elif below is not None:  # a key of a dict, or an index of a list
            below = _below(typing.get_args(below)[-1])
        elif not isinstance(part, int):
            continue
        keys.append(part)
    return tuple(keys), section


def _below(annotation: Any) -> Any:
    """Returns an annotation's section, or dict or list of sections, if any."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(filter(None, map(_below, typing.get_args(annotation))), None)
    if typing.get_origin(annotation) in (dict, list):
        return annotation if _below(typing.get_args(annotation)[-1]) else None
    is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_section else None


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    paths = []
    for name, field in model.model_fields.items():
        paths.append(prefix + name)
        below = _below(field.annotation)
        if isinstance(below, type):
            paths += _all_keys(below, f"{prefix}{name}.")
    return paths


def _dotted(keys: Keys) -> str:
    return ".".join(map(str, keys))
