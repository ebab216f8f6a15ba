"""What other files, and other parts of its own, give to a file with a serve command.

    completed("services: ...", Path("deploy"))    # with the values of deploy/.env

- Compose: `.env` and `env_file`, `$$`, and profiles that are not started (Docker's docs,
  "interpolation" and "profiles")
- systemd and Quadlet: `EnvironmentFile=`; `docker run --env-file`; files that a script sources
- Slurm: variables of `#SBATCH` lines (sbatch, "output environment variables")
- Ansible: `vars` of the same file in `{{ name }}`
- HCL: defaults of variables, and locals

Files are read at their path or next to the file with the command.
"""

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from outrider.serving.serve_documents import LONGEST_TEXT, documents_in, mappings_in
from outrider.serving.serve_variables import VARIABLE

LONGEST_FILE = 100_000
"""Bytes of a file with variables that is read."""

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.]*)[ \t]*=[ \t]*(.*?)[ \t]*$")

_OF_COMPOSE = re.compile(
    r"\$(?:(?P<escaped>\$)|(?P<plain>[A-Za-z_]\w*)"
    r"|\{(?P<braces>[A-Za-z_]\w*)(?:(?P<operator>:?[-?+])(?P<word>[^{}]*))?\})"
)
"""What Compose replaces; `$$` is a dollar sign."""

_UNIT_FILE = re.compile(r"^EnvironmentFile[ \t]*=[ \t]*-?[ \t]*(\S+)[ \t]*$", re.MULTILINE)
_OF_DOCKER = re.compile(r"--env-file(?:=|[ \t]+)[\"']?([^\s\"']+)[\"']?")
_ENV_FILE = re.compile(r"^[ \t]*env_file:(?:\s*-)?[ \t]*([^\s\[\]#-]\S*)", re.MULTILINE)
_SOURCED = re.compile(r"(?:^|&&|;)[ \t]*(?:source|\.)[ \t]+([\"']?)([^\s\"';&|]+)\1", re.MULTILINE)

_SBATCH = re.compile(r"^#SBATCH[ \t]+(.*)$", re.MULTILINE)
_GPUS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)")

_JINJA = re.compile(r"\{\{-?\s*([\w.]+)\s*((?:\|[^{}]*)?)-?\}\}")
_DEFAULT = re.compile(r"\|\s*(?:default|d)\(\s*(?:(['\"])(.*?)\1|([\d.]+))")

_OF_HCL = re.compile(
    r"variable\s+\"(\w+)\"\s*\{[^{}]*?\bdefault\s*=\s*(?:\"((?:[^\"\\\n]|\\.)*)\"|([\w.+-]+))"
)
_LOCALS = re.compile(r"^[ \t]*locals\s*\{([^{}]*)\}", re.MULTILINE)
_LOCAL = re.compile(
    r"^[ \t]*(\w+)\s*=\s*(?:\"((?:[^\"\\\n$]|\\.)*)\"|([\d.]+))[ \t]*$", re.MULTILINE
)
_REFERENCE = re.compile(r"\$\{(var|local)\.(\w+)\}|(?<=[\[,=])(\s*)\b(var|local)\.(\w+)\b")

SETTERS = {
    "SLURM_": "Slurm sets it from the options of the job",
    "SKYPILOT_": "SkyPilot sets it from resources.accelerators and num_nodes",
    "LWS_": "LeaderWorkerSet sets it, LWS_GROUP_SIZE from leaderWorkerTemplate.size",
    "POD_": "Kubernetes sets it when the pod starts",
    "RUNPOD_": "RunPod sets it on its machines",
}
"""Beginnings of variables that a platform sets, and from what."""


def completed(text: str, folder: Path | None) -> str:
    """Returns a text with what its surroundings set; without a folder no file is read."""
    if len(text) > LONGEST_TEXT:
        return text
    text = _with_slurm(_with_hcl(text))
    if folder is not None:
        text = _with_files(text, folder)
    if "services:" in text or "{{" in text or '"services"' in text:
        text = _with_documents(text, folder)
    return text


def missing_files(text: str) -> list[str]:
    """Returns the files with variables that a text names and that `completed` has not read."""
    names = [f"EnvironmentFile={name}" for name in _UNIT_FILE.findall(text)]
    names += [f"--env-file {name}" for name in _OF_DOCKER.findall(text)]
    names += [f"source {name}" for name in sourced_files(text)]
    names += [f"env_file {name}" for name in _ENV_FILE.findall(text)]
    return list(dict.fromkeys(names))


def sourced_files(text: str) -> list[str]:
    """Returns the files that a script sources, but for a virtual environment's."""
    names = (name for _, name in _SOURCED.findall(text))
    return list(dict.fromkeys(name for name in names if not name.endswith("/activate")))


def setter_of(name: str) -> str | None:
    """Returns what sets a platform's variable; None for any other."""
    return next((words for prefix, words in SETTERS.items() if name.startswith(prefix)), None)


def _read(name: str, folder: Path) -> str | None:
    """Returns a file at its path or next to the command's; None if there is none."""
    for path in (folder / Path(name).expanduser(), folder / PurePosixPath(name).name):
        # A file that this user may not read is as good as one that is not here.
        with contextlib.suppress(OSError, ValueError):
            if path.is_file() and path.stat().st_size <= LONGEST_FILE:
                return path.read_text(encoding="utf-8", errors="replace")
    return None


def _variables_in(text: str) -> dict[str, str]:
    """Returns the variables of lines NAME=VALUE, as Compose and systemd read them."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        assigned = _LINE.fullmatch(line)
        if assigned is None:
            continue
        value = assigned[2]
        quoted = re.match(r"(['\"])(.*)\1", value)
        variables[assigned[1]] = quoted[2] if quoted else re.split(r"\s#", value)[0].rstrip()
    return variables


def _with_files(text: str, folder: Path) -> str:
    """Replaces the names of files with variables by those variables."""

    def quoted_pairs(file_name: str) -> list[str] | None:
        content = _read(file_name, folder)
        if content is None:
            return None
        variables = _variables_in(content)
        return [shlex.quote(f"{name}={value}") for name, value in variables.items()]

    def of_unit(match: re.Match[str]) -> str:
        pairs = quoted_pairs(match[1])
        return match[0] if pairs is None else "\n".join(f"Environment={pair}" for pair in pairs)

    def of_docker(match: re.Match[str]) -> str:
        pairs = quoted_pairs(match[1])
        return match[0] if pairs is None else " ".join(f"-e {pair}" for pair in pairs)

    def of_script(match: re.Match[str]) -> str:
        is_activation = match[2].endswith("/activate")
        content = None if is_activation or "$" in match[2] else _read(match[2], folder)
        return match[0] if content is None else f"\n{content}\n"

    text = _UNIT_FILE.sub(of_unit, text)
    text = _OF_DOCKER.sub(of_docker, text)
    return _SOURCED.sub(of_script, text) if "vllm" in text else text


def _with_slurm(text: str) -> str:
    """Sets the variables of Slurm that a batch script uses and that its options decide."""
    options: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        for name, value in re.findall(r"(--[\w-]+|-[A-Za-z])(?:=|[ \t]+|(?=\d))([^\s#]+)", line):
            options[name] = value
    nodes = options.get("--nodes") or options.get("-N") or ""
    per_node = options.get("--gpus-per-node", "")
    on_node = _GPUS.fullmatch(per_node or options.get("--gres", ""))
    values = {
        "SLURM_NNODES": nodes if nodes.isdigit() else "",
        "SLURM_JOB_NUM_NODES": nodes if nodes.isdigit() else "",
        "SLURM_GPUS_PER_NODE": per_node,
        "SLURM_GPUS_ON_NODE": on_node[1] if on_node else "",
        "SLURM_GPUS": options.get("--gpus") or options.get("-G") or "",
        "SLURM_NTASKS": options.get("--ntasks") or options.get("-n") or "",
        "SLURM_NTASKS_PER_NODE": options.get("--ntasks-per-node", ""),
        "SLURM_CPUS_PER_TASK": options.get("--cpus-per-task") or options.get("-c") or "",
    }
    lines = [
        f"{name}={value}"
        for name, value in values.items()
        if value and re.search(rf"\b{name}\b", text)
    ]
    return "\n".join([*lines, text]) if lines else text


def _with_hcl(text: str) -> str:
    """Replaces variables of HCL by their defaults, and locals by their values."""
    values: dict[tuple[str, str], str] = {}
    for name, quoted, bare in _OF_HCL.findall(text):
        values["var", name] = quoted or bare
    for block in _LOCALS.findall(text):
        for name, quoted, bare in _LOCAL.findall(block):
            values["local", name] = quoted or bare
    if not values:
        return text

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return values.get((match[1], match[2]), match[0])
        known = values.get((match[4], match[5]))
        return match[0] if known is None else f'{match[3]}"{known}"'

    return _REFERENCE.sub(value, text)


def _with_documents(text: str, folder: Path | None) -> str:
    """Completes Compose files and Ansible's; any other text stays as it is."""
    documents = documents_in(text)
    try:
        changed = [_completed_document(document, folder) for document in documents]
        if changed == documents:
            return text
        return yaml.dump_all(changed, Dumper=_DUMPER, sort_keys=False, width=LONGEST_TEXT)
    except RecursionError:  # a list in a thousand others
        return text


def _completed_document(document: Any, folder: Path | None) -> Any:
    if isinstance(document, Mapping) and isinstance(document.get("services"), Mapping):
        return _completed_compose(document, folder)
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
    return _with_texts(document, lambda text: _without_jinja(text, values), {})


def _without_jinja(text: str, values: Mapping[str, str]) -> str:
    """Replaces {{ name }} where the name has a value, or a filter gives a default."""

    def value(match: re.Match[str]) -> str:
        if match[1] in values:
            return values[match[1]]
        default = _DEFAULT.match(match[2])
        return match[0] if default is None else default[2] or default[3] or ""

    return _JINJA.sub(value, text)


def _completed_compose(document: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Returns a Compose file as `docker compose config` shows it."""
    content = _read(".env", folder) if folder is not None else None
    variables = _variables_in(content or "")
    interpolated = _with_texts(document, lambda text: _interpolated(text, variables), {})
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
        content = _read(name, folder)
        if content is None:
            missing.append(name)
        else:
            variables |= _variables_in(content)
    written = service.get("environment") or {}
    if isinstance(written, list):
        pairs = (str(entry).partition("=") for entry in written)
        written = {name: value for name, equals, value in pairs if equals}
    return {**service, "env_file": missing, "environment": {**variables, **written}}


def _with_texts(value: Any, change: Callable[[str], str], done: dict[int, Any]) -> Any:
    """Returns a document with its texts changed; an alias of YAML stays one object."""
    if isinstance(value, str):
        return change(value)
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, Mapping):
        mapping: dict[Any, Any] = {}
        done[id(value)] = mapping
        for key, inner in value.items():
            mapping[key] = _with_texts(inner, change, done)
        return mapping
    if isinstance(value, list):
        items: list[Any] = []
        done[id(value)] = items
        items.extend(_with_texts(inner, change, done) for inner in value)
        return items
    return value


def names_in(words: list[str]) -> Iterator[str]:
    """Yields the names of the variables that words still have."""
    for word in words:
        for match in VARIABLE.finditer(word):
            yield match["plain"] or match["braces"] or match["kube"]
        for expression in re.findall(r"\$\(\((.*?)\)\)", word):
            yield from re.findall(r"[A-Za-z_]\w*", expression)
        for match in _JINJA.finditer(word):
            yield match[1]
