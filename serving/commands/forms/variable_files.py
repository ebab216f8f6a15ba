"""Files with variables that a serve command's file names: read where they are here.

- systemd and Quadlet: `EnvironmentFile=`
- `docker run --env-file`, and Compose's `env_file` (compose.py)
- files that a script sources or a Makefile includes, and a justfile's .env

They are looked for at their path and next to the file with the command.
"""

import contextlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from outrider.common.errors import OutriderError
from outrider.serving.commands.forms.make_files import is_makefile, with_dotenv

LONGEST_FILE = 100_000
"""Bytes of a file with variables that is read."""

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.]*)[ \t]*=[ \t]*(.*?)[ \t]*$")

_UNIT_FILE = re.compile(r"^EnvironmentFile[ \t]*=[ \t]*-?[ \t]*(\S+)[ \t]*$", re.MULTILINE)
_INSTANCE = re.compile(r"%[iI]")
"""A template unit's instance: vllm@NAME.service."""

_OF_DOCKER = re.compile(r"--env-file(?:=|[ \t]+)[\"']?([^\s\"']+)[\"']?")
_ENV_FILE = re.compile(r"^[ \t]*env_file:(?:\s*-)?[ \t]*([^\s\[\]#-]\S*)", re.MULTILINE)
_SOURCED = re.compile(
    r"(?:^|&&|;)[ \t]*(?:source|\.)[ \t]+(?!=)([\"']?)([^\s\"';&|]+)\1", re.MULTILINE
)
_INCLUDED = re.compile(r"^(?:-|s)?include[ \t]+([^\s$]+)[ \t]*$", re.MULTILINE)
"""A file of Make's variables."""


def missing_files(text: str) -> list[str]:
    """Returns the files with variables that a text names and that `completed` has not read."""
    names = [f"EnvironmentFile={name}" for name in _UNIT_FILE.findall(text)]
    names += [f"--env-file {name}" for name in _OF_DOCKER.findall(text)]
    names += [f"source {name}" for name in _sourced_files(text)]
    names += [f"env_file {name}" for name in _ENV_FILE.findall(text)]
    return list(dict.fromkeys(names))


def _sourced_files(text: str) -> list[str]:
    """Returns the files that a script sources, but for a virtual environment's."""
    names = (name for _, name in _SOURCED.findall(text))
    return list(dict.fromkeys(name for name in names if not name.endswith("/activate")))


Folder = Path | Mapping[str, str]
"""The folder of the command's file, or the contents of files by name if a text has them."""


def read_near(name: str, folder: Folder) -> str | None:
    """Returns a file at its path or next to the command's; None if there is none."""
    if isinstance(folder, Mapping):
        of_name = {PurePosixPath(path).name: content for path, content in folder.items()}
        return folder.get(name, of_name.get(PurePosixPath(name).name))
    for path in (folder / Path(name).expanduser(), folder / PurePosixPath(name).name):
        # A file that this user may not read is as good as one that is not here.
        with contextlib.suppress(OSError, ValueError):
            if path.is_file() and path.stat().st_size <= LONGEST_FILE:
                return path.read_text(encoding="utf-8", errors="replace")
    return None


def text_of_file(path: Path) -> str:
    """Returns a file's text in UTF-8, UTF-16 with its mark (PowerShell) or Windows' cp1252."""
    content = path.read_bytes()
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def unit_files(text: str) -> list[str]:
    """Returns the files that units name with `EnvironmentFile=`."""
    return _UNIT_FILE.findall(text)


def _with_instance(text: str, folder: Folder) -> str:
    """Returns a template unit with the one instance whose file of variables is next to it.

    Raises:
        OutriderError: If there are several, or none.
    """
    templates = [name for name in unit_files(text) if _INSTANCE.search(name)]
    if not templates:
        return text
    file_names = {PurePosixPath(name).name for name in unit_files(text)}
    present = folder if isinstance(folder, Mapping) else [path.name for path in folder.iterdir()]
    file_name = PurePosixPath(templates[0]).name
    before, _, after = _INSTANCE.sub("\0", file_name).partition("\0")
    has_mark = bool(before or after)  # or any file would be one
    instances = sorted(
        name.removeprefix(before).removesuffix(after)
        for name in (PurePosixPath(path).name for path in present)
        if has_mark and name.startswith(before) and name.endswith(after) and name not in file_names
    )
    if len(instances) == 1:
        return _INSTANCE.sub(lambda _: instances[0], text)
    if "$" not in text:  # the command needs no variable of such a file
        return text
    listed = f", one of {', '.join(instances[:5])}" if instances else ""
    raise OutriderError(
        f"--from-serve-command: EnvironmentFile={templates[0]}: a template unit; replace %i by its"
        f" instance{listed}, and put the instance's file next to this one"
    )


def with_unit_file(text: str, name: str, content: str) -> str:
    """Returns units with the variables of a file in place of its name."""
    pairs = (shlex.quote(f"{key}={value}") for key, value in variables_in(content).items())
    lines = "\n".join(f"Environment={pair}" for pair in pairs)
    return _UNIT_FILE.sub(lambda match: lines if match[1] == name else match[0], text)


def variables_in(text: str) -> dict[str, str]:
    """Returns the variables of lines NAME=VALUE, as Compose and systemd read them."""
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\r?\n", "", text).splitlines():  # systemd's, also inside quotes
        assigned = _LINE.fullmatch(line)
        if assigned is None:
            continue
        value = assigned[2]
        quoted = re.match(r"(['\"])(.*)\1", value)
        variables[assigned[1]] = quoted[2] if quoted else re.split(r"\s#", value)[0].rstrip()
    return variables


def with_files(text: str, folder: Folder) -> str:
    """Replaces the names of files with variables by those variables."""

    def quoted_pairs(file_name: str) -> list[str] | None:
        content = read_near(file_name, folder)
        if content is None:
            return None
        variables = variables_in(content)
        return [shlex.quote(f"{name}={value}") for name, value in variables.items()]

    def of_docker(match: re.Match[str]) -> str:
        pairs = quoted_pairs(match[1])
        return match[0] if pairs is None else " ".join(f"-e {pair}" for pair in pairs)

    def of_script(match: re.Match[str]) -> str:
        is_activation = match[2].endswith("/activate")
        content = None if is_activation or "$" in match[2] else read_near(match[2], folder)
        return match[0] if content is None else f"\n{content}\n"

    text = _with_instance(text, folder)
    for name in unit_files(text):
        content = read_near(name, folder)
        text = text if content is None else with_unit_file(text, name, content)

    included = 0

    def of_makefile(match: re.Match[str]) -> str:
        nonlocal included
        content = read_near(match[1], folder) if included <= LONGEST_FILE else None
        included += len(content or "")
        return match[0] if content is None else content.rstrip("\n")

    if is_makefile(text):
        text = _INCLUDED.sub(of_makefile, text)
    text = with_dotenv(text, variables_in(read_near(".env", folder) or ""))
    text = _OF_DOCKER.sub(of_docker, text)
    return _SOURCED.sub(of_script, text) if "vllm" in text else text
