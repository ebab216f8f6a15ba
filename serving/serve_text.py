"""Finds the vLLM command in a shell script, a container's command or a manifest.

    variables, words = find_command("serve.sh", "VLLM_USE_V1=1 vllm serve org/model -tp 8")
    variables        # {"VLLM_USE_V1": "1"}
    words            # ["org/model", "-tp", "8"]

Read are `vllm serve`, the module of vLLM's API server, `docker run` of an image whose entry point
is either, the containers of Kubernetes, Docker Compose and `docker inspect`, SkyPilot's `run`, unit
files and what `kubectl describe` shows (serve_units.py), settings of charts and frameworks
(serve_settings.py), other programs that start vLLM (serve_launchers.py), and commands that Python,
Make, Nomad and Terraform build (serve_programs.py).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from outrider.common.errors import OutriderError
from outrider.common.redaction import redacted
from outrider.serving.serve_launchers import LAUNCHERS, of_launcher, words_of_prefixes
from outrider.serving.serve_programs import (
    calls_in_program,
    script_of_justfile,
    script_of_makefile,
    words_of_hcl,
    words_of_pm2,
    words_of_program,
)
from outrider.serving.serve_settings import (
    words_of_config,
    words_of_kserve,
    words_of_log,
    words_of_settings,
)
from outrider.serving.serve_units import (
    as_shell,
    has_torn_object,
    with_quoted_objects,
    words_of_lists,
    words_of_units,
)
from outrider.serving.vllm_flags import HARMLESS

SERVERS = ("vllm.entrypoints.openai.api_server", "vllm/entrypoints/openai/api_server.py")
"""The module of vLLM's API server, and its file."""

CLI = "vllm.entrypoints.cli.main"
"""The module of the `vllm` command."""

IMAGE = re.compile(r"(?:[\w.:-]+/)*[\w.-]*vllm[\w.-]*(?:[:@][\w.:+-]+)?")
"""Name of an image, such as vllm/vllm-openai:v0.32.0, whose entry point is `vllm serve`."""

CONTAINERS = {"docker", "podman", "nerdctl", "singularity", "apptainer"}

OF_INSPECT = {"Cmd": "command", "Entrypoint": "entrypoint", "Env": "environment", "Image": "image"}
"""What `docker inspect` calls the keys of Compose."""

END = ";"
"""The word that ends a command."""

OPERATORS = {";", "&", "&&", "|", "||"}

BLOCK = re.compile(r"^[ \t]*```[\w-]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
"""A block of code in Markdown."""

REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<)(?P<file>.*)")

VARIABLE = re.compile(
    r"\$(?:(?P<plain>\w+)|\{(?P<braces>\w+)(?::?-(?P<default>[^}]*))?\}|\((?P<kube>\w+)\))"
)
"""$NAME, ${NAME}, ${NAME:-default} and, in Kubernetes, $(NAME)."""

ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)

EXPORTED = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Names of variables that a program may read. A script's own are often in lower case."""

LONGEST_WORD = 20_000
"""Characters of a word with variables replaced: fifteen lines `A=$A$A$A$A` stand for gigabytes."""

Command = tuple[dict[str, str], list[str]]
"""Environment variables, and the words after `vllm serve`."""


def find_command(source: str, text: str) -> Command:
    """Returns the variables and words of the first vLLM command in `text`.

    Raises an `OutriderError` if there is none, or if a shell variable has no value in `text`.
    """
    blocks = [_words_of_script(block) for block in BLOCK.findall(text)]
    candidates = [words_of_prefixes(text), *blocks, *words_of_units(text), *_of_manifest(text)]
    calls = calls_in_program(text)
    candidates += [*words_of_settings(calls), *words_of_config(calls), *words_of_program(text)]
    candidates += [*words_of_lists(text), *words_of_log(text), words_of_hcl(text)]
    scripts = (script_of_makefile(text), script_of_justfile(text))
    candidates += [*map(_words_of_script, scripts), words_of_pm2(text)]
    for candidate in candidates:
        if command := _of_words(candidate):
            return _checked(source, *command)
    try:
        words = shell_words(text)
    except ValueError as error:
        raise OutriderError(f"{source}: not a shell command ({error})") from None
    if command := _of_words(words):
        return _checked(source, *command)
    if any("sglang" in word for word in words):
        raise OutriderError(
            f"{source}: a command of SGLang, and Outrider's engines run vLLM; give the `vllm serve`"
            " command with the same model and parallelism, or leave it out and set"
            " serving.engine.* (docs/how-to/sglang.md)"
        )
    raise OutriderError(
        f"{source}: no `vllm serve`; give the command that the endpoint runs, or an existing"
        " file that contains it"
    )


def shell_words(text: str) -> list[str]:
    """Splits a script into words, with `END` between commands.

    A line that begins with a flag continues the one before, with or without a backslash.
    """
    text = as_shell(re.sub(r"\\[ \t]*\r?\n", " ", text.replace("\u00a0", " ")))
    words = _split_lines(text)
    return _split_lines(with_quoted_objects(text)) if has_torn_object(words) else words


def _split_lines(text: str) -> list[str]:
    words: list[str] = []
    pending = ""
    for line in text.splitlines():
        pending += line + "\n"
        try:
            of_line = shlex.split(pending, comments=True)
        except ValueError:  # a quotation that goes on in the next line
            continue
        pending = ""
        if of_line and not of_line[0].startswith("-"):
            words.append(END)
        words += of_line
    if pending:
        raise ValueError("a quotation without an end")
    return words


def _of_words(words: list[str]) -> Command | None:
    """The first vLLM command among the words of a script."""
    variables: dict[str, str] = {}
    for index, word in enumerate(words):
        if " " in word and "vllm" in word:  # sh -c "vllm serve ..."
            try:
                nested = _of_words(shell_words(word))
            except ValueError:
                nested = None
            if nested is not None:
                return variables | nested[0], nested[1]
        rest = _after_server(words, index)
        if rest is not None:
            command = _until_end(rest)
            return variables, of_launcher(word, command) if word in LAUNCHERS else command
        assigned = ASSIGNED.fullmatch(word.removeprefix("--env="))
        if assigned is not None:
            value = assigned["value"].removesuffix(END)
            variables[assigned["name"]] = _resolved(value, variables)
    return None


def _after_server(words: list[str], index: int) -> list[str] | None:
    """The words after the server's name, if it is at `index`."""
    if words[index] in LAUNCHERS and words[index - 1] == "-m":
        return words[index + 1 :]
    if _names_server(words, index):
        return words[index + 1 + (not words[index].endswith(SERVERS)) :]
    return words[index + 1 :] if _is_image_of_server(words, index) else None


def _names_server(words: list[str], index: int) -> bool:
    word = words[index]
    is_cli = Path(word).name == "vllm" or word == CLI
    return word.endswith(SERVERS) or (is_cli and words[index + 1 : index + 2] == ["serve"])


def _is_image_of_server(words: list[str], index: int) -> bool:
    """Whether `index` is the image of a `docker run` that names no other command."""
    before, rest = words[:index], words[index + 1 :]
    if "run" not in before or not CONTAINERS & {Path(word).name for word in before}:
        return False
    image = words[index].removeprefix("docker://")
    is_bare = not re.search("[/:]", image)
    is_value = is_bare and words[index - 1].startswith("-")  # such as --name vllm
    if is_value or not IMAGE.fullmatch(image):
        return False
    return not any(
        "vllm serve" in word or _names_server(rest, position) for position, word in enumerate(rest)
    )


def _until_end(words: list[str]) -> list[str]:
    """The words of one command, without redirections."""
    command_words: list[str] = []
    skips_file = False
    for word in words:
        if word in OPERATORS:
            break
        redirection = REDIRECTION.fullmatch(word)
        if skips_file:
            skips_file = False
        elif redirection is not None:
            skips_file = not redirection["file"]
        else:
            command_words.append(word.removesuffix(END))
            if word.endswith(END):
                break
    return command_words


def _resolved(word: str, variables: Mapping[str, str]) -> str:
    """Replaces variables that have a value, or a default in the word itself."""
    length = 0

    def value(match: re.Match[str]) -> str:
        nonlocal length
        name = match["plain"] or match["braces"] or match["kube"]
        default = match[0] if match["default"] is None else match["default"]
        replacement = variables.get(name, default)
        length += len(replacement)
        if length > LONGEST_WORD:  # before the values are joined
            raise OutriderError(
                f"--from-serve-command: the variable {name} stands for more than {LONGEST_WORD}"
                " characters with those in it; write the command with shorter values"
            )
        return replacement

    return VARIABLE.sub(value, word)


def _expanded(words: list[str], variables: Mapping[str, str]) -> Iterator[str]:
    """The words with their variables replaced; a variable that holds flags becomes several."""
    for word in words:
        if word in ("$@", "$*"):
            continue
        resolved = _resolved(word, variables)
        if VARIABLE.fullmatch(word) and resolved.startswith("-"):
            yield from shlex.split(resolved)
        else:
            yield resolved


def _checked(source: str, variables: dict[str, str], words: list[str]) -> Command:
    """Replaces variables that the text sets; refuses others, but in flags of the HTTP server."""
    exported = {name: value for name, value in variables.items() if EXPORTED.fullmatch(name)}
    checked: list[str] = []
    for word in _expanded(words, variables):
        if not re.search(r"\$[({A-Za-z_@*]|\{\{", word):
            checked.append(word)
            continue
        flag, equals, _ = word.partition("=")
        if not equals and checked:
            flag = checked[-1]
        if not flag.startswith("--") or flag[2:].replace("-", "_") not in HARMLESS:
            raise OutriderError(
                f"{source}: {redacted(word)}: contains a shell variable; replace it with its value"
            )
        if not equals:
            checked.pop()
    return exported, checked


def _of_manifest(text: str) -> Iterator[list[str]]:
    """The words of each container in a YAML or JSON document; none for a script."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    yield from _scripts(documents)
    yield from words_of_kserve(list(_mappings(documents)))
    yield from words_of_settings(_mappings(documents))
    yield from words_of_config(documents)
    for container in _containers(documents):
        words = [f"{name}={value}" for name, value in _environment(container)]
        # Kubernetes' `command` and the `entrypoint` of Compose and Ansible, whose `env` is a
        # mapping, replace the image's entry point.
        is_pod = "args" in container or isinstance(container.get("env"), list)
        replaces = "command" if is_pod else "entrypoint"
        # Compose replaces ${NAME:-default} in the name, too.
        image = VARIABLE.sub(lambda match: match["default"] or "", str(container.get("image", "")))
        if IMAGE.fullmatch(image) and not container.get(replaces):
            words += ["docker", "run", image]
        for key in ("entrypoint", "command", "args"):
            value = container.get(key) or []
            words += _one_command(value) if isinstance(value, str) else map(str, value)
        yield words


def _mappings(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Yields every mapping of YAML or JSON documents, once each, in document order."""
    waiting: list[Any] = [documents]
    read = set()  # a YAML alias is the same object again, possibly a billion times
    while waiting:
        value = waiting.pop()
        if id(value) in read:
            continue
        if isinstance(value, Mapping):
            yield value
            waiting += reversed(list(value.values()))
        elif isinstance(value, list):
            waiting += reversed(value)
        if isinstance(value, Mapping | list):
            read.add(id(value))


def _scripts(documents: list[Any]) -> Iterator[list[str]]:
    """The words of every script under `run`, after its variables: SkyPilot."""
    for task in _mappings(documents):
        script = task.get("run")
        if isinstance(script, str) and "vllm" in script:
            variables = task.get("envs") or task.get("env") or {}
            named = variables.items() if isinstance(variables, Mapping) else ()
            yield [*(f"{name}={text}" for name, text in named), *_words_of_script(script)]


def _words_of_script(script: str) -> list[str]:
    try:
        return shell_words(script)
    except ValueError:
        return []


def _one_command(text: str) -> list[str]:
    """Words of a Compose command, which may have several lines; none if it cannot be split."""
    return [word for word in _words_of_script(text) if word != END]


def _containers(documents: list[Any]) -> Iterator[Mapping[str, Any]]:
    """Every mapping with an image and a command, in document order."""
    for value in _mappings(documents):
        if {"Cmd", "Entrypoint"} & value.keys():  # docker inspect
            yield {OF_INSPECT.get(str(key), str(key)): inner for key, inner in value.items()}
        elif {"command", "args", "entrypoint"} & value.keys():
            yield value


def _environment(container: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Variables of Kubernetes (`env`: names and values) and Compose (`environment`)."""
    listed = container.get("environment") or container.get("env") or []
    if isinstance(listed, Mapping):
        yield from ((str(name), str(value)) for name, value in listed.items())
        return
    for entry in listed:
        if isinstance(entry, Mapping) and "value" in entry:
            yield str(entry.get("name")), str(entry["value"])
        elif isinstance(entry, str):
            name, _, value = entry.partition("=")
            yield name, value
