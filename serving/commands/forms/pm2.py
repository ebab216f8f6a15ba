"""Commands in pm2's ecosystem files, which are JavaScript, JSON or YAML.

    words_of_pm2("module.exports = {apps: [{script: 'vllm', args: 'serve org/model -tp 2'}]}")
    # [["vllm", "serve", "org/model", "-tp", "2"]]

An app is a script and its arguments, as a list or as text that pm2 splits like a shell, and the
variables of `env`; those of `env_NAME` count only with `--env NAME` (pm2's docs, "Ecosystem File").
JavaScript is read if it is one object of constants: with its strings in JSON and without its
comments, such an object is YAML.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from outrider.serving.commands.forms.documents import documents_in, mappings_in

_EXPORTED = re.compile(r"\bmodule\.exports[ \t]*=|\bexport[ \t]+default\b")

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|`(?P<template>(?:[^`\\$]|\\.|\$(?!\{))*)`"
    r"|'(?P<single>(?:[^'\\\n]|\\.)*)'"
    r'|"(?P<double>(?:[^"\\\n]|\\.)*)"',
    re.DOTALL,
)
"""A comment or a string. A template with `${...}` is neither, so that no YAML comes of it."""

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}


def words_of_pm2(text: str) -> Iterator[list[str]]:
    """Yields the words of each app's command."""
    begin = _EXPORTED.search(text)
    if begin is not None:
        text = _TOKEN.sub(_as_yaml, text[begin.end() :]).strip().rstrip(";")
    elif "apps" not in text or "script" not in text:
        return
    for mapping in mappings_in(documents_in(text)):
        apps = mapping.get("apps")
        for app in apps if isinstance(apps, list) else ():
            if isinstance(app, Mapping) and isinstance(app.get("script"), str):
                yield _words_of_app(app)


def _words_of_app(app: Mapping[str, Any]) -> list[str]:
    variables = app.get("env")
    named = variables.items() if isinstance(variables, Mapping) else ()
    arguments = app.get("args") or []
    words = shlex.split(arguments) if isinstance(arguments, str) else map(str, arguments)
    interpreter = app.get("interpreter")
    program = [interpreter] if isinstance(interpreter, str) and interpreter != "none" else []
    return [*(f"{name}={value}" for name, value in named), *program, app["script"], *words]


def _as_yaml(token: re.Match[str]) -> str:
    """Returns a string in JSON; nothing for a comment."""
    text = next((token[name] for name in ("template", "single", "double") if token[name]), None)
    if text is None:
        return '""' if token[0][0] in "`'\"" else ""
    return json.dumps(_ESCAPED.sub(lambda match: _CONTROLS.get(match[1], match[1]), text))
