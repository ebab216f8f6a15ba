"""Finds the vLLM command in a shell script, a container's command or a manifest.

    variables, words = find_command("serve.sh", "VLLM_USE_V1=1 vllm serve org/model -tp 8")
    variables        # {"VLLM_USE_V1": "1"}
    words            # ["org/model", "-tp", "8"]

Read are `vllm serve`, the module of vLLM's API server, `docker run` of an image whose entry point
is either, scripts (shell.py), manifests and other documents (documents.py), unit files and what
`kubectl describe` shows (units.py), settings of charts and frameworks (settings.py), other programs
that start vLLM (launchers.py), and commands that Python (python_programs.py), Make (make_files.py),
Nomad and Terraform (hcl.py) build.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from outrider.common.errors import OutriderError
from outrider.common.redaction import redacted
from outrider.serving.commands.documents import (
    LONGEST_IMAGE,
    LONGEST_TEXT,
    documents_in,
    files_of_documents,
    is_image,
    words_of_documents,
)
from outrider.serving.commands.flags import ACROSS_NODES, HARMLESS
from outrider.serving.commands.hcl import words_of_hcl
from outrider.serving.commands.launchers import LAUNCHERS, of_launcher, of_nim, words_of_prefixes
from outrider.serving.commands.make_files import script_of_justfile, script_of_makefile
from outrider.serving.commands.pasted import history_of
from outrider.serving.commands.powershell import script_of_powershell
from outrider.serving.commands.python_programs import (
    calls_in_program,
    mappings_in_program,
    words_of_program,
)
from outrider.serving.commands.settings import (
    launcher_keys,
    words_of_config,
    words_of_config_file,
    words_of_log,
    words_of_settings,
)
from outrider.serving.commands.shell import END, shell_words, words_of_script, written_files
from outrider.serving.commands.units import words_of_lists, words_of_pm2, words_of_units
from outrider.serving.commands.unresolved import OF_KUSTOMIZE, UNRESOLVED, why_unresolved
from outrider.serving.commands.variable_files import unit_files, with_unit_file
from outrider.serving.commands.variables import IMAGE_USED, VARIABLE, resolved

SERVERS = ("vllm.entrypoints.openai.api_server", "vllm/entrypoints/openai/api_server.py")
"""The module of vLLM's API server, and its file."""

CLI = "vllm.entrypoints.cli.main"
"""The module of the `vllm` command."""

OF_NIM = re.compile(r"nim-serve$|nvcr\.io/nim/")
"""The server of NVIDIA NIM, or its image."""

MODELS_OF_NIM = {"NIM_MODEL_PATH", "NIM_MODEL_NAME"}

SGLANG = "SGLang"

OTHER_ENGINES = {
    SGLANG: "sglang",
    "TensorRT-LLM": r"\btrtllm-serve\b|\btensorrt[-_]llm\b",
    "Hugging Face's text-generation-inference": r"\btext-generation-(?:launcher|inference)\b",
    "LMDeploy": r"\blmdeploy\b",
    "llama.cpp": r"\bllama-server\b|\bllama[.]cpp\b|\bllama_cpp[.]server\b",
    "Ollama": r"\bollama serve\b|\bollama/ollama\b",
}
"""Other engines, and the programs, modules or images that start them."""

STARTED = re.compile(r"Initializing (?:an?|a V1) LLM engine|vLLM API server version")
"""What vLLM logs when it starts, besides its arguments."""

_OF_LOG = re.compile(r"non-default args|args: Namespace\(")
"""Lines of vLLM's log with the arguments."""

_VARIABLE_TAG = re.compile(r":\$(?:\w+|\{[^{}]*\})$")
"""The tag of an image that a script sets: vllm/vllm-openai:${VERSION}."""

HEADLESS = "--headless"
"""The flag of the further nodes of an engine, whose first node has the same command without it."""

CONTAINERS = {"docker", "podman", "nerdctl", "singularity", "apptainer"}

OPERATORS = {";", "&", "&&", "|", "||"}

BLOCK = re.compile(r"^[ \t]*```[\w-]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)
"""A block of code in Markdown."""

PROSE = (":", "`", ",")
"""Ends of a word behind "vllm serve" in a sentence: "the `vllm serve` command: ..."."""

REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<)(?P<file>.*)")

ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<added>\+?)=(?P<value>.*)", re.DOTALL)

EXPORTED = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Names of variables that a program may read. A script's own are often in lower case."""

LONGEST_VALUES = 10_000_000
"""Characters of all values that are assigned, with the variables in them replaced."""

Command = tuple[dict[str, str], list[str]]
"""Environment variables, and the words after `vllm serve`."""


def find_command(source: str, text: str) -> Command:
    """Returns the variables and words of the first vLLM command in `text`.

    Raises an `OutriderError` if there is none, or if a shell variable has no value in `text`.
    """
    variables, words, _ = find_command_and_image(source, text)
    return variables, words


def find_command_and_image(source: str, text: str) -> tuple[dict[str, str], list[str], str]:
    """As `find_command`, with the image of the command's container; empty if it is not named."""
    if len(text) > LONGEST_TEXT:
        text = "\n".join(line for line in text.splitlines() if _OF_LOG.search(line))
        if not 0 < len(text) <= LONGEST_TEXT:
            raise OutriderError(
                f"{source}: more than {LONGEST_TEXT} characters, without vLLM's log line"
                " `non-default args`; give the part that starts the server"
            )
    text = script_of_powershell(text)
    _check_one_command(source, text)
    script, files = written_files(text)
    documents = documents_in(text)
    files |= files_of_documents(documents)
    command = _first_command(_candidates(script, script, documents))
    for written in files.values():
        unit = _as_written(written, script, files)
        command = command or _first_command(_candidates(unit, unit, documents_in(unit)))
    if script != text:
        command = command or _first_command(_candidates(text, script, documents))
    if command is not None:
        variables, words = command
        words = _with_config_file(words, files)
        exported = {name: value for name, value in variables.items() if EXPORTED.fullmatch(name)}
        checked = _checked(source, text, variables, words)
        return exported, checked, variables.get(IMAGE_USED, "")
    try:
        words = shell_words(script)
    except ValueError as error:
        raise OutriderError(f"{source}: not a shell command ({error})") from None
    _check_engine(source, " ".join(words))
    raise OutriderError(f"{source}: {_why_no_command(text, documents)}")


def _why_no_command(text: str, documents: list[object]) -> str:
    """What a text without a command is, as far as that is known, and what to give instead."""
    if any(isinstance(one, Mapping) and one.get("kind") == "Kustomization" for one in documents):
        return f"a file of Kustomize; give {OF_KUSTOMIZE}"
    if settings := launcher_keys(documents):
        return (
            "settings of another program, with keys that vLLM does not have"
            f" ({', '.join(settings)}): give the command that it starts, as `ps -ef` shows it"
        )
    if STARTED.search(text):
        return (
            "vLLM's log without the line that has its arguments (`non-default args:`, or"
            " `args: Namespace(...)` before 0.9), among the first lines after a start; give this"
            " line, or the command"
        )
    return (
        "no `vllm serve`; give the command that the endpoint runs, or an existing file that"
        " contains it"
    )


def _check_one_command(source: str, text: str) -> None:
    """Raises an `OutriderError` if blocks of Markdown or a shell's history have several commands.

    All are shown, since the last one need not be the one that runs.
    """
    commands: dict[str, None] = {}
    for part in (*BLOCK.findall(text), *history_of(text)):
        for _, words in _commands_in(words_of_script(part)):
            if words and HEADLESS not in words:
                commands.setdefault(" ".join(words))
    if len(commands) > 1:
        shown = "; ".join(f"vllm serve {redacted(command)[:70]} ..." for command in commands)
        raise OutriderError(
            f"{source}: {len(commands)} different commands ({shown}); give the one that the"
            " endpoint runs"
        )


def _as_written(text: str, script: str, files: Mapping[str, str]) -> str:
    """Returns a file that a script writes with the script's values and the other files' variables.

    As in an unquoted here document, `\\$NAME` and a doubled backslash stay for the file's reader.
    """
    variables: dict[str, str] = {}
    for word in words_of_script(script):
        _assign(variables, word)
    parts = re.split(r"\\(?=[$\\`])", text)
    text = "".join(
        part if number == 0 else part[:1] + resolved(part[1:], variables)
        for number, part in enumerate([resolved(parts[0], variables), *parts[1:]])
    )
    for name in unit_files(text):
        if (content := files.get(name)) is not None:
            text = with_unit_file(text, name, content)
    return text


def _check_engine(source: str, text: str) -> None:
    """Raises an `OutriderError` that names the engine if `text` starts another than vLLM."""
    for engine, mark in OTHER_ENGINES.items():
        if re.search(mark, text):
            raise OutriderError(
                f"{source}: a command of {engine}, and Outrider's engines run vLLM; give the `vllm"
                " serve` command with the same model and parallelism, or leave it out and set"
                " target.model, serving.engine.tensor_parallel and serving.engine.max_model_len"
                f"{' (docs/how-to/sglang.md)' if engine == SGLANG else ''}"
            )


def _candidates(text: str, script: str, documents: list[object]) -> Iterator[list[str]]:
    """Yields words that may contain a command; `script` is the text without its written files."""
    for mapping in mappings_in_program(text):
        yield words_of_prefixes(json.dumps(mapping))
    yield words_of_prefixes(text)
    yield from map(words_of_script, BLOCK.findall(text))
    yield from words_of_units(text)
    yield from words_of_documents(documents)
    calls = calls_in_program(text)
    yield from words_of_settings(calls)
    yield from words_of_config(calls)
    yield from words_of_program(text)
    yield from words_of_lists(text)
    yield from words_of_log(text)
    yield words_of_hcl(text)
    yield words_of_script(script_of_makefile(text))
    yield words_of_script(script_of_justfile(text))
    yield words_of_pm2(text)
    yield words_of_script(script)


def _with_config_file(words: list[str], files: Mapping[str, str]) -> list[str]:
    """Replaces `--config FILE` by the flags of a file that the text contains.

    As in vLLM, flags of the command come later and count; a file on this machine is left to it.
    """
    by_name = {PurePosixPath(path).name: text for path, text in files.items()}
    if "--config" not in words[:-1]:
        return words
    at = words.index("--config")
    text = by_name.get(PurePosixPath(words[at + 1]).name)
    if text is None:
        return words
    rest = words[:at] + words[at + 2 :]
    model = rest[:1] if rest and not rest[0].startswith("-") else []
    return [*model, *words_of_config_file(documents_in(text), model), *rest[len(model) :]]


class _Servers(NamedTuple):
    """Where the words of a script name vLLM's server or a container's image."""

    last: int
    """Place of the last word that names the server."""
    container: int
    """Place from which `docker run` or its like has been read."""

    @classmethod
    def of(cls, words: Sequence[str]) -> "_Servers":
        """Reads the words once, so that no word looks at all others."""
        last = -1
        container = len(words)
        has_program = False
        has_run = False
        for index, word in enumerate(words):
            if _names_server(words, index) or "vllm serve" in word:
                last = index
            has_program = has_program or word.rpartition("/")[2] in CONTAINERS
            has_run = has_run or word == "run"
            if has_program and has_run:
                container = min(container, index + 1)
        return cls(last, container)


def _first_command(candidates: Iterable[list[str]]) -> Command | None:
    """The first vLLM command in texts, of an engine's first node if they have one."""
    headless: Command | None = None
    for candidate in candidates:
        for command in _commands_in(candidate):
            if HEADLESS not in command[1]:
                return command
            variables, arguments = command
            # The script's further words add to its variables.
            headless = headless or (dict(variables), arguments)
    return headless


def _commands_in(words: list[str]) -> Iterator[Command]:
    """Yields the vLLM commands among the words of a script."""
    servers = _Servers.of(words)
    variables: dict[str, str] = {}
    length = 0
    for index, word in enumerate(words):
        if VARIABLE.fullmatch(word):  # CMD="vllm serve ..."; exec $CMD
            word = resolved(word, variables)
        if " " in word and "vllm" in word:  # sh -c "vllm serve ..."
            nested = words_of_script(word)
            for nested_variables, arguments in _commands_in(nested) if word not in nested else ():
                yield variables | nested_variables, arguments
        variables |= _image_of(words, index, servers, variables)
        begin = _begin_of_arguments(words, index, servers)
        if begin is not None:
            command = _command_at(words, begin, word, variables)
            if not (command and command[0].endswith(PROSE)):
                yield variables, command
        length += _assign(variables, word)
        if length > LONGEST_VALUES:
            raise OutriderError(
                f"--from-serve-command: the variables stand for more than {LONGEST_VALUES}"
                " characters; write the command with its values"
            )
    if MODELS_OF_NIM & variables.keys():
        yield variables, of_nim(variables, [])


def _command_at(
    words: list[str], begin: int, server: str, variables: Mapping[str, str]
) -> list[str]:
    """The words of the command whose first argument is at `begin`, as `vllm serve` has them."""
    command = _until_end(words, begin)
    if server in LAUNCHERS:
        return of_launcher(server, command)
    return of_nim(variables, command) if OF_NIM.match(server) else command


def _image_of(
    words: list[str], index: int, servers: _Servers, variables: Mapping[str, str]
) -> dict[str, str]:
    """The image of a `docker run`, with its tag, if it is at `index`."""
    word = resolved(words[index], variables) if index >= servers.container else ""
    is_tagged = index >= servers.container and re.search("[:@]", word) is not None
    return {IMAGE_USED: word} if is_tagged and is_image(word) else {}


def _assign(variables: dict[str, str], word: str) -> int:
    """Sets the variable that a word assigns, if any; returns the length of its value."""
    assigned = ASSIGNED.fullmatch(word.removeprefix("--env="))
    if assigned is None:
        return 0
    name = assigned["name"]
    value = resolved(assigned["value"].removesuffix(END), variables)
    variables[name] = variables.get(name, "") + value if assigned["added"] else value
    return len(variables[name])


def _begin_of_arguments(words: list[str], index: int, servers: _Servers) -> int | None:
    """The place of the first argument, if the server's name is at `index`."""
    if words[index] in LAUNCHERS and index > 0 and words[index - 1] == "-m":
        return index + 1
    if _names_server(words, index):
        is_module = words[index].endswith(SERVERS) or words[index] == "nim-serve"
        return index + 1 if is_module else index + 2
    return index + 1 if _is_image_of_server(words, index, servers) else None


def _names_server(words: Sequence[str], index: int) -> bool:
    word = words[index]
    if word.endswith(SERVERS) or word == "nim-serve":
        return True
    is_cli = word == CLI or word == "vllm" or word.endswith("/vllm")
    return is_cli and index + 1 < len(words) and words[index + 1] == "serve"


def _is_image_of_server(words: list[str], index: int, servers: _Servers) -> bool:
    """Whether `index` is the image of a `docker run` that names no other command."""
    if index < servers.container or index < servers.last:
        return False
    image = _VARIABLE_TAG.sub("", words[index].removeprefix("docker://"))
    is_bare = not re.search("[/:]", image)
    is_value = is_bare and words[index - 1].startswith("-")  # such as --name vllm
    is_of_nim = OF_NIM.match(image) is not None and len(image) < LONGEST_IMAGE
    return not is_value and (is_image(image) or is_of_nim)


def _until_end(words: list[str], begin: int) -> list[str]:
    """The words of the command whose first argument is at `begin`, without redirections."""
    command_words: list[str] = []
    skips_file = False
    for index in range(begin, len(words)):
        word = words[index]
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


def _flags_of(value: str) -> list[str]:
    """The words of a variable that holds several flags."""
    return [word for word in words_of_script(value) if word != END]


def _expanded(words: list[str], variables: Mapping[str, str]) -> Iterator[str]:
    """The words with their variables replaced; a variable that holds flags becomes several."""
    for word in words:
        if word in ("$@", "$*"):
            continue
        value = resolved(word, variables)
        if VARIABLE.fullmatch(word) and value.startswith(("-", " -")):
            yield from _flags_of(value)
        elif not value and word:  # as in a shell, without quotation marks
            continue
        else:
            yield value


def _checked(source: str, text: str, variables: Mapping[str, str], words: list[str]) -> list[str]:
    """Replaces variables that the text sets; refuses others, but in flags of the HTTP server."""
    checked: list[str] = []
    open_words: list[str] = []
    for word in _expanded(words, variables):
        if not UNRESOLVED.search(word):
            checked.append(word)
            continue
        flag, equals, _ = word.partition("=")
        if not equals and checked:
            flag = checked[-1]
        if not flag.startswith("--") or flag[2:].replace("-", "_") not in HARMLESS | ACROSS_NODES:
            open_words.append(word)
        elif not equals:
            checked.pop()
    if open_words:
        raise OutriderError(f"{source}: {why_unresolved(text, open_words)}")
    return checked
