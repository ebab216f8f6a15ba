"""Commands of build files: a Makefile or a justfile as a shell script.

script_of_makefile("MODEL := org/model\nserve:\n\tvllm serve $(MODEL)\n")
# "MODEL=org/model\n\nvllm serve $(MODEL)"
"""

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

_RULE = re.compile(r"^[\w./%$()-]+(?:[ \t]+[\w./%-]+)*[ \t]*:(?![=:]).*\n\t", re.MULTILINE)
"""A rule of a Makefile: a target, and a line that begins with a tab."""

_OF_MAKE = re.compile(
    r"^ *(?:(?:export|override)[ \t]+)*(\w+)[ \t]*(\?|\+|:{1,3})?=[ \t]*(.*?)[ \t]*$"
)
_RECIPE = re.compile(r"\t[ \t]*[@+-]{0,3}(.*)$")


_CONDITION = re.compile(
    r"[ ]*(?:(?P<end>endif)|(?:(?P<else>else)[ \t]*)?"
    r"(?:(?P<kind>ifn?eq|ifn?def)[ \t]*(?P<test>.*?))?)[ \t]*(?:#.*)?"
)
"""`ifeq (A,B)`, `ifdef NAME`, `else ifeq (A,B)`, `else`, `endif`."""

_INCLUDE = re.compile(r"^include[ \t]+\S", re.MULTILINE)
"""A file that must be there, and was not found."""

_SIDES = re.compile(r"\(([^,]*),([^,]*)\)|\"([^\"]*)\"[ \t]*\"([^\"]*)\"|'([^']*)'[ \t]*'([^']*)'")
_NAME = re.compile(r"\$[({](\w+)[)}]")

DEEPEST = 8
"""Variables in one another that are expanded."""

LONGEST_SIDE = 10_000
"""Characters of a text that is compared."""


class _Branch(NamedTuple):
    """A condition of a Makefile that has not ended."""

    is_read: bool
    was_taken: bool


_JUST_ENV = re.compile(
    r"^(\w+)[ \t]*:=[ \t]*env(?:_var_or_default|_var)?\([ \t]*([\"'])(\w+)\2"
    r"(?:[ \t]*,[ \t]*([\"'])(.*?)\4)?[ \t]*\)[ \t]*$",
    re.MULTILINE,
)
"""`name := env("NAME", "default")`, of the environment or of .env."""

_DOTENV = re.compile(r"^set[ \t]+dotenv-load\b(?![ \t]*:=[ \t]*false)", re.MULTILINE)

_JUST = re.compile(r"^(\w+)[ \t]*:=[ \t]*([\"'])(.*?)\2[ \t]*$", re.MULTILINE)
_JUST_RECIPE = re.compile(r"^[\w-]+(?:[ \t][^\n]*?)?:(?!=)[^\n]*$", re.MULTILINE)
"""The line of a recipe's name, parameters and dependencies."""

_JUST_PARAMETER = re.compile(r"(?:(\w+)=([\"'])(.*?)\2|\*(\w+))")
"""A parameter with a default, or *NAME, which may be empty."""


def is_makefile(text: str) -> bool:
    """Whether a text has a Makefile's rule."""
    return _RULE.search(text) is not None


def script_of_makefile(text: str) -> str:
    """Returns a Makefile as a script: variables, then the recipes; empty for any other text."""
    if not is_makefile(text):
        return ""
    lines: list[str] = []
    variables: dict[str, str] = {}
    branches: list[_Branch] = []
    for line in re.sub(r"\\\n[ \t]*", " ", text).splitlines():
        if _is_of_condition(line, text, variables, branches):
            continue
        if not all(branch.is_read for branch in branches):
            continue
        assigned = _OF_MAKE.match(line)
        recipe = _RECIPE.match(line)
        if recipe:
            lines.append(recipe[1].replace("$$", "$"))
        elif assigned and assigned[2] == "+":
            variables[assigned[1]] = f"{variables.get(assigned[1], '')} {assigned[3]}".strip()
            lines.append(f"{assigned[1]}+={shlex.quote(' ' + assigned[3])}")
        elif assigned and not (assigned[2] == "?" and assigned[1] in variables):
            is_lazy = not (assigned[2] or "").startswith(":")
            value = assigned[3] if is_lazy else _expanded(assigned[3], text, variables)
            variables[assigned[1]] = assigned[3] if value is None else value
            lines.append(f"{assigned[1]}={shlex.quote(assigned[3])}")
    return "\n".join(lines)


def _is_of_condition(
    line: str, text: str, variables: Mapping[str, str], branches: list["_Branch"]
) -> bool:
    """Reads a line that begins, changes or ends a condition, and keeps the open ones."""
    match = _CONDITION.fullmatch(line)
    if match is None or not any(match.group("end", "else", "kind")):
        return False
    if match["end"] and branches:
        branches.pop()
        return True
    test = None
    if match["kind"]:
        test = _decided(match["kind"], match["test"] or "", text, variables)
    if not match["else"]:
        branches.append(_Branch(is_read=test is not False, was_taken=bool(test)))
    elif branches:
        branch = branches[-1]
        is_last = not match["kind"]
        is_read = not branch.was_taken and (is_last or test is not False)
        branches[-1] = _Branch(is_read=is_read, was_taken=branch.was_taken or bool(test))
    return True


def _decided(kind: str, test: str, text: str, variables: Mapping[str, str]) -> bool | None:
    """Whether `ifeq (A,B)` or `ifdef NAME` holds; None if a value is not known."""
    if kind.endswith("def"):
        value = _value_of(test.strip(), text, variables)
        return None if value is None else bool(value) == (kind == "ifdef")
    sides = _SIDES.fullmatch(test.strip())
    if sides is None:
        return None
    first, second = (
        _expanded(side.strip(), text, variables) for side in sides.groups() if side is not None
    )
    if first is None or second is None:
        return None
    return (first == second) == (kind == "ifeq")


def _value_of(name: str, text: str, variables: Mapping[str, str]) -> str | None:
    """Returns a variable's value: empty if nothing sets it, None if it is set in another way."""
    if name in variables:
        return variables[name]
    is_set = re.search(rf"\b(?:define|export)[ \t]+{name}\b|\b{name}[ \t]*!=", text)
    return None if is_set or _INCLUDE.search(text) else ""


def _expanded(side: str, text: str, variables: Mapping[str, str]) -> str | None:
    """Returns a text with the values of its variables; None if one is not known."""
    for _ in range(DEEPEST):
        pieces: list[str] = []
        end = 0
        for name in _NAME.finditer(side):
            value = _value_of(name[1], text, variables)
            if value is None or sum(map(len, pieces)) + len(value) > LONGEST_SIDE:
                return None
            pieces += [side[end : name.start()], value]
            end = name.end()
        if not pieces:
            return None if "$" in side else side
        side = "".join([*pieces, side[end:]])
    return None


def script_of_justfile(text: str) -> str:
    """Returns a justfile as a script, in whose recipes `{{name}}` is a variable."""
    text = _JUST_ENV.sub(_of_environment, text)
    if not _JUST.search(text):
        return ""
    recipes = _JUST_RECIPE.sub(_defaults_of_recipe, text)
    assigned = _JUST.sub(lambda match: f"{match[1]}={shlex.quote(match[3])}", recipes)
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", r"${\1}", assigned)


def with_dotenv(text: str, variables: Mapping[str, str]) -> str:
    """Returns a justfile with the variables of .env, if it has `set dotenv-load`."""
    if not variables or not _DOTENV.search(text):
        return text

    def value(match: re.Match[str]) -> str:
        of_file = variables.get(match[3])
        return match[0] if of_file is None else f'{match[1]} := "{of_file}"'

    settings = "".join(f'{name} := "{setting}"\n' for name, setting in variables.items())
    return settings + _JUST_ENV.sub(value, text)


def _of_environment(match: re.Match[str]) -> str:
    """Returns a setting with the default of its variable, unless there is none."""
    if match[5] is None:
        return match[0]
    return f"{match[1]} := {match[4]}{match[5]}{match[4]}"


def _defaults_of_recipe(recipe: re.Match[str]) -> str:
    """Returns a recipe's parameters that have a default, as assignments."""
    parameters = _JUST_PARAMETER.findall(recipe[0])
    return "\n".join(f"{name or rest}={shlex.quote(value)}" for name, _, value, rest in parameters)
