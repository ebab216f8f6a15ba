"""Compose files as `docker compose config` shows them.

Docker's documentation: "interpolation", "profiles", "extends", "merge" and "env_file". A variable
without a value stays as it is written, and the caller refuses it by name.
"""

import re
from collections.abc import Mapping
from typing import Any

from outrider.serving.commands.forms.documents import documents_in, with_texts
from outrider.serving.commands.forms.variable_files import Folder, read_near, variables_in

OVERRIDES = ("compose.override.yaml", "compose.override.yml", "docker-compose.override.yml")
"""Names of the file whose values replace those of the one next to it."""

_OF_COMPOSE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_]\w*)"
    r"|\{(?P<braces>[A-Za-z_]\w*)(?:(?P<operator>:?[-?+])(?P<word>[^{}]*))?\})"
)
"""What Compose replaces; `$$` is a dollar sign."""


EXTENSION = "x-"
"""How keys begin that Compose itself does not read; YAML's anchors have put them where they are."""


def completed_compose(document: Mapping[str, Any], folder: Folder | None) -> dict[str, Any]:
    """Returns a Compose file as `docker compose config` shows it."""
    content = read_near(".env", folder) if folder is not None else None
    variables = variables_in(content or "")
    if folder is not None:
        document = _merged(document, folder)
    interpolated = with_texts(document, lambda text: _interpolated(text, variables), {})
    services = interpolated["services"]
    active = set(re.split(r"[,\s]+", variables.get("COMPOSE_PROFILES", "")))
    started = {
        name: service
        for name, service in services.items()
        if not isinstance(service, Mapping) or active & {"*", *_profiles_of(service, active)}
    }
    used = {key: value for key, value in interpolated.items() if not key.startswith(EXTENSION)}
    return used | {
        "services": {
            name: _with_env_files(service, folder)
            for name, service in (started or services).items()
        }
    }


def _merged(document: Mapping[str, Any], folder: Folder) -> Mapping[str, Any]:
    """Returns a file with the services that its own extend, and with its override's values.

    Docker Compose reads the override without being told, if it is there.
    """
    services = {
        name: _extended(service, document["services"], folder)
        for name, service in document["services"].items()
    }
    for name in OVERRIDES:
        for override in documents_in(read_near(name, folder) or ""):
            changed = override.get("services") if isinstance(override, Mapping) else None
            if not isinstance(changed, Mapping) or changed == document["services"]:
                continue
            for service, values in changed.items():
                services[service] = _over(services.get(service), values)
    return {**document, "services": services}


def _extended(service: Any, services: Mapping[str, Any], folder: Folder) -> Any:
    """Returns a service with what it extends, of the same file or of another one."""
    extends = service.get("extends") if isinstance(service, Mapping) else None
    if extends is None:
        return service
    about = extends if isinstance(extends, Mapping) else {"service": extends}
    if about.get("file"):
        of_file = documents_in(read_near(str(about["file"]), folder) or "")
        first = of_file[0] if of_file and isinstance(of_file[0], Mapping) else {}
        listed = first.get("services")
        services = listed if isinstance(listed, Mapping) else {}
    base = services.get(str(about.get("service")))
    rest = {key: value for key, value in service.items() if key != "extends"}
    return _over(base, rest)


def _over(base: Any, values: Any) -> Any:
    """Returns a service's values over another's; mappings are joined, a command is replaced."""
    if not isinstance(base, Mapping) or not isinstance(values, Mapping):
        return values
    merged = dict(base)
    for key, value in values.items():
        before = _as_mapping(key, merged.get(key))
        over = _as_mapping(key, value)
        both = isinstance(before, Mapping) and isinstance(over, Mapping)
        merged[key] = {**before, **over} if both else value
    return merged


def _as_mapping(key: str, value: Any) -> Any:
    """Returns the variables of `environment` as a mapping; anything else as it is."""
    if key != "environment" or not isinstance(value, list):
        return value
    pairs = (str(entry).partition("=") for entry in value)
    return {name: text for name, equals, text in pairs if equals}


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


def _with_env_files(service: Any, folder: Folder | None) -> Any:
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
    written = _as_mapping("environment", service.get("environment") or {})
    return {**service, "env_file": missing, "environment": {**variables, **written}}
