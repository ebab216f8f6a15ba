"""Windows' batch files as scripts of a shell.

    script_of_batch("@echo off\nset TP=2\nvllm serve org/model ^\n  -tp %TP%")
    # "TP=2\nvllm serve org/model   -tp ${TP}"

Read are `set`, `%NAME%`, `!NAME!` and lines that ^ continues. Conditions are not evaluated: an `if`
is left out, but for `if not defined NAME set NAME=default` and one whose command starts the server.
"""

import re
import shlex

_BATCH = re.compile(r"^[ \t]*@?(?:echo[ \t]+off|setlocal)\b", re.IGNORECASE | re.MULTILINE)
"""What only a batch file has."""

_ASSIGNMENT = re.compile(r"^[ \t]*@?set[ \t]+\"?[A-Za-z_]\w*=", re.IGNORECASE | re.MULTILINE)
_USE = re.compile(r"%[A-Za-z_]\w*%|\^[ \t]*\r?$", re.MULTILINE)
"""What a batch file has besides an assignment; a shell's text may have one of the two."""

_OF_SHELL = re.compile(r"#!|^[ \t]*```|\\[ \t]*\r?$", re.MULTILINE)
"""A shell's first line or continued lines, or code in Markdown."""

_CONTINUED = re.compile(r"\^[ \t]*\r?\n")

_SET = re.compile(r"@?set[ \t]+(?:\"([A-Za-z_]\w*)=([^\"]*)\"|([A-Za-z_]\w*)=(.*))", re.IGNORECASE)
_DEFAULT = re.compile(
    r"@?if[ \t]+not[ \t]+defined[ \t]+\w+[ \t]+\(?(set\b[^()]*)\)?", re.IGNORECASE
)
_IF = re.compile(
    r"@?if[ \t]+(?:/i[ \t]+)?(?:not[ \t]+)?"
    r"(?:(?:exist|defined|errorlevel)[ \t]+(?:\"[^\"]*\"|\S+)|\S+[ \t]*==[ \t]*\S+)[ \t]+(.*)",
    re.IGNORECASE,
)
CONDITION = re.compile(r"^[ \t]*@?if[ \t]", re.IGNORECASE | re.MULTILINE)

_LEFT_OUT = re.compile(
    r"@?(?:rem\b|::|:\w|echo\b|setlocal\b|endlocal\b|if\b|title\b|cd\b|pause\b|goto\b|exit\b)",
    re.IGNORECASE,
)
"""Commands that start no server."""

_VARIABLE = re.compile(r"%([A-Za-z_]\w*)%|!([A-Za-z_]\w*)!|%~?(\d)")


def is_batch(text: str) -> bool:
    """Whether a text is a batch file."""
    if _OF_SHELL.search(text):
        return False
    has_both = _ASSIGNMENT.search(text) is not None and _USE.search(text) is not None
    return _BATCH.search(text) is not None or has_both


def script_of_batch(text: str) -> str:
    """Returns a batch file as a shell script; any other text as it is."""
    if not is_batch(text):
        return text
    lines = _CONTINUED.sub(" ", text).splitlines()
    return "\n".join(line for line in map(_line, lines) if line)


def _line(written: str) -> str:
    """A line as a shell has it; empty if it is left out."""
    line = written.strip()
    if default := _DEFAULT.fullmatch(line):
        return _assignment(default[1].strip(), is_default=True)
    if _SET.fullmatch(line):
        return _assignment(line)
    if line.lower().startswith(("rem", "::", "@rem")):
        return ""
    condition = _IF.fullmatch(line)
    if condition is not None and "vllm" in condition[1]:
        line = condition[1]
    commands = [command.strip() for command in re.split(r"&&?(?!\d)", line)]
    kept = [command for command in commands if command and not _LEFT_OUT.match(command)]
    return _with_references(_with_slashes("; ".join(kept)).removeprefix("@"))


def _assignment(line: str, is_default: bool = False) -> str:
    """A `set` as a shell's assignment."""
    assigned = _SET.fullmatch(line)
    if assigned is None:
        return ""
    name = assigned[1] or assigned[3]
    value = _with_slashes((assigned[2] if assigned[1] else assigned[4]).strip())
    if is_default:
        return _with_references(f"{name}=${{{name}:-{value}}}")
    has_references = _VARIABLE.search(value) is not None
    return _with_references(f"{name}=" + (f'"{value}"' if has_references else shlex.quote(value)))


def _with_references(text: str) -> str:
    """A text with a shell's references to variables and arguments."""
    return _VARIABLE.sub(lambda name: "${" + (name[1] or name[2] or name[3]) + "}", text)


def _with_slashes(text: str) -> str:
    """A text with the slashes of paths, but for those before quotation marks."""
    return re.sub(r"\\(?!\")", "/", text)
