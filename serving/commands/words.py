"""The vLLM commands among a script's words.

    next(commands_in([";", "A=1", ";", "vllm", "serve", "org/model", "-tp", "8"]))
    # ({"A": "1"}, ["org/model", "-tp", "8"])

A command is `vllm serve`, the module of vLLM's API server, another program that starts it
(forms/launchers.py), or `docker run` of an image whose entry point is one of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.commands.forms.documents import LONGEST_IMAGE, is_image
from outrider.serving.commands.forms.launchers import LAUNCHERS, translate_launcher, translate_nim
from outrider.serving.commands.forms.shell import END, words_of_script
from outrider.serving.commands.forms.variables import IMAGE_USED, VARIABLE, expand_variables

SERVERS = ("vllm.entrypoints.openai.api_server", "vllm/entrypoints/openai/api_server.py")
"""The module of vLLM's API server, and its file."""

CLI = "vllm.entrypoints.cli.main"
"""The module of the `vllm` command."""

OF_NIM = re.compile(r"nim-serve$|nvcr\.io/nim/")
"""The server of NVIDIA NIM, or its image."""

MODELS_OF_NIM = {"NIM_MODEL_PATH", "NIM_MODEL_NAME"}

_VARIABLE_TAG = re.compile(r":\$(?:\w+|\{[^{}]*\})$")
"""The tag of an image that a script sets: vllm/vllm-openai:${VERSION}."""

CONTAINERS = {"docker", "podman", "nerdctl", "singularity", "apptainer"}

OF_RUNNING = {"exec", "stop", "kill", "rm", "logs", "wait", "start", "restart", "inspect"}
"""Commands about a container, which name it and not an image."""

PRINTING = {"echo", "printf", "print", "log", "info", "warn", "die", "pgrep", "pkill", "grep"}
"""Programs whose arguments may say `vllm serve` and start nothing."""

BEFORE_PROGRAMS = {"then", "do", "else", "{", "(", "!"}
"""Words of a shell before a command."""

OPERATORS = {";", "&", "&&", "|", "||"}

PROSE = (":", "`", ",", "?")
"""Ends of a word behind "vllm serve" in a sentence: "the `vllm serve` command: ..."."""

REDIRECTION = re.compile(r"(?:\d|&)?(?:>>?|<)(?P<file>.*)")

ASSIGNED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<added>\+?)=(?P<value>.*)", re.DOTALL)

IN_CONTAINER = re.compile(r"^(?:APPTAINER|SINGULARITY)ENV_")
"""What Apptainer takes off a variable's name in the container."""

LONGEST_VALUES = 10_000_000
"""Characters of all values that are assigned, with the variables in them replaced."""

Command = tuple[dict[str, str], list[str]]
"""Environment variables, and the words after `vllm serve`."""


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


def commands_in(words: list[str]) -> Iterator[Command]:
    """Yields the vLLM commands among the words of a script."""
    servers = _Servers.of(words)
    variables: dict[str, str] = {}
    length = 0
    has_command = False
    program = ""
    for index, word in enumerate(words):
        program = _program(words, index, program)
        if VARIABLE.fullmatch(word):  # CMD="vllm serve ..."; exec $CMD
            word = expand_variables(word, variables)
        if " " in word and "vllm" in word and program not in PRINTING:  # sh -c "vllm serve ..."
            nested = words_of_script(word)
            for nested_variables, arguments in commands_in(nested) if word not in nested else ():
                has_command = True
                yield variables | nested_variables, arguments
        variables |= _image_of(words, index, servers, variables)
        begin = _begin_of_arguments(words, index, servers, variables)
        if begin is not None:
            command = _command_at(words, begin, word, variables)
            if not (command and command[0].endswith(PROSE)):
                has_command = True
                yield variables, command
        length += assign(variables, word)
        if length > LONGEST_VALUES:
            raise OutriderError(
                f"--from-serve-command: the variables stand for more than {LONGEST_VALUES}"
                " characters; write the command with its values"
            )
    if not has_command and MODELS_OF_NIM & variables.keys():
        yield variables, translate_nim(variables, [])


def _program(words: Sequence[str], index: int, program: str) -> str:
    """The program that a command runs, given the one of the word before; empty at its beginning."""
    word = words[index]
    if word in OPERATORS or word in BEFORE_PROGRAMS:
        return ""
    return program or ("" if ASSIGNED.fullmatch(word) else word)


def _command_at(
    words: list[str], begin: int, server: str, variables: Mapping[str, str]
) -> list[str]:
    """The words of the command whose first argument is at `begin`, as `vllm serve` has them."""
    command = _until_end(words, begin)
    if server in LAUNCHERS:
        return translate_launcher(server, command)
    return translate_nim(variables, command) if OF_NIM.match(server) else command


def _image_of(
    words: list[str], index: int, servers: _Servers, variables: Mapping[str, str]
) -> dict[str, str]:
    """The image of a `docker run`, with its tag, if it is at `index`."""
    word = expand_variables(words[index], variables) if index >= servers.container else ""
    is_tagged = index >= servers.container and re.search("[:@]", word) is not None
    return {IMAGE_USED: word} if is_tagged and is_image(word) else {}


def assign(variables: dict[str, str], word: str) -> int:
    """Sets the variable that a word assigns, if any; returns the length of its value."""
    assigned = ASSIGNED.fullmatch(word.removeprefix("--env="))
    if assigned is None:
        return 0
    name = IN_CONTAINER.sub("", assigned["name"])
    value = expand_variables(assigned["value"].removesuffix(END), variables)
    variables[name] = variables.get(name, "") + value if assigned["added"] else value
    return len(variables[name])


def _begin_of_arguments(
    words: list[str], index: int, servers: _Servers, variables: Mapping[str, str]
) -> int | None:
    """The place of the first argument, if the server's name is at `index`."""
    if words[index] in LAUNCHERS and index > 0 and words[index - 1] == "-m":
        return index + 1
    if _names_server(words, index):
        is_module = words[index].endswith(SERVERS) or words[index] == "nim-serve"
        return index + 1 if is_module else index + 2
    return index + 1 if _is_image_of_server(words, index, servers, variables) else None


def _names_server(words: Sequence[str], index: int) -> bool:
    word = words[index]
    if word.endswith(SERVERS) or word == "nim-serve":
        return True
    is_cli = word == CLI or word == "vllm" or word.endswith("/vllm")
    return is_cli and index + 1 < len(words) and words[index + 1] == "serve"


def _is_image_of_server(
    words: list[str], index: int, servers: _Servers, variables: Mapping[str, str]
) -> bool:
    """Whether `index` is the image of a `docker run` that names no other command."""
    if index < servers.container or index < servers.last:
        return False
    if not OF_RUNNING.isdisjoint(words[max(index - 3, 0) : index]):  # docker exec vllm
        return False
    is_variable = VARIABLE.fullmatch(words[index]) is not None  # docker run "$IMAGE" --model
    word = expand_variables(words[index], variables) if is_variable else words[index]
    image = _VARIABLE_TAG.sub("", word.removeprefix("docker://"))
    is_bare = not re.search("[/:]", image)
    # An image after a flag has a folder or a tag; a bare word is the flag's value (--name vllm).
    is_value = is_bare and words[index - 1].startswith("-")
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
