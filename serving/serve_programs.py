"""Commands that programs and other tools' files build: Python, Make, HCL (Nomad, Terraform).

    words_of_program('cmd = ["vllm", "serve", MODEL]\\ncmd += ["--seed", str(3)]')
    # [["vllm", "serve", "${MODEL}", "--seed", "3"]]

Nothing is executed: of Python, constants, lists and texts of them are followed through assignments.
What is not known stays a variable, `${MODEL}`, which the caller refuses by name.
"""

import ast
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from outrider.serving.serve_shell import END, words_of_script
from outrider.serving.serve_variables import integer_of

ENGINES = frozenset({"LLM", "EngineArgs", "AsyncEngineArgs", "LLMConfig"})
"""Classes whose arguments are an engine's: vLLM's, and Ray Serve LLM's."""

STARTS = frozenset({
    "run", "Popen", "call", "check_call", "check_output", "system", "execvp", "execv",
    "create_subprocess_exec", "create_subprocess_shell",
})  # fmt: skip
"""Functions that start a program."""

_SERVER = re.compile(r"\bvllm serve\b|vllm\.entrypoints")

_RULE = re.compile(r"^[\w./%$()-]+(?:[ \t]+[\w./%-]+)*[ \t]*:(?![=:]).*\n\t", re.MULTILINE)
"""A rule of a Makefile: a target, and a line that begins with a tab."""

_OF_MAKE = re.compile(r"^(?:export[ \t]+)?(\w+)[ \t]*(\?|\+|:{1,3})?=[ \t]*(.*?)[ \t]*$")
_RECIPE = re.compile(r"\t[ \t]*[@+-]{0,3}(.*)$")

_NAME = re.compile(r"(?:^|/)vllm(?:$|\.entrypoints)|^dynamo\.vllm$")
"""The server's name as a word."""

_IMAGE = re.compile(r"^[ \t]*image[ \t]*=[ \t]*\"([^\"\n]+)\"", re.MULTILINE)
_LIST = re.compile(
    r"^[ \t]*(?:command|args|entrypoint|entryPoint)[ \t]*=[ \t]*(\[[^\]]*\]|\"[^\"\n]*\")",
    re.MULTILINE,
)
_ELEMENT_OF_HCL = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[^\s,\[\]\"]+", re.DOTALL)
"""An element of a list: a string, a number, or an expression such as var.model."""

_JUST = re.compile(r"^(\w+)[ \t]*:=[ \t]*([\"'])(.*?)\2[ \t]*$", re.MULTILINE)
_JUST_RECIPE = re.compile(r"^[\w-]+(?:[ \t][^\n]*?)?:(?!=)[^\n]*$", re.MULTILINE)
"""The line of a recipe's name, parameters and dependencies."""

_JUST_PARAMETER = re.compile(r"(?:(\w+)=([\"'])(.*?)\2|\*(\w+))")
"""A parameter with a default, or *NAME, which may be empty."""

_PM2_SCRIPT = re.compile(r"\bscript[\"']?\s*:\s*[\"']([^\"'\s]*vllm)[\"']")
_PM2_ARGUMENTS = re.compile(r"\bargs[\"']?\s*:\s*[\"'](serve [^\"']*)[\"']")
_PM2_VARIABLE = re.compile(r"[\"']?\b(VLLM_[A-Z0-9_]+)[\"']?\s*:\s*[\"']([^\"']*)[\"']")

_OF_TASK = re.compile(
    r"\bname[ \t]*=[ \t]*\"([A-Z_][A-Z0-9_]*)\"[\s,]*value[ \t]*=[ \t]*\"([^\"\n]*)\""
)
_OF_HCL = re.compile(r"^[ \t]*\"?([A-Z_][A-Z0-9_]*)\"?[ \t]*=[ \t]*\"([^\"\n]*)\"", re.MULTILINE)


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
    found = _JUST_PARAMETER.findall(recipe[0])
    return "\n".join(f"{name or rest}={shlex.quote(value)}" for name, _, value, rest in found)


def words_of_pm2(text: str) -> list[str]:
    """Returns the command of pm2's ecosystem file: a script, and its arguments as text."""
    script = _PM2_SCRIPT.search(text)
    arguments = _PM2_ARGUMENTS.search(text)
    if script is None or arguments is None:
        return []
    variables = [f"{name}={value}" for name, value in _PM2_VARIABLE.findall(text)]
    return [*variables, script[1], *arguments[1].split()]


def words_of_hcl(text: str) -> list[str]:
    """Returns the command of a container in HCL; empty for any other text."""
    image = _IMAGE.search(text)
    if image is None:
        return []
    variables = [*_OF_HCL.findall(text), *_OF_TASK.findall(text)]
    words = [f"{name}={value}" for name, value in variables]
    # The place of the command is known without the tag, which may be a variable.
    words += ["docker", "run", re.sub(r":?\$\{[^{}]*\}", "", image[1])]
    for listed in _LIST.findall(text[image.end() :]):
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


def _parsed(text: str) -> ast.Module | None:
    """Returns a Python program; None for other text."""
    is_program = re.search(r"^[ \t]*(?:import|from|def|\w+ *\+?=)", text, re.MULTILINE)
    if not is_program or not re.search("vllm|LLMConfig", text):
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def calls_in_program(text: str) -> list[dict[str, Any]]:
    """Returns the arguments of each engine that a Python program makes, under their names."""
    tree = _parsed(text)
    if tree is None:
        return []
    known: dict[str, Any] = {}
    _run(tree.body, known)
    calls = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ENGINES:
            positional = {"model": _value(node.args[0], known)} if node.args else {}
            calls.append(positional | _named(node, known))
    return calls


def _named(call: ast.Call, known: dict[str, Any]) -> dict[str, Any]:
    return {word.arg: _value(word.value, known) for word in call.keywords if word.arg}


def words_of_program(text: str) -> Iterator[list[str]]:
    """Yields the lists of words with a vLLM command that a Python program builds."""
    tree = _parsed(text)
    if tree is None:
        return
    known: dict[str, Any] = {}
    _run(tree.body, known)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    started = [_value(call.args[0], known) for call in calls if call.args and _starts(call)]
    for value in (*started, *known.values()):
        if isinstance(value, str) and _SERVER.search(value):
            value = words_of_script(value)
        if isinstance(value, list) and any(map(_NAME.search, map(str, value))):
            yield [*_variables(tree, known), *map(str, value)]


def _starts(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in STARTS


def _variables(tree: ast.Module, known: dict[str, Any]) -> list[str]:
    """Returns the variables that a program exports: os.environ["NAME"] = ..., or `env=`.

    Those of Modal's images are in `image.env({...})`.
    """
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if ast.unparse(target.value) in ("os.environ", "env"):
                words.append(f"{_value(target.slice, known)}={_value(node.value, known)}")
        elif isinstance(node, ast.Call) and (_starts(node) or _sets_variables(node)):
            of_image = _value(node.args[0], known) if _sets_variables(node) else None
            passed = of_image or _named(node, known).get("env")
            words += [f"{k}={v}" for k, v in passed.items()] if isinstance(passed, dict) else []
    return words


def _sets_variables(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "env"
    return is_method and len(call.args) == 1 and isinstance(call.args[0], ast.Dict)


def _run(statements: list[ast.stmt], known: dict[str, Any]) -> None:
    """Follows assignments, also in functions, whose names are taken for one program's."""
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known[statement.targets[0].id] = _value(statement.value, known)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            known[statement.target.id] = _value(statement.value, known)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            _add(statement.target.id, _value(statement.value, known), known)
        elif isinstance(statement, ast.Expr):
            _call(statement.value, known)
        elif isinstance(statement, ast.If):
            test = _value(statement.test, known)
            is_known = isinstance(test, bool | int | float | list)
            _run(statement.body if not is_known or test else statement.orelse, known)
        else:
            _run(getattr(statement, "body", []), known)


def _call(call: ast.expr, known: dict[str, Any]) -> None:
    """Follows `words.append(...)` and `words.extend(...)`."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return
    if isinstance(call.func.value, ast.Name) and len(call.args) == 1:
        value = _value(call.args[0], known)
        if call.func.attr == "append":
            _add(call.func.value.id, [value], known)
        elif call.func.attr == "extend":
            _add(call.func.value.id, value, known)


def _add(name: str, value: Any, known: dict[str, Any]) -> None:
    if isinstance(known.get(name), list) and isinstance(value, list):
        known[name] = known[name] + value


def _value(node: ast.expr | None, known: dict[str, Any]) -> Any:
    """Returns the value of an expression; a variable's reference if it is not known."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [inner for element in node.elts for inner in _element(element, known)]
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(str(_value(part, known)) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _value(node.value, known)
    if isinstance(node, ast.BinOp):
        number = integer_of(node, known.get)
        if number is not None:
            return number
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _sum(_value(node.left, known), _value(node.right, known))
    if isinstance(node, ast.IfExp):
        test = _value(node.test, known)
        return _value(node.body if test is True or test == 1 else node.orelse, known)
    return _of_call(node, known)


def _of_call(node: ast.expr | None, known: dict[str, Any]) -> Any:
    """Returns the value of a dictionary or of a well-known call; else a reference."""
    if isinstance(node, ast.Dict):
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key]
        return {_value(key, known): _value(value, known) for key, value in pairs}
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
        return _named(node, known)
    if isinstance(node, ast.Call) and len(node.args) in (1, 2):
        name = ast.unparse(node.func)
        value = _value(node.args[0], known)
        if name in ("str", "int"):
            return value
        if name == "json.dumps" and isinstance(value, dict | list):
            return json.dumps(value)
        if name in ("shlex.split", "split") and isinstance(value, str):
            return [word for word in words_of_script(value) if word != END]
        if name.endswith(".join") and isinstance(value, list):
            return " ".join(map(str, value))
        if name in ("os.environ.get", "os.getenv") and len(node.args) == 2:
            return _value(node.args[1], known)
    return "${" + re.sub(r"\W+", "_", ast.unparse(node) if node else "") + "}"


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return f"{left}{right}"


def _element(node: ast.expr, known: dict[str, Any]) -> list[Any]:
    if isinstance(node, ast.Starred):
        value = _value(node.value, known)
        return value if isinstance(value, list) else [value]
    return [_value(node, known)]
