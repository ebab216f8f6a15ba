"""Words of commands in unit files and Dockerfiles, and in lists.

    words_of_units("[Service]\\nEnvironment=A=1\\nExecStart=/usr/bin/vllm serve org/model")
    # [["A=1", "/usr/bin/vllm", "serve", "org/model"]]

Units are those of systemd, of Podman's Quadlet and of supervisor. What `kubectl describe` shows of
a container is read in the same way.
"""

import json
import re
import shlex
from collections.abc import Iterator

from outrider.serving.commands.forms.shell import with_closed_words

_SECTION = re.compile(r"^\[(Service|Container|program:[^\]\n]+)\][ \t]*$", re.MULTILINE)
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_INDENTED = re.compile(r"\r?\n[ \t]+(?=[^\s#;])")
"""The beginning of a line that goes on with a value, as in supervisor's files (configparser)."""

_SETTING = re.compile(r"^([A-Za-z_]+)[ \t]*=[ \t]*(.*)$", re.MULTILINE)
_PREFIXES = "@-:+!"
"""What systemd allows before the command of ExecStart."""

_COMMENT_LINE = re.compile(r"^[ \t]*[#;].*(?:\r?\n|\Z)", re.MULTILINE)
"""A comment, which a command of several lines may have inside."""

_SPECIFIER = re.compile(r"(?<!%)%([A-Za-z])")

_DESCRIBED = re.compile(
    r"^ {4}(Image|Command|Args|Environment):(.*)\n((?: {6,}\S.*(?:\n|\Z))*)", re.MULTILINE
)
_COLON = re.compile(r":\s+")

_FROM = re.compile(r"^FROM[ \t]+(?:--\S+[ \t]+)*(\S+)", re.MULTILINE)
_BUILT = re.compile(
    r"\bdocker[ \t]+(?:buildx[ \t]+)?build\b[^\n]{0,5000}?[ \t](?:-t|-{2}tag)[ =](\S+)"
)
_RUN = re.compile(r"\bdocker[ \t]+run\b([^\n]*)")
_INSTRUCTION = re.compile(r"^(ARG|ENV|ENTRYPOINT|CMD)[ \t]+(.*)$", re.MULTILINE)


def words_of_units(text: str) -> list[list[str]]:
    """Returns the variables and the command of each unit or Dockerfile in `text`."""
    units = [*_of_sections(text)] if _SECTION.search(text) else []
    if _FROM.search(text):
        units.append(_of_dockerfile(text))
    units += _described(text)
    if "\0" in text:  # /proc/PID/cmdline
        units.append(text.strip("\0\n").split("\0"))
    return units


def _described(text: str) -> Iterator[list[str]]:
    """Yields the words of each container that `kubectl describe` shows, one word a line."""
    containers: list[dict[str, list[str]]] = []
    for name, value, lines in _DESCRIBED.findall(text):
        if name == "Image":
            containers.append({"Image": ["docker", "run", value.strip()]})
        elif containers:
            containers[-1][name] = [line.strip() for line in lines.splitlines()]
    for container in containers:
        variables = [_COLON.sub("=", line, count=1) for line in container.get("Environment", ())]
        command = container.get("Command", container["Image"])
        yield [*variables, *command, *container.get("Args", ())]


def _of_sections(text: str) -> Iterator[list[str]]:
    text = _CONTINUED.sub(" ", _COMMENT_LINE.sub("", text))
    if "[program:" in text:
        text = _INDENTED.sub(" ", text)
    begins = [match.start() for match in re.finditer(r"^\[", text, re.MULTILINE)]
    # `systemctl cat` shows a unit and what overrides it, with sections of the same name.
    settings: dict[str, list[tuple[str, str]]] = {}
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        section = _SECTION.match(text[begin:end])
        if section:
            settings.setdefault(section[1], []).extend(_SETTING.findall(text[begin:end]))
    yield from map(_of_section, settings.values())


def _of_section(settings: list[tuple[str, str]]) -> list[str]:
    variables: list[str] = []
    image: list[str] = []
    command: list[str] = []
    for key, value in settings:
        if key == "Environment":
            variables += _split(value)
        elif key == "environment":  # supervisor's A="1",B="2"
            variables += _split(re.sub(r",(?=\w+=)", " ", value))
        elif key == "Image":
            image = ["docker", "run", value.strip()]
        elif key in ("ExecStart", "command", "Exec") and value.strip():
            command = _split(value.lstrip(_PREFIXES) if key == "ExecStart" else value)
            if key != "command":
                # A specifier of systemd, such as %i, is left open in the form of supervisor's.
                command = [_SPECIFIER.sub(r"%(\1)s", word).replace("%%", "%") for word in command]
    return [*variables, *image, *command]


def _of_dockerfile(text: str) -> list[str]:
    text = _CONTINUED.sub(" ", _COMMENT_LINE.sub("", text))
    variables: list[str] = []
    commands: dict[str, list[str]] = {}
    for name, value in _INSTRUCTION.findall(text):
        if name == "ARG":
            variables += [pair for pair in _split(value) if "=" in pair]  # its default
        elif name == "ENV":
            pairs = _split(value)
            variables += pairs if "=" in pairs[0] else [f"{pairs[0]}={' '.join(pairs[1:])}"]
        else:
            commands[name] = _exec_form(value)
    # The last stage's image has the entry point, unless the file replaces it.
    image = [] if "ENTRYPOINT" in commands else ["docker", "run", _FROM.findall(text)[-1]]
    arguments = _arguments_of_built(text) or commands.get("CMD", [])
    return [*variables, *image, *commands.get("ENTRYPOINT", []), *arguments]


def _arguments_of_built(text: str) -> list[str]:
    """Returns the arguments with which `docker run` starts an image that the text builds.

    They replace the Dockerfile's CMD as a whole.
    """
    tag = _BUILT.search(text)
    run = _RUN.search(text) if tag else None
    words = _split(run[1]) if run else []
    return words[words.index(tag[1]) + 1 :] if tag and tag[1] in words else []


def _exec_form(value: str) -> list[str]:
    try:
        words = json.loads(value)
    except ValueError:
        return _split(value)
    return [str(word) for word in words] if isinstance(words, list) else _split(value)


def words_of_lists(text: str) -> list[list[str]]:
    """Returns the lists of arguments in JSON, or in a program such as Python's."""
    text = re.sub(r",(\s*\])", r"\1", text)  # a list in a program may end with a comma
    begins = (match.start() for match in re.finditer(r"\[\s*\"", text))
    near = (begin for begin in begins if '"serve"' in text[begin : begin + 1000])
    lists = (_list_at(text, begin) for begin in near)
    return [words for words in lists if "serve" in words[:4]]


def _list_at(text: str, begin: int) -> list[str]:
    """Returns the list of strings that begins at a place; empty for anything else."""
    try:
        words, _ = json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError):
        return []
    return words if all(isinstance(word, str) for word in words) else []


def _split(value: str) -> list[str]:
    value = with_closed_words(value)
    try:
        return shlex.split(value, comments="\n" in value)
    except ValueError:
        return value.split()
