"""Commands in pm2's ecosystem files, which are JavaScript, JSON or YAML.

    words_of_pm2("module.exports = {apps: [{script: 'vllm', args: 'serve org/model -tp 2'}]}")
    # yields ["vllm", "serve", "org/model", "-tp", "2"]

An app is a script and its arguments, as a list or as text that pm2 splits like a shell, and the
variables of `env`; those of `env_NAME` count only with `--env NAME` (pm2's docs, "Ecosystem File").
Of JavaScript, only constants after `script`, `args`, `interpreter` and in `env` are read, and
nothing is run: computed arguments stand as `COMPUTED`, with which the command is refused.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from outrider.serving.commands.forms.documents import documents_in, mappings_in

_TOKEN = re.compile(
    r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?"
    r"|`(?:[^`\\]|\\.)*+`?|'(?:[^'\\\n]|\\.)*+'?|\"(?:[^\"\\\n]|\\.)*+\"?",
    re.DOTALL,
)
"""A comment or a string. One without an end goes to the end of the text or line, so that each
character is read once."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}

MOST_APPS = 50
LONGEST_APP = 5_000
"""Apps that are read, and characters of one, without its strings, before and after `script`."""

_STRING = "\0(\\d+)\0"
"""A string's place in the text without strings: its number."""

_KEY = re.compile(r"\0(\d+)\0(?=\s{0,20}:)")
_SCRIPT = re.compile(rf"\bscript\s{{0,20}}:\s{{0,20}}{_STRING}")
_AFTER = r"(?=\s{0,200}(?:[,}\n]|\Z))"
_ITEM = rf"\s{{0,200}}(?:{_STRING}|-?\d[\d.]{{0,20}})\s{{0,200}}"
_ARGUMENTS = re.compile(
    rf"\bargs\s{{0,20}}:\s{{0,20}}(?:{_STRING}{_AFTER}|\[((?:{_ITEM}(?:,|(?=\])))*+)\s*\]{_AFTER})"
)
"""A text, or a list of texts and numbers; anything else is computed."""

COMPUTED = "${args}"
"""What stands for arguments that are computed, so that the command is refused with their name."""

_INTERPRETER = re.compile(rf"\binterpreter\s{{0,20}}:\s{{0,20}}{_STRING}")
_ENVIRONMENT = re.compile(r"\benv\s{0,20}:\s{0,20}\{")
_VARIABLE = re.compile(rf"\b(\w+)\s{{0,20}}:\s{{0,20}}(?:{_STRING}|([\w.]+))")

_YAML = re.compile(r"^apps:", re.MULTILINE)


def words_of_pm2(text: str) -> Iterator[list[str]]:
    """Yields the words of each app's command."""
    if "script" not in text or "args" not in text:
        return
    if _YAML.search(text):
        for app in mappings_in(documents_in(text)):
            if isinstance(app.get("script"), str):
                yield _words_of_yaml(app)
        return
    strings: list[str] = []

    def numbered(token: re.Match[str]) -> str:
        if token[0][0] == "/":
            return " "
        strings.append(_ESCAPED.sub(_unescaped, token[0][1:].removesuffix(token[0][0])))
        return f"\0{len(strings) - 1}\0"

    masked = _TOKEN.sub(numbered, text.replace("\0", " "))
    masked = _KEY.sub(lambda key: strings[int(key[1])], masked)
    for script in itertools.islice(_SCRIPT.finditer(masked), MOST_APPS):
        yield _words_of_app(_object_around(masked, script.start()), strings)


def _unescaped(match: re.Match[str]) -> str:
    return _CONTROLS.get(match[1], match[1])


def _object_around(masked: str, at: int) -> str:
    """Returns the innermost object around a place, without its braces."""
    begin = at
    first = max(at - LONGEST_APP, 0)
    depth = 0
    while begin > first and depth <= 0:
        begin -= 1
        depth += {"{": 1, "}": -1}.get(masked[begin], 0)
    end = at
    last = min(at + LONGEST_APP, len(masked))
    depth = 0
    while end < last and depth >= 0:
        depth += {"{": 1, "}": -1}.get(masked[end], 0)
        end += 1
    first_kept = begin + (masked[begin] == "{")
    return masked[first_kept : end - (masked[end - 1] == "}")]


def _words_of_app(app: str, strings: list[str]) -> list[str]:
    variables = _ENVIRONMENT.search(app)
    section = _object_around(app, variables.end()) if variables else ""
    named = []
    for variable in _VARIABLE.finditer(section):
        value = strings[int(variable[2])] if variable[2] else variable[3]
        named.append(f"{variable[1]}={value}")
    interpreter = _INTERPRETER.search(app)
    program = strings[int(interpreter[1])] if interpreter else "none"
    script = _SCRIPT.search(app)
    arguments = _ARGUMENTS.search(app)
    words = [COMPUTED]
    if arguments and arguments[1]:
        words = _split(strings[int(arguments[1])])
    elif arguments:
        items = filter(None, map(str.strip, arguments[2].split(",")))
        words = [strings[int(item.strip("\0"))] if item[0] == "\0" else item for item in items]
    elif script and strings[int(script[1])].endswith("vllm"):
        words = ["serve", COMPUTED]
    started = [] if program == "none" else [program]
    return [*named, *started, strings[int(script[1])] if script else "", *words]


def _words_of_yaml(app: Mapping[str, Any]) -> list[str]:
    variables = app.get("env")
    named = variables.items() if isinstance(variables, Mapping) else ()
    arguments = app.get("args")
    listed = arguments if isinstance(arguments, list) else []
    words = _split(arguments) if isinstance(arguments, str) else [str(word) for word in listed]
    program = app.get("interpreter")
    started = [program] if isinstance(program, str) and program != "none" else []
    return [*(f"{name}={value}" for name, value in named), *started, app["script"], *words]


def _split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
