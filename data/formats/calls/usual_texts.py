"""An answer and its reasoning under names that an application chose itself.

    answer_name("raw_output")              # a name of an answer
    thought_name("assistant_reasoning")    # a name of its reasoning
    choose_answer([("llm_output", text, holders), ...], has_thought=False, is_call=True)

The names that producers and data sets use (message_sides.ANSWERS, THOUGHTS) count before these. A
name is a word for what a model writes, maybe with who wrote it before and what it is after it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from outrider.data.formats.rows.paths import normalize_key

END_THINK = "</think>"

_WRITERS = r"(?:(?:raw|full|llm|model|ai|assistant|bot|agent|final|generated|chat|r1|deepseek)_)*"
_FORMS = r"(?:_(?:text|content|raw|str|string|full|md|markdown))?"
_ANSWER = re.compile(
    rf"{_WRITERS}(?:response|answer|output|completion|reply|generation){_FORMS}"
    r"|(?:llm|model|ai|assistant|bot|agent|generated)_(?:text|content|message|result|out)"
)
_BARE = re.compile(rf"{_WRITERS}(?:text|content|result|out|assistant|bot|final|generated){_FORMS}")
"""Words that other texts of a row have, too."""

_PART = re.compile(r"text|content|raw|value|answer|final")
"""Names of a text in an object that is named as an answer: `output.content`."""

_THOUGHT = re.compile(
    rf"{_WRITERS}(?:(?:response|answer|output|completion)_)?"
    r"(?:reasoning|thinking|thoughts?|think|cot|chain_of_thought|rationale|scratchpad)"
    r"(?:_(?:text|content|trace|raw|str|string|steps|process))?"
)

_SYSTEM = re.compile(
    r"(?:system|sys|developer)(?:_(?:prompt|message|msg|text|content|instructions?))?"
)
_USER = re.compile(
    r"(?:user|usr|human)(?:_(?:prompt|message|msg|text|content|query|input|question|request))?"
    r"|question|query|prompt"
)
BESIDE = frozenset(
    {"history", "chat_history", "context", "contexts", "instruction", "examples", "documents"}
)
"""Names of further parts of a prompt, which each application joins in its own way."""

_HIDDEN_THOUGHT = re.compile(r"(?:.*_)?(?:reasoning|thinking|thoughts?|cot)(?:_.*)?")
_NO_THOUGHT = re.compile(
    r".*_(?:effort|tokens?|count|enabled|parser|budget|length|ms|time|summary)"
)

_API_BODY = re.compile(
    r"\s*(?:data:|event:|[{\[].{0,400}\"(?:choices|object|role|type)\")", re.DOTALL
)
"""How a body of an API begins, which is a text in many logs."""

API_KEYS = frozenset({"type", "object", "choices", "error", "message", "candidates", "body"})
"""Keys of a response of OpenAI's, Anthropic's, Google's or Ollama's API."""

Text = tuple[str, str, list[dict[str, Any]]]
"""Path, text, and the objects around it, outermost first."""


def answer_name(path: str) -> bool:
    """Whether a path is that of an answer."""
    holder, _, name = path.rpartition(".")
    if _ANSWER.fullmatch(name):
        return True
    around = holder.rpartition(".")[2]
    return _PART.fullmatch(name) is not None and _ANSWER.fullmatch(around) is not None


def bare_name(path: str) -> bool:
    """Whether a path may be that of an answer, if the text or what is next to it shows so."""
    return _BARE.fullmatch(path.rpartition(".")[2]) is not None


def thought_name(path: str) -> bool:
    """Whether a path is that of an answer's reasoning."""
    return _THOUGHT.fullmatch(path.rpartition(".")[2]) is not None


def asked_in_parts(
    values: Iterable[tuple[str, Any, list[dict[str, Any]]]],
) -> list[dict[str, Any]]:
    """Returns the system and the user's message among values; none unless both are there.

    `values` are as `Text`, but of any type. One text alone could be a part of the prompt.
    """
    systems: set[str] = set()
    questions: set[str] = set()
    for path, value, _ in values:
        name = path.rpartition(".")[2]
        if name in BESIDE and value:
            return []
        if not isinstance(value, str) or not value:
            continue
        if _SYSTEM.fullmatch(name):
            systems.add(value)
        elif _USER.fullmatch(name) and (" " in value or name not in ("user", "usr", "human")):
            questions.add(value)
    if len(systems) != 1 or len(questions) != 1:
        return []
    return [
        {"role": "system", "content": systems.pop()},
        {"role": "user", "content": questions.pop()},
    ]


def is_plain_answer(holder: dict[str, Any]) -> bool:
    """Whether an object is an application's own form of an answer: a text and its reasoning."""
    texts = {
        normalize_key(key): value
        for key, value in holder.items()
        if isinstance(value, str) and value
    }
    parts = [key for key in texts if _PART.fullmatch(key)]
    if len(parts) != 1 or not API_KEYS.isdisjoint(holder):
        return False
    return any(map(thought_name, texts)) or END_THINK in texts[parts[0]]


def is_hidden_thought(path: str, value: Any) -> bool:
    """Whether a value is a reasoning that is not there as text, such as a compressed one."""
    name = path.rpartition(".")[2]
    if not value or isinstance(value, bool | int | float) or _NO_THOUGHT.fullmatch(name):
        return False
    return _HIDDEN_THOUGHT.fullmatch(name) is not None


def is_api_body(text: str) -> bool:
    """Whether a text is the body of a response, complete or not."""
    return _API_BODY.match(text) is not None


def choose_answer(texts: Sequence[Text], *, has_thought: bool, is_call: bool) -> Text | None:
    """Returns the text that the model wrote; None if that is not certain.

    With its reasoning inside, a text is what the model wrote, and others are made from it. Without,
    the row needs the reasoning apart (`has_thought`) or an end or a count of tokens (`is_call`);
    of several different texts none is chosen.
    """
    whole = [text for text in texts if END_THINK in text[1]]
    if not whole:
        names = [text for text in texts if answer_name(text[0])]
        whole = names if names and (has_thought or is_call) else []
        if not whole and has_thought:
            whole = list(texts)
    if len({text.strip() for _, text, _ in whole}) != 1:
        return None
    return whole[0]
