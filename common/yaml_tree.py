"""A YAML file as plain values, with the file and line of each key for error messages.

values, origins = read_yaml(Path("resume_screening.yaml"))
origins[("training", "epochs")]      # "resume_screening.yaml:14"
"""

import re
from pathlib import Path
from typing import Any

import yaml

from outrider.common.errors import OutriderError

Keys = tuple[str | int, ...]
Origins = dict[Keys, str]
"""File and line of each key of a tree, by its path from the root."""


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number, which YAML 1.1 reads as text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, noun: str = "recipe") -> tuple[dict[str, Any], Origins]:
    """The mapping in the file of a `noun`, and file and line of each key.

    Anything but a mapping is an `OutriderError` with file and line.
    """
    article = "an" if noun[0] in "aeiou" else "a"
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
    except FileNotFoundError:
        raise OutriderError(f"{path}: no such {noun}") from None
    except IsADirectoryError:
        raise OutriderError(
            f"{path}: a directory, not {article} {noun}; name a YAML file in it"
        ) from None
    except UnicodeDecodeError as error:
        raise OutriderError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise OutriderError(f"{path}{line}: not valid YAML: {error.problem}") from None
    origins: Origins = {}
    if root is None:
        return {}, origins
    if not isinstance(root, yaml.MappingNode):
        raise OutriderError(
            f"{path}:1: {article} {noun} is a mapping (`key: value`), "
            f"not a {type(root).__name__.removesuffix('Node').lower()}"
        )
    return _value(root, (), path, origins), origins


def read_value(text: str) -> Any:
    """The value of a command line's `key=value` in YAML: 3, 1e-4, true, null, [1, 4], text."""
    return yaml.load(text, Loader=_Loader)


def _value(node: yaml.Node, keys: Keys, path: Path, origins: Origins) -> Any:
    if keys:
        origins.setdefault(keys, f"{path}:{node.start_mark.line + 1}")
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, here = str(key_node.value), f"{path}:{key_node.start_mark.line + 1}"
            if key in values:
                raise OutriderError(
                    f"{here}: `{'.'.join(map(str, (*keys, key)))}` is given twice; keep one"
                )
            origins[(*keys, key)] = here
            values[key] = _value(value_node, (*keys, key), path, origins)
        return values
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_value(child, (*keys, index), path, origins) for index, child in items]
    loader = _Loader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise OutriderError(
            f"{path}:{node.start_mark.line + 1}: {node.value!r} is not a YAML value: {error}"
        ) from None
    finally:
        loader.dispose()
