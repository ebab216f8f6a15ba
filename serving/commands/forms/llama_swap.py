"""Commands in the configuration of llama-swap, which starts a server for each model.

    words_of_llama_swap([{"macros": {"len": 4096}, "models":
                          {"m": {"cmd": "vllm serve org/m --max-model-len ${len}"}}}])
    # [[";", "vllm", "serve", "org/m", "--max-model-len", "4096"]]

Macros are replaced in commands, those of a model before those of the file; ${PORT} and ${MODEL_ID}
are llama-swap's own (its config.example.yaml).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from outrider.serving.commands.forms.shell import words_of_script

PORT = "5800"
"""The first port that llama-swap gives a server, if `startPort` does not say otherwise."""

LONGEST = 100_000

DEEPEST = 10
"""Macros in macros that are replaced."""

_MACRO = re.compile(r"\$\{([\w.-]+)\}")


def words_of_llama_swap(documents: Iterable[Any]) -> Iterator[list[str]]:
    """Yields the words of each model's command."""
    for document in documents:
        models = document.get("models") if isinstance(document, Mapping) else None
        for name, model in models.items() if isinstance(models, Mapping) else ():
            command = model.get("cmd") if isinstance(model, Mapping) else None
            if isinstance(command, str):
                own = {"PORT": document.get("startPort", PORT), "MODEL_ID": name}
                macros = {**own, **_macros(document), **_macros(model)}
                variables = model.get("env")
                named = map(str, variables) if isinstance(variables, list) else ()
                set_first = [_replaced(text, macros) for text in named]
                yield [*set_first, *words_of_script(_replaced(command, macros))]


def _macros(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    macros = holder.get("macros")
    return macros if isinstance(macros, Mapping) else {}


def _replaced(text: str, macros: Mapping[str, Any]) -> str:
    """Returns a text with its macros replaced, as far as it stays below `LONGEST` characters."""
    for _ in range(DEEPEST):
        length = len(text)

        def value(match: re.Match[str]) -> str:
            nonlocal length
            replaced = str(macros.get(match[1], match[0]))
            length += len(replaced)
            return replaced if length <= LONGEST else match[0]

        replaced = _MACRO.sub(value, text)
        if replaced == text:
            break
        text = replaced
    return text
