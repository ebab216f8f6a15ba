"""Messages for mistakes in a configuration: file and line, key, value, nearest and valid keys.

except ValidationError as error:
    raise OutriderError(explain(error, Endpoint, origins, "an endpoint")) from None
"""

import difflib
import types
import typing

from pydantic import BaseModel, ValidationError

from outrider.common.yaml_tree import Keys, Origins


def explain(error: ValidationError, model: type[BaseModel], origins: Origins, noun: str) -> str:
    """All mistakes that pydantic found in the file of `noun` ("a recipe"), one per line."""
    lines = []
    for detail in error.errors(include_url=False):
        keys = _named_keys(detail["loc"], model)
        lines.append(f"{_origin(keys, origins)}{_message(detail, keys, model, noun)}")
    return "\n".join(dict.fromkeys(lines))


def _message(detail: typing.Any, keys: Keys, model: type[BaseModel], noun: str) -> str:
    dotted = ".".join(map(str, keys))
    if detail["type"] == "extra_forbidden":
        return _no_such_key(keys, model, noun)
    if detail["type"] == "missing":
        return f"{dotted}: must be given"
    reason = detail["msg"].removeprefix("Value error, ")
    if not keys or isinstance(detail["input"], BaseModel | dict):
        return f"{dotted}: {reason}" if dotted else reason
    return f"{dotted} = {detail['input']!r}: {reason[:1].lower()}{reason[1:]}"


def _no_such_key(keys: Keys, model: type[BaseModel], noun: str) -> str:
    """`training.epoch: no such key; did you mean ...`, with the valid keys of that section."""
    *parents, key = keys
    valid = sorted(fields_at(tuple(parents), model))
    near = difflib.get_close_matches(str(key), valid, n=1, cutoff=0.6)
    prefix = "".join(f"{parent}." for parent in parents)
    guesses = [path for path in _all_keys(model) if path.split(".")[-1] == str(key)]
    guesses += [prefix + name for name in near]
    hint = f"did you mean `{guesses[0]}`? " if guesses else ""
    section = f"`{'.'.join(map(str, parents))}` has" if parents else f"{noun} has"
    return f"{'.'.join(map(str, keys))}: no such key; {hint}{section}: {', '.join(valid)}"


def fields_at(keys: Keys, model: type[BaseModel]) -> list[str]:
    """The keys of the section at `keys`; empty if that is not a section."""
    remaining = list(keys)
    while remaining:
        key = str(remaining.pop(0))
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        if _is_named(annotation) and remaining:
            remaining.pop(0)  # a name that the file chose, or an index
        if not (section := _section(annotation)):
            return []
        model = section
    return list(model.model_fields)


def _is_named(annotation: typing.Any) -> bool:
    """Whether the sections here have names that the file chooses, or are a list."""
    return typing.get_origin(annotation) in (dict, list) and _section(annotation) is not None


def _section(annotation: typing.Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) in (dict, list):
        annotation = typing.get_args(annotation)[-1]
    candidates = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _is_union(annotation: typing.Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _all_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    paths = []
    for name, field in model.model_fields.items():
        paths.append(prefix + name)
        if section := _section(field.annotation):
            chosen = "NAME." if _is_named(field.annotation) else ""
            paths += _all_keys(section, f"{prefix}{name}.{chosen}")
    return paths


def _named_keys(location: Keys, model: type[BaseModel]) -> Keys:
    """pydantic's location without the union members that follow a field, such as `k`, `int`."""
    keys: list[str | int] = []
    section: type[BaseModel] | None = model
    named = False
    for part in location:
        if named:
            keys.append(part)
            named = False
        elif section is not None:
            keys.append(part)
            field = section.model_fields.get(str(part))
            named = field is not None and _is_named(field.annotation)
            section = _section(field.annotation) if field else None
        elif isinstance(part, int):
            keys.append(part)
    return tuple(keys)


def _origin(keys: Keys, origins: Origins) -> str:
    """Where the key, or the nearest section above it, is written, as a prefix of the message."""
    for length in range(len(keys), 0, -1):
        if keys[:length] in origins:
            return f"{origins[keys[:length]]}: "
    return f"{origins[()]}: " if () in origins else ""
