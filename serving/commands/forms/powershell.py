"""PowerShell's scripts as those of a shell.

    script_of_powershell('$Model = "org/model"\\nvllm serve $Model `\\n  -tp 2')
    # 'Model=org/model\\nvllm serve $Model \\\\\\n  -tp 2'

Read are assignments of constants, lines that a backtick continues, `$env:NAME`, and the quotes that
Windows PowerShell wants a backslash before.
"""

import re
import shlex

_MARKS = re.compile(r"(?<=[ \t])`[ \t]*\r?$|^[ \t]*\$(?:env:)?\w+[ \t]*=", re.MULTILINE)
"""What only PowerShell has: a backtick after a space at the end of a line (code in Markdown ends
without the space), or a dollar sign before a name that is set."""

_CONTINUED = re.compile(r"(?<=[ \t])`[ \t]*\r?\n")
_ASSIGNED = re.compile(
    r"^[ \t]*\$(?:env:)?(\w+)[ \t]*=[ \t]*"
    r"(?:\"([^\"\n$`]*)\"|'([^'\n]*)'|([\w.+-]+))[ \t]*;?[ \t]*$",
    re.MULTILINE,
)
_QUOTED = re.compile(r"'[^'\n]*'")


def script_of_powershell(text: str) -> str:
    """Returns PowerShell as a shell script; any other text as it is."""
    if not _MARKS.search(text):
        return text
    text = _CONTINUED.sub("\\\n", _without_comments(text.replace("\r\n", "\n")))
    text = _ASSIGNED.sub(_assignment, text)
    text = re.sub(r"\$env:(\w+)", r"$\1", text)
    return _QUOTED.sub(lambda quoted: quoted[0].replace('\\"', '"'), text)


def _without_comments(text: str) -> str:
    """Returns a text without <# comments #>; one without an end stays."""
    kept: list[str] = []
    at = 0
    while (begin := text.find("<#", at)) >= 0 and (end := text.find("#>", begin + 2)) >= 0:
        kept.append(text[at:begin])
        at = end + 2
    return "".join([*kept, text[at:]])


def _assignment(match: re.Match[str]) -> str:
    value = next(group for group in match.groups()[1:] if group is not None)
    return f"{match[1]}={shlex.quote(value)}"
