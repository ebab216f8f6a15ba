"""Commands of build files: a Makefile or a justfile as a shell script.

script_of_makefile("MODEL := org/model\nserve:\n\tvllm serve $(MODEL)\n")
# "MODEL=org/model\n\nvllm serve $(MODEL)"
"""

import re
import shlex

_RULE = re.compile(r"^[\w./%$()-]+(?:[ \t]+[\w./%-]+)*[ \t]*:(?![=:]).*\n\t", re.MULTILINE)
"""A rule of a Makefile: a target, and a line that begins with a tab."""

_OF_MAKE = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*(\?|\+|:{1,3})?=[ \t]*(.*?)[ \t]*$")
_RECIPE = re.compile(r"\t[ \t]*[@+-]{0,3}(.*)$")

_JUST = re.compile(r"^(\w+)[ \t]*:=[ \t]*([\"'])(.*?)\2[ \t]*$", re.MULTILINE)
_JUST_RECIPE = re.compile(r"^[\w-]+(?:[ \t][^\n]*?)?:(?!=)[^\n]*$", re.MULTILINE)
"""The line of a recipe's name, parameters and dependencies."""

_JUST_PARAMETER = re.compile(r"(?:(\w+)=([\"'])(.*?)\2|\*(\w+))")
"""A parameter with a default, or *NAME, which may be empty."""


def script_of_makefile(text: str) -> str:
    """Returns a Makefile as a script: variables, then the recipes; empty for any other text."""
    if not _RULE.search(text):
        return ""
    lines: list[str] = []
    for line in re.sub(r"\\\n[ \t]*", " ", text).splitlines():
        assigned = _OF_MAKE.match(line)
        recipe = _RECIPE.match(line)
        if recipe:
            lines.append(recipe[1].replace("$$", "$"))
        elif assigned and assigned[2] == "+":
            lines.append(f"{assigned[1]}+={shlex.quote(' ' + assigned[3])}")
        elif assigned:
            lines.append(f"{assigned[1]}={shlex.quote(assigned[3])}")
    return "\n".join(lines)


def script_of_justfile(text: str) -> str:
    """Returns a justfile as a script, in whose recipes `{{name}}` is a variable."""
    if not _JUST.search(text):
        return ""
    recipes = _JUST_RECIPE.sub(_defaults_of_recipe, text)
    assigned = _JUST.sub(lambda match: f"{match[1]}={shlex.quote(match[3])}", recipes)
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", r"${\1}", assigned)


def _defaults_of_recipe(recipe: re.Match[str]) -> str:
    """Returns a recipe's parameters that have a default, as assignments."""
    parameters = _JUST_PARAMETER.findall(recipe[0])
    return "\n".join(f"{name or rest}={shlex.quote(value)}" for name, _, value, rest in parameters)
