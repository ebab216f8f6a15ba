"""The file of a folder that starts the server, as a user gives a project of Compose or Terraform.

    path, command = command_of_folder(Path("deploy"), read, read_text)

Each file of the folder is tried, and those of the folders in it if none starts a server. Files that
another one names, such as a script that a Dockerfile copies, and documents are not taken if there
are others. Kubernetes' manifests are read together, as `kubectl apply -f FOLDER` does: a runtime of
KServe, the service that completes it, a ConfigMap. What Kustomize or Helm would still change is
refused with the command that prints it. A deployment of Azure ML replaces variables of the image
that the folder's Dockerfile builds.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.commands.find import NoCommand
from outrider.serving.commands.forms.compose import OVERRIDES
from outrider.serving.commands.forms.documents import LONGEST_TEXT, documents_in
from outrider.serving.commands.forms.variable_files import text_of_file

KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Names of the file that changes the manifests next to it."""

CHART = "Chart.yaml"
"""Name of the file that makes a folder a chart of Helm."""

DOCUMENTS = frozenset({".md", ".rst", ".txt", ".adoc"})
"""Suffixes of files that show commands, and which need not be those that run."""

MANIFESTS = frozenset({".yaml", ".yml"})

MOST_FILES = 300
DEEPEST = 5
"""Files, and levels of folders, that are looked at."""

SHOWN = 5

_USES = re.compile(
    r"\b(?:COPY|ADD|CMD|ENTRYPOINT|ExecStart\w*|source|bash|sh|exec|include|src|config|templatefile"
    r"|command|entrypoint|env_file)\b|(?:^|\s)\.\s|\./"
)
"""What a line does with a file that it names."""


_RUNTIME = re.compile(r"^kind: *(?:Cluster)?ServingRuntime\b", re.MULTILINE)
_API_VERSION = re.compile(r"^apiVersion:", re.MULTILINE)

_AZURE_ML = re.compile(
    r"^\$schema:.*\b(?:managedOnline|kubernetesOnline)Deployment\.schema\.json", re.MULTILINE
)
"""A deployment of Azure ML (its "managed online deployment YAML schema")."""

_STARTS = re.compile(r"^(?:ENTRYPOINT|CMD)\b", re.MULTILINE)

_ONLY_SAYS = re.compile(r"\s*(?:#|//|echo\b|printf\b|Write-Host\b)")
_COMMENT = re.compile(r"\s#.*")


class Tried(NamedTuple):
    """A file with the command that it starts."""

    path: Path
    text: str
    command: Any


def command_of_folder(
    folder: Path, read: Callable[[str], Any], read_text: Callable[[str, str, Path], Any]
) -> tuple[Path, Any]:
    """Returns the file that starts a server, and its command; of manifests, their folder.

    `read` reads a file, and `read_text` a text of a name with the files of a folder.

    Raises:
        OutriderError: If no file starts one, or several start different ones.
    """
    if any((folder / name).is_file() for name in KUSTOMIZATIONS):
        raise OutriderError(
            f"{folder}: a folder of Kustomize; give the file that this writes:"
            f" kubectl kustomize {folder} > rendered.yaml"
        )
    if (folder / CHART).is_file():
        raise OutriderError(
            f"{folder}: a chart of Helm; give the file that this writes, with your values:"
            f" helm template {folder} -f values.yaml > rendered.yaml"
        )
    refused: list[OutriderError] = []
    for level in range(DEEPEST):
        paths = sorted(_files(folder, level))[:MOST_FILES]
        tried = list(_tried(paths, read, refused))
        tried = _deployed(folder, tried, paths, read_text)
        tried = _with_manifests(tried, list(_together(paths, read_text)))
        if tried:
            return _only(folder, tried)
        if refused:
            raise refused[0]
    raise OutriderError(f"{folder}: no file in this folder starts `vllm serve`; give one that does")


def _files(folder: Path, level: int) -> Iterator[Path]:
    """Yields the files in folders at a level below `folder`."""
    for path in folder.glob("*/" * level + "*"):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not is_hidden and path.name not in OVERRIDES and path.is_file():
            yield path


def _tried(
    paths: list[Path], read: Callable[[str], Any], refused: list[OutriderError]
) -> Iterator[Tried]:
    """Yields the files that can be read; adds why others with a command cannot."""
    for path in paths:
        text = _text_of(path)
        if text is None:
            continue
        try:
            yield Tried(path, text, read(str(path)))
        except NoCommand:
            continue
        except OutriderError as error:
            refused.append(error)


def _deployed(
    folder: Path,
    tried: list[Tried],
    paths: list[Path],
    read_text: Callable[[str, str, Path], Any],
) -> list[Tried]:
    """Returns the files with Dockerfiles as a deployment of Azure ML in the folder starts them.

    Raises:
        OutriderError: If deployments set different variables.
    """
    deployments = [text for text in map(_text_of, paths) if text and _AZURE_ML.search(text)]
    variables = [
        document["environment_variables"]
        for text in deployments
        for document in documents_in(text)
        if isinstance(document, dict) and isinstance(document.get("environment_variables"), dict)
    ]
    if not variables:
        return tried
    if any(other != variables[0] for other in variables):
        raise OutriderError(
            f"{folder}: {len(variables)} deployments of Azure ML with different"
            " environment_variables; give a folder with the one that the endpoint runs"
        )
    lines = "".join(
        f"ENV {name}={json.dumps(str(value))}\n" for name, value in variables[0].items()
    )
    deployed = []
    for file in tried:
        starts = list(_STARTS.finditer(file.text)) if "Dockerfile" in file.path.name else []
        if starts:
            begin = starts[0].start()
            text = file.text[:begin] + lines + file.text[begin:]
            command = read_text(str(file.path), text, file.path.parent)
            file = Tried(file.path, text, command)
        deployed.append(file)
    return deployed


def _with_manifests(tried: list[Tried], together: list[Tried]) -> list[Tried]:
    """Returns the files with those of a folder's manifests that need each other as one.

    They do if their command together is none that a file has alone, or one of them is a runtime of
    KServe, which starts no server without a service.
    """
    alone = [file.command.values for file in tried]
    joined = [
        folder
        for folder in together
        if folder.command.values not in alone or _RUNTIME.search(folder.text)
    ]
    folders = {folder.path for folder in joined}
    others = [
        file
        for file in tried
        if file.path.parent not in folders or not _is_manifest(file.path, file.text)
    ]
    return [*others, *joined]


def _together(paths: list[Path], read_text: Callable[[str, str, Path], Any]) -> Iterator[Tried]:
    """Yields the folders of several manifests whose commands can be read together."""
    texts: dict[Path, list[str]] = {}
    for path in paths:
        text = _text_of(path)
        if text is not None and _is_manifest(path, text):
            texts.setdefault(path.parent, []).append(text)
    for folder, of_folder in texts.items():
        text = "\n---\n".join(of_folder)
        if len(of_folder) == 1:
            continue
        try:
            yield Tried(folder, text, read_text(str(folder), text, folder))
        except OutriderError:  # the files alone are read or refused
            continue


def _is_manifest(path: Path, text: str) -> bool:
    return path.suffix in MANIFESTS and _API_VERSION.search(text) is not None


def _text_of(path: Path) -> str | None:
    """Returns a file's text; None if it is large or no text."""
    try:
        text = text_of_file(path) if path.stat().st_size <= LONGEST_TEXT else "\0"
    except OSError:
        return None
    return None if "\0" in text else text


def _only(folder: Path, tried: list[Tried]) -> tuple[Path, Any]:
    """Returns the one file that starts the server."""
    scripts = [file for file in tried if file.path.suffix.lower() not in DOCUMENTS] or tried
    unnamed = [file for file in scripts if not _is_named(file, scripts)] or scripts
    first = unnamed[0]
    if any(file.command.values != first.command.values for file in unnamed):
        names = [str(file.path.relative_to(folder)) for file in unnamed]
        more = ", ..." if len(names) > SHOWN else ""
        raise OutriderError(
            f"{folder}: {len(names)} files start different servers"
            f" ({', '.join(names[:SHOWN])}{more}); give the one that the endpoint runs"
        )
    return first.path, first.command


def _is_named(file: Tried, files: list[Tried]) -> bool:
    """Whether another file uses this one."""
    name = re.compile(rf"(?<![\w.-]){re.escape(file.path.name)}(?![\w.-])")
    texts = (script.text.splitlines() for script in files if script.path != file.path)
    return any(
        name.search(_COMMENT.sub("", line)) and _USES.search(line)
        for lines in texts
        for line in lines
        if not _ONLY_SAYS.match(line)
    )
