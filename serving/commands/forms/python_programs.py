"""Commands that Python programs build.

    words_of_program('cmd = ["vllm", "serve", MODEL]\\ncmd += ["--seed", str(3)]')
    # [["vllm", "serve", "${MODEL}", "--seed", "3"]]

Nothing is executed (python_values.py). What is not known stays a variable, `${MODEL}`, which the
caller refuses by name.
"""

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from outrider.serving.commands.forms.python_values import (
    defaults_in,
    follow_assignments,
    named_arguments,
    value_of,
)
from outrider.serving.commands.forms.shell import words_of_script

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
    known: dict[str, Any] = defaults_in(tree)
    follow_assignments(tree.body, known)
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
            positional = {"model": value_of(node.args[0], known)} if node.args else {}
            calls.append(positional | named_arguments(node, known))
    return calls


def mappings_in_program(text: str) -> list[dict[str, str]]:
    """Returns the dictionaries of texts that a Python program names, such as an environment.

    Numbers are written as texts, as in `str(16 * 1024)`, whose call is not followed.
    """
    program = _program(text)
    values = program.known.values() if program else ()
    mappings = [value for value in values if isinstance(value, dict)]
    return [
        {
            key: str(value)
            for key, value in mapping.items()
            if isinstance(key, str) and (isinstance(value, str) or type(value) in (int, float))
        }
        for mapping in mappings
    ]


def variables_of_program(text: str) -> list[str]:
    """Returns the variables that a Python program exports, as NAME=VALUE."""
    program = _program(text)
    try:
        return [] if program is None else _variables(*program)
    except ValueError:  # an integer of more digits than Python writes
        return []


def words_of_started(text: str) -> Iterator[list[str]]:
    """Yields the words of each vLLM command that a Python program starts."""
    program = _program(text)
    if program is None:
        return
    tree, known = program
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    started = [value_of(call.args[0], known) for call in calls if call.args and _starts(call)]
    yield from _words_in(started, program)


def words_of_program(text: str) -> Iterator[list[str]]:
    """Yields the words of each vLLM command that a Python program has under a name."""
    program = _program(text)
    if program is not None:
        yield from _words_in(program.known.values(), program)


def _words_in(values: Iterable[Any], program: _Program) -> Iterator[list[str]]:
    """Yields the values that are a vLLM command, as words behind the program's variables."""
    tree, known = program
    for value in values:
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
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.setdefault":
            words.append("=".join(str(value_of(argument, known)) for argument in node.args))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            if ast.unparse(target.value) in ("os.environ", "env"):
                words.append(f"{value_of(target.slice, known)}={value_of(node.value, known)}")
        elif isinstance(node, ast.Call) and (_starts(node) or _sets_variables(node)):
            of_image = value_of(node.args[0], known) if _sets_variables(node) else None
            passed = of_image or named_arguments(node, known).get("env")
            words += [f"{k}={v}" for k, v in passed.items()] if isinstance(passed, dict) else []
    return words


def _sets_variables(call: ast.Call) -> bool:
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "env"
    return is_method and len(call.args) == 1 and isinstance(call.args[0], ast.Dict)
