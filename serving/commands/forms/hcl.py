"""Values and commands in HCL, the language of Nomad's and Terraform's files.

    with_values('variable "tp" { default = 2 }\nargs = ["-tp", var.tp]')    # args = ["-tp", "2"]

Nothing is evaluated but references to variables with a default, or with a value in terraform.tfvars
or *.auto.tfvars next to the file, to locals that are constants, and JSON of objects of constants.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping

from outrider.serving.commands.forms.variable_files import Folder, read_near

_VARIABLE = re.compile(
    r"variable\s+\"(\w+)\"\s*\{[^{}]*?\bdefault\s*=\s*(?:\"((?:[^\"\\\n]|\\.)*)\"|([\w.+-]+))"
)
_DECLARED = re.compile(r"\bvariable\s+\"")
_LOCALS = re.compile(r"^[ \t]*locals\s*\{((?:[^{}]|\{[^{}]*\})*)\}", re.MULTILINE)
_OBJECT = re.compile(r"^[ \t]*(\w+)\s*=\s*\{([^{}]*)\}", re.MULTILINE)
_MEMBER = re.compile(
    r"(?<!\w)\"?(\w+)\"?\s*[=:]\s*(\"(?:[^\"\\\n$]|\\.)*\"|[\w.+-]+)[ \t]*(?=[,\n]|$)"
)
_ENCODED = re.compile(r"\bjsonencode\(\s*(?:local\.(\w+)|\{([^{}]*)\})\s*\)")
_CONVERTED = re.compile(r"\b(?:tostring|tonumber|trimspace)\(\s*([^()\s]+)\s*\)")
"""Functions that leave a constant as it is."""

_TEMPLATE = re.compile(
    r"^[^\n=]*=\s*(?:base64encode\()?templatefile\(\s*\"(?:\$\{path\.\w+\}/)?([^\"$]+)\"\s*,"
    r"\s*\{([^{}]*)\}\s*\)\)?",
    re.MULTILINE,
)
"""templatefile("FILE", {NAME = CONSTANT}), for a machine's user data."""

MOST_FILES = 50
"""Files of a module that are read."""

_LOCAL = re.compile(
    r"^[ \t]*(\w+)\s*=\s*(?:\"((?:[^\"\\\n$]|\\.)*)\"|([\d.]+))[ \t]*$", re.MULTILINE
)
_REFERENCE = re.compile(r"\$\{(var|local)\.(\w+)\}|(?<=[\[,=(])(\s*)\b(var|local)\.(\w+)\b")

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


def with_values(text: str, folder: Folder | None) -> str:
    """Replaces variables of HCL by their values or defaults, and locals by their values."""
    values: dict[tuple[str, str], str] = {}
    declared = "\n".join([*_declarations(text, folder), text])
    for name, quoted, bare in _VARIABLE.findall(declared):
        values["var", name] = quoted or bare
    for name, quoted, bare in _values_in_files(declared, folder):
        values["var", name] = quoted or bare
    for block in _LOCALS.findall(text):
        for name, quoted, bare in _LOCAL.findall(block):
            values["local", name] = quoted or bare
    text = _with_encoded(text)
    if not values:
        return text

    def value(match: re.Match[str]) -> str:
        if match[1]:
            return values.get((match[1], match[2]), match[0])
        known = values.get((match[4], match[5]))
        return match[0] if known is None else f'{match[3]}"{known}"'

    text = _CONVERTED.sub(r"\1", _REFERENCE.sub(value, text))
    return _TEMPLATE.sub(lambda match: _rendered(match, folder), text)


def _declarations(text: str, folder: Folder | None) -> list[str]:
    """Returns the other files of a module, which may declare the variables that a text uses."""
    if "var." not in text or folder is None or isinstance(folder, Mapping):
        return []
    names = sorted(path.name for path in folder.glob("*.tf"))
    return [read_near(name, folder) or "" for name in names[:MOST_FILES]]


def _rendered(match: re.Match[str], folder: Folder | None) -> str:
    """Returns a file of `templatefile` with the constants that it is given; else the call."""
    template = None if folder is None else read_near(match[1], folder)
    if template is None or "%{" in template:  # a directive, which is not evaluated
        return match[0]
    values = {name: constant.strip('"') for name, constant in _MEMBER.findall(match[2])}
    filled = re.sub(
        r"(?<!\$)\$\{(\w+)\}", lambda variable: values.get(variable[1], variable[0]), template
    )
    return "\n" + filled.replace("$${", "${") + "\n"


def _with_encoded(text: str) -> str:
    """Replaces `jsonencode` of an object of constants, or of a local that is one, by its text."""
    locals_ = dict(pair for block in _LOCALS.findall(text) for pair in _OBJECT.findall(block))

    def encoded(match: re.Match[str]) -> str:
        body = locals_.get(match[1]) if match[1] else match[2]
        members = _MEMBER.findall(body) if body else []
        if body is None or len(members) != body.count("=") + body.count(":"):
            return match[0]
        try:
            value = {name: json.loads(constant) for name, constant in members}
        except ValueError:
            return match[0]
        return json.dumps(json.dumps(value))

    return _ENCODED.sub(encoded, text)


def _automatic(folder: Folder) -> list[str]:
    """Returns the names of the files that Terraform reads without being told."""
    names = folder if isinstance(folder, Mapping) else [path.name for path in folder.glob("*")]
    return sorted(name for name in names if name.endswith(".auto.tfvars"))


def _values_in_files(text: str, folder: Folder | None) -> Iterator[tuple[str, str, str]]:
    """Yields name and value of what Terraform's files of variables set, the last one counts."""
    if folder is None or not _DECLARED.search(text):
        return
    names = ["terraform.tfvars", *_automatic(folder)]
    for name in names:
        yield from _LOCAL.findall(read_near(name, folder) or "")


def words_of_hcl(text: str) -> list[str]:
    """Returns the command of a container in HCL; empty for any other text."""
    image = _IMAGE.search(text)
    if image is None:
        return _served(text)
    variables = [*_ASSIGNED.findall(text), *_OF_TASK.findall(text)]
    words = [f"{name}={value}" for name, value in variables]
    # The place of the command is known without the tag, which may be a variable.
    words += ["docker", "run", re.sub(r":?\$\{[^{}]*\}", "", image[1])]
    for listed in _LIST.findall(text[image.end() :]):
        if listed.startswith(("[", '"')):
            words += _words_of(listed)
        else:  # an expression, such as local.args
            words.append("${" + listed.strip() + "}")
    return words


def _served(text: str) -> list[str]:
    """Returns the first list that is a command of vLLM, such as in a chart's values."""
    lists = (_words_of(listed) for listed in _LIST.findall(text) if listed.startswith("["))
    return next((words for words in lists if words[:2] == ["vllm", "serve"]), [])


def _words_of(listed: str) -> list[str]:
    """Returns the words of a list or a string; none of what is not read."""
    without_comments = re.sub(r"(?m)^\s*(?:#|//).*$", "", listed)
    of_strings = _ELEMENT_OF_HCL.sub(_as_string, without_comments)
    try:
        value = json.loads(re.sub(r",(\s*\])", r"\1", of_strings))
    except ValueError:
        return []
    return shlex.split(value) if isinstance(value, str) else list(map(str, value))


def _as_string(element: re.Match[str]) -> str:
    """Returns an element of a list as it is or, for an expression, as a reference to it."""
    is_literal = re.fullmatch(r"\".*|-?[\d.]+|true|false|null", element[0], re.DOTALL)
    return element[0] if is_literal else json.dumps("${" + element[0] + "}")
