"""Commands that Python programs build.

    words_of_program('cmd = ["vllm", "serve", MODEL]\\ncmd += ["--seed", str(3)]')
    # [["vllm", "serve", "${MODEL}", "--seed", "3"]]

Nothing is executed: constants, lists and texts of them are followed through assignments.
What is not known stays a variable, `${MODEL}`, which the caller refuses by name.
"""

import ast
import functools
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from outrider.serving.commands.shell import END, words_of_script
from outrider.serving.commands.variables import integer_of

ENGINES = frozenset({"LLM", "EngineArgs", "AsyncEngineArgs", "LLMConfig"})
"""Classes whose arguments are an engine's: vLLM's, and Ray Serve LLM's."""

STARTS = frozenset({
    "run", "Popen", "call", "check_call", "check_output", "system", "execvp", "execv",
    "create_subprocess_exec", "create_subprocess_shell",
})  # fmt: skip
"""Functions that start a program."""

_SERVER = re.compile(r"\bvllm serve\b|vllm\.entrypoints")

_NAME = re.compile(r"(?:^|/)vllm(?:$|\.entrypoints)|^dynamo\.vllm$")
"""The server's name as a word."""


class _Program(NamedTuple):
    """A Python program, and the values that its assignments give to names."""

    tree: ast.Module
    known: dict[str, Any]


@functools.lru_cache(1)  # the three functions below read the same text in turn
def _program(text: str) -> _Program | None:
    """Returns a Python program; None for other text."""
    is_program = re.search(r"^[ \t]*(?:import|from|def|\w+ *\+?=)", text, re.MULTILINE)
    if not is_program or not re.search("vllm|LLMConfig", text):
        return None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    known: dict[str, Any] = {}
    _run(tree.body, known)
    return _Program(tree, known)


def calls_in_program(text: str) -> list[dict[str, Any]]:
    """Returns the arguments of each engine that a Python program makes, under their names."""
    program = _program(text)
    if program is None:
        return []
    known = program.known
    calls = []
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ENGINES:
            positional = {"model": _value(node.args[0], known)} if node.args else {}
            calls.append(positional | _named(node, known))
    return calls


def _named(call: ast.Call, known: dict[str, Any]) -> dict[str, Any]:
    return {word.arg: _value(word.value, known) for word in call.keywords if word.arg}


def mappings_in_program(text: str) -> list[dict[str, str]]:
    """Returns the dictionaries of texts that a Python program names, such as an environment."""
    program = _program(text)
    values = program.known.values() if program else ()
    mappings = [value for value in values if isinstance(value, dict)]
    return [
        {
            key: value
            for key, value in mapping.items()
            if isinstance(key, str) and isinstance(value, str)
        }
        for mapping in mappings
    ]


def words_of_program(text: str) -> Iterator[list[str]]:
    """Yields the lists of words with a vLLM command that a Python program builds."""
    program = _program(text)
    if program is None:
        return
    tree, known = program
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
