"""PowerShell's scripts as those of a shell.

    script_of_powershell('$Model = "org/model"\\nvllm serve $Model `\\n  -tp 2')
    # 'Model=org/model\\nvllm serve $Model \\\\\\n  -tp 2'

Read are assignments of constants and arrays, defaults of `param()`, arrays as arguments (`@Name`),
lines that a backtick continues, `$env:NAME`, and the quotes that Windows PowerShell wants a
backslash before.
"""

import re
import shlex
from collections.abc import Collection

_MARKS = re.compile(r"(?<=[ \t])`[ \t]*\r?$|^[ \t]*\$(?:env:)?\w+[ \t]*=", re.MULTILINE)
"""What only PowerShell has: a backtick after a space at the end of a line (code in Markdown ends
without the space), or a dollar sign before a name that is set."""

_CONTINUED = re.compile(r"(?<=[ \t])`[ \t]*\r?\n")
_ASSIGNED = re.compile(
    r"^[ \t]*(?:\[[\w.]+(?:\[\])?\][ \t]*)*\$(?:env:)?(\w+)[ \t]*=[ \t]*"
    r"(?:\"([^\"\n$`]*)\"|'([^'\n]*)'|([\w.+-]+))[ \t]*[;,]?[ \t]*$",
    re.MULTILINE,
)
"""$Name = 'value', also with a type as in `param()`."""

_ITEM = r"(?:'[^'\n]*+'|\"[^\"\n]*+\"|\$(?:env:)?\w++|[\w.+-]++)"
_ITEMS = rf"{_ITEM}(?:[ \t]*,[ \t]*{_ITEM})*+"
_ARRAY = re.compile(
    r"^[ \t]*(?:\[[\w.]+\[\]\][ \t]*)?\$(\w+)[ \t]*(\+?)=[ \t]*"
    rf"(?:@\((?P<items>(?:{_ITEM}|[,\s]|\#[^\n]*+)*+)\)|(?P<added>(?<=\+=)[ \t]*{_ITEMS}))"
    r"[ \t]*;?[ \t]*(?:\#[^\n]*)?$",
    re.MULTILINE,
)
"""$Name = @('--model', $Model), and what is added to it."""

_SET = re.compile(r"\$(\w+)[ \t]*\+?=(?!=)")
_OFF = re.compile(r"\[switch\][ \t]*\$\w+[ \t]*=[ \t]*\$false", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_TEXT = re.compile(r"'[^'\n]*+'|\"[^\"\n]*+\"")

_SPLATTED = re.compile(r"(?<=\s)@(\w+)\b(?!\()")
"""@Name, the items of an array as words."""

_SWITCH = re.compile(r"\[switch\][ \t]*\$(\w+)", re.IGNORECASE)
_BRANCH = re.compile(
    r"^(?P<indent>[ \t]*)if[ \t]*\((?P<not>-not[ \t]+|!)?\$(?P<name>\w+)\)[ \t]*\{[ \t]*\n"
    r"(?P<body>(?:(?!(?P=indent)\})[^\n]*\n){0,200})(?P=indent)\}[ \t]*$(?!\n[ \t]*else)",
    re.MULTILINE | re.IGNORECASE,
)
"""A branch that a switch of `param()` decides, which is off if it is not given."""

_QUOTED = re.compile(r"'[^'\n]*'")


def script_of_powershell(text: str) -> str:
    """Returns PowerShell as a shell script; any other text as it is."""
    if not _MARKS.search(text):
        return text
    text = _CONTINUED.sub("\\\n", _without_comments(text.replace("\r\n", "\n")))
    switches = {name.lower() for name in _SWITCH.findall(text)} - _set_in(text)
    text = _BRANCH.sub(lambda branch: _decided(branch, switches), text)
    arrays = {array[1] for array in _ARRAY.finditer(text) if array["items"] is not None}
    arrays -= _changed_in_blocks(text)
    text = _ARRAY.sub(lambda array: _as_array(array, arrays), text)
    # What is set in another way stays open, and the command is refused by its name.
    arrays = {name for name in arrays if name.lower() not in _set_in(text)}
    text = _SPLATTED.sub(
        lambda name: f'"${{{name[1]}[@]}}"' if name[1] in arrays else name[0], text
    )
    text = _ASSIGNED.sub(_assignment, text)
    text = re.sub(r"\$env:(\w+)", r"$\1", text)
    return _QUOTED.sub(lambda quoted: quoted[0].replace('\\"', '"'), text)


def _decided(branch: re.Match[str], switches: Collection[str]) -> str:
    """Returns the lines of a branch that runs without switches; others as they are."""
    if branch["name"].lower() not in switches:
        return branch[0]
    return branch["body"] if branch["not"] else ""


def _set_in(text: str) -> set[str]:
    """Returns the names of the variables that a script sets, in lower case.

    A switch that is off by default is not set.
    """
    names = _SET.findall(_OFF.sub("", _COMMENT.sub("", text)))
    return {name.lower() for name in names}


def _changed_in_blocks(text: str) -> set[str]:
    """Returns the names of the variables that are set between braces, so perhaps never."""
    names: set[str] = set()
    depth = 0
    for line in text.splitlines():
        code = _COMMENT.sub("", _TEXT.sub("''", line))
        if depth > 0 or "{" in code:
            names.update(_SET.findall(code))
        depth = max(depth + code.count("{") - code.count("}"), 0)
    return names


def _as_array(array: re.Match[str], arrays: Collection[str]) -> str:
    """Returns an array as Bash writes it; of other variables, what is added stays."""
    if array[1] not in arrays:
        return array[0]
    items = re.findall(rf"\#[^\n]*|{_ITEM}", array["items"] or array["added"] or "")
    words = [item for item in items if not item.startswith("#")]
    return f"{array[1]}{array[2]}=({' '.join(words)})"


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
