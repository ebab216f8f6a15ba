"""Windows' batch files as scripts of a shell.

    script_of_batch("@echo off\nset TP=2\nvllm serve org/model ^\n  -tp %TP%")
    # "TP=2\nvllm serve org/model   -tp ${TP}"

Read are `set`, `%NAME%` and lines that ^ continues. `if` lines ask for arguments or files, of which
a batch file knows none, and are left out, but for `if not defined NAME set NAME=default`.
"""

import re
import shlex

_BATCH = re.compile(
    r"^[ \t]*@?(?:echo[ \t]+off|setlocal|set[ \t]+\"?[A-Za-z_]\w*=[^\n]*)[ \t]*\r?$",
    re.IGNORECASE | re.MULTILINE,
)
"""What begins a batch file; Bash's `set` takes no assignments."""

_CONTINUED = re.compile(r"\^[ \t]*\r?\n")

_SET = re.compile(r"@?set[ \t]+(?:\"([A-Za-z_]\w*)=([^\"]*)\"|([A-Za-z_]\w*)=(.*))", re.IGNORECASE)
_DEFAULT = re.compile(
    r"@?if[ \t]+not[ \t]+defined[ \t]+\w+[ \t]+\(?(set\b[^()]*)\)?", re.IGNORECASE
)
_LEFT_OUT = re.compile(
    r"@?(?:rem\b|::|:\w|echo\b|setlocal\b|endlocal\b|if\b|title\b|cd\b|pause\b|goto\b|exit\b)",
    re.IGNORECASE,
)
"""Lines without a command of the server."""

_VARIABLE = re.compile(r"%([A-Za-z_]\w*)%")


def script_of_batch(text: str) -> str:
    """Returns a batch file as a shell script; any other text as it is."""
    if not _BATCH.search(text) or text.startswith("#!"):
        return text
    lines = _CONTINUED.sub(" ", text).splitlines()
    return "\n".join(line for line in map(_line, lines) if line)


def _line(written: str) -> str:
    """A line as a shell has it; empty if it is left out."""
    line = written.strip()
    default = _DEFAULT.fullmatch(line)
    assigned = _SET.fullmatch(default[1].strip() if default else line)
    if assigned is not None:
        name = assigned[1] or assigned[3]
        value = (assigned[2] if assigned[1] else assigned[4]).strip()
        quoted = shlex.quote(_with_slashes(value)) if "%" not in value else f'"{value}"'
        return _VARIABLE.sub(r"${\1}", f"{name}={quoted}")
    if _LEFT_OUT.match(line):
        return ""
    return _VARIABLE.sub(r"${\1}", _with_slashes(line.removeprefix("@")))


def _with_slashes(text: str) -> str:
    """A text with the slashes of paths, but for those before quotation marks."""
    return re.sub(r"\\(?!\")", "/", text)
