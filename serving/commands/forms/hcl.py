"""Values and commands in HCL, the language of Nomad's and Terraform's files.

    with_values('variable "tp" { default = 2 }\nargs = ["-tp", var.tp]')    # args = ["-tp", "2"]

Nothing is evaluated but references to variables with a default, or with a value in terraform.tfvars
or *.auto.tfvars next to the file, and to locals that are constants.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from outrider.serving.commands.forms.variable_files import read_near

_VARIABLE = re.compile(
    r"variable\s+\"(\w+)\"\s*\{[^{}]*?\bdefault\s*=\s*(?:\"((?:[^\"\\\n]|\\.)*)\"|([\w.+-]+))"
)
_LOCALS = re.compile(r"^[ \t]*locals\s*\{([^{}]*)\}", re.MULTILINE)
_LOCAL = re.compile(
    r"^[ \t]*(\w+)\s*=\s*(?:\"((?:[^\"\\\n$]|\\.)*)\"|([\d.]+))[ \t]*$", re.MULTILINE
)
_REFERENCE = re.compile(r"\$\{(var|local)\.(\w+)\}|(?<=[\[,=])(\s*)\b(var|local)\.(\w+)\b")

_IMAGE = re.compile(r"^[ \t]*image[ \t]*=[ \t]*\"([^\"\n]+)\"", re.MULTILINE)
_LIST = re.compile(
    r"^[ \t]*(?:command|args|entrypoint|entryPoint)[ \t]*=[ \t]*"
    r"(\[[^\]]*\]|\"[^\"\n]*\"|[a-z_][^\n]*)",
    re.MULTILINE,
)
_ELEMENT_OF_HCL = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[^\s,\[\]\"]+", re.DOTALL)
"""An element of a list: a string, a number, or an expression such as var.model."""

_OF_TASK = re.compile(
    r"\bname[ \t]*=[ \t]*\"([A-Z_][A-Z0-9_]*)\"[\s,]*value[ \t]*=[ \t]*\"([^\"\n]*)\""
)
_ASSIGNED = re.compile(r"^[ \t]*\"?([A-Z_][A-Z0-9_]*)\"?[ \t]*=[ \t]*\"([^\"\n]*)\"", re.MULTILINE)


def with_values(text: str, folder: Path | None) -> str:
    """Replaces variables of HCL by their values or defaults, and locals by their values."""
    values: dict[tuple[str, str], str] = {}
    for name, quoted, bare in _VARIABLE.findall(text):
        values["var", name] = quoted or bare
    for name, quoted, bare in _values_in_files(text, folder):
        values["var", name] = quoted or bare
    for block in _LOCALS.findall(text):
        for name, quoted, bare in _LOCAL.findall(block):
            values["local", name] = quoted or bare
    if not values:
        return text

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return values.get((match[1], match[2]), match[0])
        known = values.get((match[4], match[5]))
        return match[0] if known is None else f'{match[3]}"{known}"'

    return _REFERENCE.sub(value, text)


def _values_in_files(text: str, folder: Path | None) -> Iterator[tuple[str, str, str]]:
    """Yields name and value of what Terraform's files of variables set, the last one counts."""
    if folder is None or not _VARIABLE.search(text):
        return
    names = ["terraform.tfvars", *sorted(path.name for path in folder.glob("*.auto.tfvars"))]
    for name in names:
        yield from _LOCAL.findall(read_near(name, folder) or "")


def words_of_hcl(text: str) -> list[str]:
    """Returns the command of a container in HCL; empty for any other text."""
    image = _IMAGE.search(text)
    if image is None:
        return []
    variables = [*_ASSIGNED.findall(text), *_OF_TASK.findall(text)]
    words = [f"{name}={value}" for name, value in variables]
    # The place of the command is known without the tag, which may be a variable.
    words += ["docker", "run", re.sub(r":?\$\{[^{}]*\}", "", image[1])]
    for listed in _LIST.findall(text[image.end() :]):
        if not listed.startswith(("[", '"')):  # an expression, such as local.args
            words.append("${" + listed.strip() + "}")
            continue
        without_comments = re.sub(r"(?m)^\s*(?:#|//).*$", "", listed)
        of_strings = _ELEMENT_OF_HCL.sub(_as_string, without_comments)
        try:
            value = json.loads(re.sub(r",(\s*\])", r"\1", of_strings))
        except ValueError:
            continue
        words += shlex.split(value) if isinstance(value, str) else map(str, value)
    return words


def _as_string(element: re.Match[str]) -> str:
    """Returns an element of a list as it is or, for an expression, as a reference to it."""
    is_literal = re.fullmatch(r"\".*|-?[\d.]+|true|false|null", element[0], re.DOTALL)
    return element[0] if is_literal else json.dumps("${" + element[0] + "}")
