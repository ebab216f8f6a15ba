"""Loads a recipe: merges what it extends, applies overrides, checks the result.

    loaded = load_recipe("resume_screening.yaml", ["training.epochs=3"])
    loaded.recipe.training.epochs, loaded.files

A recipe may extend another with `extends:`, a path relative to its own folder or a shipped name.
Sections are merged key by key; lists and scalars are replaced.
"""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from outrider.common.config_file import Origins, explain, read_value, read_yaml
from outrider.common.errors import OutriderError, UsageError
from outrider.common.redaction import redact
from outrider.eval.config import ANSWERS
from outrider.pipeline.recipe.recipe import EFFORTS, STANDARD, Recipe
from outrider.pipeline.recipe.shipped import (
    EMBEDDED_TRAFFIC,
    SHIPPED,
    shipped_heads,
    shipped_recipes,
)
from outrider.serving.commands.serve_command import ServeCommand
from outrider.speculators.base import is_directory

RESOLVED = "recipe.resolved.yaml"
"""File in a run directory: the recipe with every key filled in."""


@dataclasses.dataclass(frozen=True)
class LoadedRecipe:
    """A checked recipe and its files, each before the one it extends."""

    recipe: Recipe
    files: tuple[Path, ...]


def load_recipe(
    name: str, overrides: list[str] | None = None, serve_command: ServeCommand | None = None
) -> LoadedRecipe:
    """Loads a recipe; raises an `OutriderError` that locates each mistake.

    A serve command's values replace the recipe's; overrides replace both.
    """
    path = find_recipe(name)
    # A resolved recipe sets every key, so another profile would change nothing.
    if path.name == RESOLVED and any(word.startswith("effort=") for word in overrides or ()):
        raise UsageError(f"effort: {path} has a value for every key; name its recipe instead")
    values, origins, files = _read_chain(path, ())
    values.setdefault("name", path.stem)
    origins[()] = str(path)
    for keys, value in _leaves(serve_command.values if serve_command else {}):
        _set(values=values, origins=origins, keys=keys, value=value, origin="--from-serve-command")
        _resolve_paths(values, Path.cwd(), only=keys)
    return _checked(values, origins, files, overrides or [])


def load_overrides(overrides: list[str]) -> LoadedRecipe:
    """Builds a recipe from overrides alone, for logs without a recipe file."""
    return _checked({"name": "traffic"}, {(): "command line"}, (), overrides)


def _checked(
    values: dict[str, Any], origins: Origins, files: tuple[Path, ...], overrides: list[str]
) -> LoadedRecipe:
    for keys, value, text in parse_overrides(overrides):
        _set(
            values=values,
            origins=origins,
            keys=keys,
            value=value,
            origin=f"command line, {redact(text)}",
        )
        _resolve_paths(values, Path.cwd(), only=keys)
    # The profile is a default: keys of the recipe and of the command line win.
    values = _merge(EFFORTS.get(str(values.get("effort", STANDARD)), {}), values)
    try:
        return LoadedRecipe(Recipe.model_validate(values), files)
    except ValidationError as error:
        raise OutriderError(explain(error, Recipe, origins, "a recipe")) from None


def find_recipe(name: str, folder: Path | None = None) -> Path:
    """Finds a recipe by path (in `folder` first), run directory or shipped name."""
    requested = Path(name).expanduser()
    if (requested / RESOLVED).is_file():
        return requested / RESOLVED
    for parent in [folder, Path.cwd()] if folder else [Path.cwd()]:
        path = parent / requested if folder else requested
        if path.is_file() and not _is_log(path):
            return path
    shipped = (
        str(requested.with_suffix("")) if requested.suffix in (".yaml", ".yml") else str(requested)
    )
    if shipped in shipped_recipes():
        return SHIPPED / f"{shipped}.yaml"
    if requested.is_file() or requested.is_dir() or "://" in name:
        what = "a folder without" if requested.is_dir() else "a log, not"
        raise OutriderError(
            f"{name}: {what} a recipe; `outrider init {name} --target MODEL` writes one for these"
            " logs"
        )
    near = difflib.get_close_matches(shipped, shipped_recipes(), n=1)
    hint = f"did you mean `{near[0]}`? Give" if near else "give"
    raise OutriderError(
        f"{name}: no such recipe, neither a file in {folder or Path.cwd()} nor shipped; {hint}"
        " the path of a YAML file, or a shipped recipe's name (`outrider train --help` lists them)"
    )


def _is_log(path: Path) -> bool:
    """Whether a file is a log: it has no recipe's suffix, and does not begin as YAML does."""
    if path.suffix in (".yaml", ".yml"):
        return False
    with path.open("rb") as file:
        return re.match(rb"\s*(?:#|---|[a-z_]+:)", file.read(1000)) is None


def parse_overrides(words: list[str]) -> list[tuple[tuple[str, ...], Any, str]]:
    """Parses each `section.key=value` into (keys, value, original text)."""
    parsed = []
    for word in words:
        key, equals, text = word.partition("=")
        keys = tuple(key.split("."))
        if not equals or not all(keys):
            raise UsageError(
                f"{redact(word)}: not a key and its value; write section.key=value, such as"
                " training.epochs=3"
            )
        try:
            parsed.append((keys, read_value(text), word))
        except yaml.YAMLError as error:
            raise UsageError(
                f"{redact(word)}: not a YAML value; quote it for the shell"
                f" ({getattr(error, 'problem', None)})"
            ) from None
    return parsed


def _read_chain(
    path: Path, below: tuple[Path, ...]
) -> tuple[dict[str, Any], Origins, tuple[Path, ...]]:
    values, origins = read_yaml(path)
    _resolve_paths(values, path.resolve().parent)
    base_name = values.pop("extends", None)
    if base_name is None:
        return values, origins, (path,)
    here = origins[("extends",)]
    if not isinstance(base_name, str):
        raise OutriderError(
            f"{here}: extends = {base_name!r}: name one recipe, a path or a shipped name"
        )
    try:
        base_path = find_recipe(base_name, path.resolve().parent)
    except OutriderError as error:
        raise OutriderError(f"{here}: extends: {error}") from None
    chain = (*below, path)
    # A chain that comes back to a file would be read without end.
    if base_path.resolve() in [p.resolve() for p in chain]:
        raise OutriderError(
            f"{here}: extends: {' -> '.join(map(str, (*chain, base_path)))} never ends; "
            "break the cycle"
        )
    base_values, base_origins, base_files = _read_chain(base_path, chain)
    # Two recipes of one name would share a run directory.
    base_values.pop("name", None)
    return _merge(base_values, values), base_origins | origins, (path, *base_files)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _leaves(values: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields a serve command's (keys, value) pairs, down to individual engine settings."""
    for section, keys in values.items():
        for key, value in keys.items():
            # Each engine setting is set alone: the recipe keeps those that the command lacks.
            if (section, key) == ("serving", "engine"):
                yield from (((section, key, name), setting) for name, setting in value.items())
            else:
                yield (section, key), value


def _set(
    values: dict[str, Any], origins: Origins, keys: tuple[str, ...], value: Any, origin: str
) -> None:
    section = values
    for depth, key in enumerate(keys[:-1]):
        # Errors name where a key was set; a section that only this word creates comes from it.
        origins.setdefault(keys[: depth + 1], origin)
        child = section.setdefault(key, {})
        if not isinstance(child, dict):
            raise OutriderError(
                f"{origin}: {'.'.join(keys[: depth + 1])} is a value, not a section"
            )
        section = child
    section[keys[-1]] = value
    origins[keys] = origin


def _resolve_paths(
    values: dict[str, Any], folder: Path, only: tuple[str, ...] | None = None
) -> None:
    """Resolves relative paths against the recipe's folder, else the current directory."""
    for section, key, resolve in (
        ("traffic", "path", _traffic_path),
        ("traffic", "general", _traffic_path),
        ("privacy", "key_file", _traffic_path),
        ("eval", "task", _task_path),
        ("eval", "general", _traffic_path),
        ("target", "model", _model_directory),
        ("speculator", "base", _base_directory),
    ):
        within = values.get(section)
        if isinstance(within, dict) and key in within and only in (None, (section, key)):
            within[key] = _resolved(within[key], folder, resolve)


def _resolved(value: Any, folder: Path, resolve: Callable[[str, Path], str]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, folder, resolve) for item in value]
    if isinstance(value, dict):
        return {name: _resolved(item, folder, resolve) for name, item in value.items()}
    return resolve(value, folder) if isinstance(value, str) else value


def _base_directory(base: str, folder: Path) -> str:
    """Resolves a shipped name or a directory; leaves names of kinds unchanged."""
    if not is_directory(base):
        return base
    directory = _model_directory(base, folder)
    heads = shipped_heads()
    if directory == base and base.startswith("nano_r1/") and base not in heads:
        raise OutriderError(
            f"speculator.base = {base!r}: no such directory, and no head of that name comes with"
            f" the package (included: {', '.join(heads) or 'none'})"
        )
    return str(heads.get(base, directory)) if directory == base else directory


def _model_directory(model: str, folder: Path) -> str:
    for parent in (folder, Path.cwd()):
        if (parent / model / "config.json").is_file():
            return str((parent / model).resolve())
    return model


def _traffic_path(path: str, folder: Path) -> str:
    if "://" in path:
        return path
    # A user's folder nano_r1/ is not hidden: shipped names win only where they exist.
    embedded = EMBEDDED_TRAFFIC / f"{path.removeprefix('nano_r1/')}.jsonl.gz"
    if path.startswith("nano_r1/") and (embedded.is_file() or not (folder / path).exists()):
        return str(embedded)
    expanded = Path(path).expanduser()
    here = folder / expanded  # `expanded` itself if it is absolute
    exists = here.exists() or any(Path("/").glob(str(here).lstrip("/")))
    return str(here if expanded.is_absolute() or exists else Path.cwd() / expanded)


def _task_path(task: str, folder: Path) -> str:
    return _traffic_path(task, folder) if task.endswith(ANSWERS) else task
