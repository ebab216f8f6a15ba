"""Compose files as `docker compose config` shows them.

Docker's documentation: "interpolation", "profiles" and "env_file". A variable without a value stays
as it is written, and the caller refuses it by name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.serving.commands.documents import with_texts
from outrider.serving.commands.variable_files import read_near, variables_in

_OF_COMPOSE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_]\w*)"
    r"|\{(?P<braces>[A-Za-z_]\w*)(?:(?P<operator>:?[-?+])(?P<word>[^{}]*))?\})"
)
"""What Compose replaces; `$$` is a dollar sign."""


def completed_compose(document: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Returns a Compose file as `docker compose config` shows it."""
    content = read_near(".env", folder) if folder is not None else None
    variables = variables_in(content or "")
    interpolated = with_texts(document, lambda text: _interpolated(text, variables), {})
    services = interpolated["services"]
    active = set(re.split(r"[,\s]+", variables.get("COMPOSE_PROFILES", "")))
    started = {
        name: service
        for name, service in services.items()
        if not isinstance(service, Mapping) or active & {"*", *_profiles_of(service, active)}
    }
    return interpolated | {
        "services": {
            name: _with_env_files(service, folder)
            for name, service in (started or services).items()
        }
    }


def _profiles_of(service: Mapping[str, Any], active: set[str]) -> set[str]:
    """Returns the profiles that start a service; without any, every set of profiles does."""
    profiles = service.get("profiles")
    return set(map(str, profiles)) if isinstance(profiles, list) and profiles else active


def _interpolated(text: str, variables: Mapping[str, str]) -> str:
    """Returns a text as Compose reads it; a variable without a value stays as it is written."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        of_name = variables.get(match["plain"] or match["braces"])
        operation = match["operator"] or ""
        is_set = of_name is not None and (of_name != "" or not operation.startswith(":"))
        if operation.endswith("+"):
            return match["word"] if is_set else ""
        if is_set:
            return str(of_name)
        return match["word"] if operation.endswith("-") else match[0]

    return _OF_COMPOSE.sub(value, text)


def _with_env_files(service: Any, folder: Path | None) -> Any:
    """Returns a service with the variables of its files, before those of `environment`.

    Files that are not here stay under `env_file`.
    """
    listed = service.get("env_file") if isinstance(service, Mapping) else None
    if not listed or folder is None:
        return service
    variables: dict[str, str] = {}
    missing: list[str] = []
    for entry in listed if isinstance(listed, list) else [listed]:
        name = str(entry.get("path") if isinstance(entry, Mapping) else entry)
        content = read_near(name, folder)
        if content is None:
            missing.append(name)
        else:
            variables |= variables_in(content)
    written = service.get("environment") or {}
    if isinstance(written, list):
        pairs = (str(entry).partition("=") for entry in written)
        written = {name: value for name, equals, value in pairs if equals}
    return {**service, "env_file": missing, "environment": {**variables, **written}}
