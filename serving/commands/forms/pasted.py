"""Texts as people copy them: from chats, documents, mails, notebooks, terminals, a shell's history.

strip_paste_marks("vllm serve m –tensor-parallel-size 4")    # "vllm serve m --tensor-parallel-size
4"
"""

import ast
import contextlib
import json
import quopri
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from outrider.serving.commands.forms.python_values import follow_assignments, value_of
from outrider.serving.commands.forms.variables import IMAGE_USED, VARIABLE

LOGGED = ("log", "message", "MESSAGE", "msg", "textPayload")
"""Keys of a line in a record: Docker; Fluent Bit, Vector; journald; zap, pino; Google Cloud."""

_DASHES = re.compile(r"(?<=\s)(?:[-–—]{2}|[–—])(?=[A-Za-z])")
"""What chats and word processors make of two hyphens before a flag's name, or of one of them."""

_TYPESET = str.maketrans({"\u2010": "-", "\u2011": "-", "\u2212": "-", "\u00ad": None})
"""A hyphen, one that does not break and a minus sign, which word processors write for a hyphen, and
the one that shows where a word may break."""

_LIGATURES = re.compile("[\ufb00-\ufb06]")
"""Letters that a PDF's font joins, as in `conﬁg`."""

_OBJECT = re.compile(r"[‘’']?\{(?:[^{}]|\{[^{}]{0,1000}\}){1,2000}\}[‘’']?")
"""An object of JSON, with objects inside it."""

_NUMBERED = re.compile(r"^[ \t]*\d+\*?[ \t]{1,2}(?=\S)", re.MULTILINE)
"""What `history` prints before a command."""

_OF_ZSH = re.compile(r"\d+\*  ")
_ZSH = re.compile(r"^: \d{9,}:\d+;", re.MULTILINE)
"""What zsh's file has before a command: when it began, and how long it took."""

_QUOTED_LINE = re.compile(r"^(?:>[ \t]?)+", re.MULTILINE)
"""What a mail program writes before the lines of the mail that is answered."""

_MAIL = re.compile(r"^Content-Transfer-Encoding:[ \t]*quoted-printable", re.MULTILINE | re.I)
_SOFT_BREAK = re.compile(r"=$", re.MULTILINE)
"""The end of a line that goes on in quoted-printable text, in which `=` is `=3D`."""

_NOT_ENCODED = re.compile(r"=(?![0-9A-F]{2}|\r?$)", re.MULTILINE)
"""A `=` that quoted-printable text does not have."""

_HELM = re.compile(r"\A(?:[^\n]*\n){0,3}?(?:USER-SUPPLIED|COMPUTED) VALUES:[ \t]*\n")
"""What `helm get values` prints before the values, and the command before it."""

_BRACKET = "command: ["
"""What is before a container's command in the log of GPUStack's worker: words between brackets,
without quotes."""

_AFTER_BRACKET = re.compile(r"\], \w{1,40}: ")
_IMAGE = re.compile(r"\bimage: ([^\s,]{1,500}), ")

_MAGIC = re.compile(r"^[ \t]*(?:%env|%set_env)[ \t]+(\w+)[ =][ \t]*(.*)$", re.MULTILINE)
_CELL_MAGIC = re.compile(r"^%%\w+[^\n]*\n")
_COMMAND = re.compile(r"^([ \t]*)!((?:[^\\\n]|\\[\s\S])*)", re.MULTILINE)
"""A shell's command in a notebook, with the lines that continue it."""

_MAGIC_LINE = re.compile(r"^([ \t]*)%[^\n]*", re.MULTILINE)

_OF_PYTHON = re.compile(r"(?<!\{)\{([^{}\"':\n]{1,80})\}(?!\})|\$([A-Za-z_]\w*)\b")
"""An expression or a name in a notebook's command: IPython replaces it if Python knows it."""

_STARTS_BY_SHELL = re.compile(r"vllm serve|vllm\.entrypoints|docker run|sglang")

LEAST_NUMBERED = 3
"""Numbered lines that a text has at least if it is a shell's history."""


def strip_paste_marks(text: str) -> str:
    """Returns a text with the marks that a shell reads, without what is around each line."""
    text = _of_notebook(_lines_of_records(text))
    text = _of_mail(_HELM.sub("", text))
    text = _LIGATURES.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    text = text.translate(_TYPESET)
    if "–" in text or "—" in text:
        text = _DASHES.sub("--", text)
    if "“" in text or "”" in text:
        text = _OBJECT.sub(_with_plain_quotes, text)
    return _of_zsh(text) if _ZSH.search(text) else text


def bracketed_in_log(text: str) -> Iterator[str]:
    """Yields the commands that a log shows between brackets, with their image."""
    for line in text.splitlines():
        before, bracket, rest = line.partition(_BRACKET)
        if not bracket or " serve " not in rest:
            continue
        end = _AFTER_BRACKET.search(rest)
        words = rest[: end.start()] if end else rest.rstrip().removesuffix("]")
        image = _IMAGE.search(before)
        yield (f"{IMAGE_USED}={image[1]}\n" if image else "") + words


def history_of(text: str) -> list[str]:
    """Returns the commands in the output of `history`; none for any other text."""
    numbered = [line for line in text.splitlines() if _NUMBERED.match(line)]
    is_certain = all(map(_OF_ZSH.match, numbered))
    if not is_certain and len(numbered) < LEAST_NUMBERED:
        return []
    if not is_certain and 2 * len(numbered) < len(text.splitlines()):
        return []
    return [_NUMBERED.sub("", line) for line in numbered]


def _of_zsh(text: str) -> str:
    """Returns zsh's history as `history` prints it, with a mark behind each number.

    zsh writes a backslash before each newline of a command, so that a line that goes on has two.
    """
    joined = text.replace("\\\\\n", " ").replace("\\\n", "\n")
    commands = (command.rstrip() for command in _ZSH.split(joined)[1:])
    return "".join(f"{at}*  {command}\n" for at, command in enumerate(commands, 1))


def _of_mail(text: str) -> str:
    """Returns a mail's text decoded, and without the marks of quoted lines around a command."""
    if headers := _MAIL.search(text):
        text = _body_of(text, headers)
    elif "=3D" in text and _SOFT_BREAK.search(text) and not _NOT_ENCODED.search(text):
        text = quopri.decodestring(text.encode("utf-8")).decode("utf-8", "replace")
    return _QUOTED_LINE.sub("", text) if _has_quoted_command(text) else text


def _body_of(text: str, headers: re.Match[str]) -> str:
    """Returns the text below these headers decoded; the whole text if it names no vLLM there."""
    _, _, body = text[headers.start() :].replace("\r\n", "\n").partition("\n\n")
    content = quopri.decodestring(body.encode("utf-8")).decode("utf-8", "replace")
    return content if "vllm" in content else text


def _has_quoted_command(text: str) -> bool:
    """Whether a mail program has marked a command's lines; a shell's `> FILE` follows a command."""
    before = ""
    for line in text.splitlines():
        if line.startswith(">") and "vllm" in line and not before.endswith("\\"):
            return True
        before = "" if line.startswith(">") else line.rstrip()
    return False


def _of_notebook(text: str) -> str:
    """Returns the code of a Jupyter notebook as a script; any other text as it is.

    `!command` runs in a shell, with the values of Python's names for `{name}` and `$name`; `%env`
    sets a variable, and a cell that begins with `%%bash` is a script. Cells of Python alone stay as
    they are.
    """
    if '"cells"' not in text or '"nbformat"' not in text:
        return text
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        return text
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    listed = cells if isinstance(cells, list) else []
    known: dict[str, Any] = {}
    codes = [_code_of(cell) for cell in listed if isinstance(cell, dict)]
    commands = " ".join(match[2] for code in codes for match in _COMMAND.finditer(code))
    is_of_shell = _STARTS_BY_SHELL.search(commands) or any(map(_CELL_MAGIC.match, codes))
    scripts = [_script_of(code, known) if is_of_shell else _program_of(code) for code in codes]
    return "\n".join(filter(None, scripts))


def _code_of(cell: dict[str, Any]) -> str:
    """Returns a cell's code; empty for a cell of text."""
    if cell.get("cell_type") != "code":
        return ""
    source = cell.get("source")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _program_of(code: str) -> str:
    """Returns a cell's code as Python's, with the variables that magics set."""
    code = _MAGIC.sub(r'os.environ["\1"] = "\2"', _COMMAND.sub(r"\1pass", code))
    return _MAGIC_LINE.sub(r"\1pass", code)


def _script_of(code: str, known: dict[str, Any]) -> str:
    """Returns a cell's code as a script; the values of its Python names are added to `known`."""
    code = _CELL_MAGIC.sub("", code)
    python = ""
    script = ""
    end = 0
    for command in _COMMAND.finditer(code):
        between = code[end : command.start()]
        python += between
        if _OF_PYTHON.search(command[2]):
            _add_names(python, known)  # those before the command
        script += between + _with_values(command[2], known)
        python += f"{command[1]}pass"
        end = command.end()
    _add_names(python + code[end:], known)
    return _MAGIC.sub(r"export \1=\2", script + code[end:])


def _add_names(python: str, known: dict[str, Any]) -> None:
    """Adds the values of a program's names, without those inside its functions."""
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        statements = ast.parse(_MAGIC_LINE.sub(r"\1pass", python)).body
        own_scope = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        follow_assignments([one for one in statements if not isinstance(one, own_scope)], known)


def _with_values(command: str, known: dict[str, Any]) -> str:
    """Returns a notebook's shell command with the values of Python's names, as IPython does.

    It replaces `{name}`, and `$name` outside single quotes.
    """

    def value(match: re.Match[str]) -> str:
        named = known.get(match[2]) if match[2] else _value_of(match[1], known)
        is_known = isinstance(named, str | int | float) and VARIABLE.search(str(named)) is None
        is_quoted = match[2] and command.count("'", 0, match.start()) % 2
        return str(named) if is_known and not is_quoted else match[0]

    expanded = _OF_PYTHON.sub(value, command)
    return expanded.replace("{{", "{").replace("}}", "}") if "{{" in expanded else expanded


def _value_of(expression: str, known: dict[str, Any]) -> Any:
    """Returns the value of a Python expression; None if it is none, or has unknown names."""
    try:
        return value_of(ast.parse(expression.strip(), mode="eval").body, known)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _with_plain_quotes(match: re.Match[str]) -> str:
    if "“" not in match[0] and "”" not in match[0]:
        return match[0]
    plain = re.sub("[“”]", '"', match[0])
    return re.sub("[‘’]", "'", plain)


def _lines_of_records(text: str) -> str:
    """Returns the lines in a log of one JSON object a line; any other text as it is."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("{"):
        return text
    unwrapped: list[str] = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return text
        inner = [record[key] for key in LOGGED if key in record] if isinstance(record, dict) else []
        if not inner or not isinstance(inner[0], str):
            return text
        unwrapped.append(inner[0].rstrip("\n"))
    return "\n".join(unwrapped)
