"""Finds a call's messages in rows whose producer does not keep the API's bodies.

    sides = message_sides(row)
    sides.asked         # messages, the last one not an assistant's
    sides.answers       # choices: [{"message": {...}, "finish_reason": "stop"}]

Traces of Braintrust, Datadog, PostHog, Lunary, Humanloop, LangWatch, Bifrost, Arize and others have
a list of messages that does not end with an assistant's, and an answer: an assistant's message, a
list of these or of choices, or a text under a name in `ANSWERS`. The first of each, breadth first,
are the call's. OpenInference and OpenLLMetry flatten lists into keys with numbers.

Names were read in PostHog's and Datadog's documentation and in public code that writes attributes
of OpenInference, OpenLLMetry and Vercel's AI SDK 6 (November 2026). For Braintrust, Lunary,
Humanloop, LangWatch and Bifrost no version was read.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from outrider.data.exchange import Reject
from outrider.data.files.rows import parse_value
from outrider.data.formats.calls.message_parts import ROLES
from outrider.data.formats.calls.sampling import CONSTRAINTS, NUMBERS
from outrider.data.formats.calls.served_apis import message_of_items
from outrider.data.formats.calls.usual_texts import (
    END_THINK,
    answer_name,
    asked_in_parts,
    bare_name,
    choose_answer,
    is_api_body,
    is_hidden_thought,
    thought_name,
)
from outrider.data.formats.calls.vercel import vercel_calls, vercel_messages, vercel_tools
from outrider.data.formats.fields import parse_number, take_count
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import normalize_key

DEEPEST = 6
"""Levels that are searched."""

_NUMBERED = re.compile(r"(.+?)\.(\d+)\.(.+)")
"""A flattened key: `llm.input_messages.0.message.role`, `gen_ai.prompt.0.content`."""

_ROLE = re.compile(r"""["'](?:message\.)?role["']""")
"""The key of a message in JSON, or as Python writes it; OpenInference has `message.` before it."""

ANSWERS = {
    *("output", "response", "completion", "output_text", "response_text"),
    "response.text",  # Vercel's `ai.response.text`
    *("llm_response_text", "llm_response_text.content"),  # APISIX
    "generation",  # distilabel
    "combined_chunk_content",  # Logfire's record of a streamed response
}
"""Names of a text that is the answer."""

CALLS = frozenset({"tool_calls", "tool_call", "function_call"})
"""Names of the calls next to an answer without a text."""

REASONING_ROLE = "reasoning"

THOUGHTS = {"thinking", "reasoning", "reasoning_content", "response.reasoning"}
"""Names of the reasoning next to an answer's text."""

WRAPPED_ANSWERS = frozenset({"completion", "reasoning", "tool_calls"})
"""Keys of an object that is written as an answer's text: OpenRouter's `gen_ai.completion`."""

SWITCHES = frozenset({"on", "off", "auto", "low", "medium", "high", "enabled", "disabled"})
"""Values of the same names that switch reasoning on."""

WRAPPED = frozenset({"message", "content"})
"""Keys of an object that is a message's content: AWS's exporter of Strands' events."""

OF_DIFY = frozenset({"role", "text", "files"})
"""Keys of a message in the table of Dify (1.x, `messages.message`)."""

SHORT = frozenset({"reasoning_content", "finish_reason"})
"""Keys next to `content` in a service's own form of an answer, which has no role."""

LANGCHAIN_KINDS = frozenset({"human", "ai", "system", "tool"})
"""LangChain's types of messages that a request or an answer has (langchain_core/messages)."""

LANGCHAIN_FIELDS = ("reasoning_content", "tool_calls", "tool_call_id")
"""What a message of LangChain has besides its content, itself or in `additional_kwargs`."""

QUESTIONS = ("question", "query", "prompt", "user_prompt", "user_message", "user_input")
"""Names of a text that is the user's, in order of preference."""

INPUTS = (*QUESTIONS, "input")
"""The same next to an answer with its reasoning apart."""

BESIDE_QUESTION = ("instruction", "history", "context")
"""Keys of further parts of a prompt, which each data set joins in its own way."""

SHORT_ANSWER = ("content", "reasoning_content")
"""Keys of such an answer in a row that has the question, too."""

SYSTEMS = ("system_prompt", "system_message", "system")
"""Names of a text that is the system message, in order of preference."""

TEXT_WORDS = frozenset({
    "message", "messages", "msg", "prompt", "prompts", "conversation", "conversations", "history",
    "input", "inputs", "output", "outputs", "request", "response", "completion", "completions",
    "choices", "content", "contents", "text", "question", "query", "instruction", "answer", "reply",
    "generation", "thinking", "reasoning",
})  # fmt: skip
"""Last words of names under which a row may have a call's texts, in whatever form."""

OF_RESPONSE = re.compile("response|output|completion")

_IN_ANSWER = re.compile(
    r"(?:.*\.)?(?:llm|model|assistant)_(?:response|output|completion|answer|reply)"
    r"\.(?:text|content|raw)"
)
_IN_REPLY = re.compile(r"(?:answer|reply)\.(?:text|content|raw)")
"""The same at the top of a row; `answer` may be a data set's solution without an end or a count."""

"""Path of an answer's text in an object of an application's own, if no other name has one."""

MODELS = (
    *("response.model", "response_model", "model", "model_name", "request.model"),
    "model_id",  # Bedrock
    "generator",  # NVIDIA's Nemotron data sets
)
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
COUNTS = (
    *(
        "answer_tokens",
        "completion_tokens",
        "output_tokens",
        "token_count.completion",
        "tokens.completion",
    ),
    "output_token",  # Higress
    *("n_tok", "n_tokens"),
    *("usage.output", "token_usage.output", "tokens.output", "tokens.out"),
    *("completion_token_count", "output_token_count", "generated_tokens", "tokens_generated"),
    *("num_completion_tokens", "num_output_tokens", "num_generated_tokens", "response_tokens"),
    *("tokens_out", "tokens_output", "tokens_completion", "out_tokens"),
)
PROMPT_COUNTS = (
    *("prompt_tokens", "input_tokens", "token_count.prompt", "tokens.prompt"),
    *("usage.input", "token_usage.input", "tokens.input", "tokens.in"),
    *("prompt_token_count", "input_token_count", "num_prompt_tokens", "num_input_tokens"),
    *("tokens_in", "tokens_input", "tokens_prompt", "in_tokens"),
)
"""Names of the number of tokens of a prompt."""

ENDS = (
    *("finish_reason", "finish_reasons", "stop_reason", "done_reason", "finish"),
    *("end_reason", "completion_reason", "finish_status"),
)
OTHER_NAMES = {"stop_sequences": "stop", "temp": "temperature"}
SENT = frozenset({*NUMBERS, *CONSTRAINTS, "stop", "chat_template_kwargs", *OTHER_NAMES})
"""Names of a request's parameters."""

PROMPTFOO = frozenset({"testCase", "promptIdx"})
"""Keys of a result of promptfoo's."""

_MESSAGES_AS_TEXT = re.compile(r"\s*(?:[\[{]|- role:)")
"""How promptfoo's `parseChatPrompt` tells messages from a text."""

OF_LLM = frozenset({"prompt_json", "response_json"})
"""Keys of a row of the tool llm, whose prompt is the newest message of a conversation alone."""

PREFERENCES = frozenset({"chosen", "rejected"})
"""Keys of preference data, whose answers are not the endpoint's."""


class MessageSides(NamedTuple):
    """A call's messages and choices, and the objects around its answer, outermost first."""

    asked: list[dict[str, Any]]
    answers: list[dict[str, Any]]
    holders: list[dict[str, Any]]


def message_sides(row: dict[str, Any]) -> MessageSides | None:
    """Returns a row's messages and answers; None unless it has both."""
    if row.keys() >= PREFERENCES:
        return None
    asked, answers, around = _messages_in(row)
    is_answered = answers is None and _is_short_answer(row)
    if asked is None and not row.keys() >= OF_LLM:
        # With a system message or reasoning apart, the other text is what the user wrote.
        texts = asked_in_texts(row, INPUTS if is_answered else QUESTIONS) or []
        is_certain = len(texts) > 1 or is_answered or _is_of_promptfoo(row)
        asked = texts if is_certain else None
        asked = asked or asked_in_parts(_values(row))
    if asked and is_answered:
        answer = {"role": "assistant", **{name: row[name] for name in SHORT_ANSWER}}
        return MessageSides(asked, [_choice(answer, row.get("finish_reason"))], [row])
    if asked and not answers:
        answers, around = _answer_text(row, asked)
    return MessageSides(asked, answers, around) if asked and answers else None


def asked_in(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a row that has a request alone; empty if there are none."""
    asked, _, _ = _messages_in(row)
    return asked or asked_in_parts(_values(row))


def answers_in(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the choices of a row that has a response alone; empty if there are none."""
    _, answers, _ = _messages_in(row)
    return answers or _answer_text(row, [])[0]


def _messages_in(
    row: dict[str, Any],
) -> tuple[list[dict[str, Any]] | None, list[dict[str, Any]] | None, list[dict[str, Any]]]:
    """Returns a row's first messages, its first choices, and the objects around the latter."""
    asked: list[dict[str, Any]] | None = None
    answers: list[dict[str, Any]] | None = None
    around: list[dict[str, Any]] = []
    for _, value, holders in _values(row):
        messages = _messages(value)
        if messages and not _is_answer(messages[-1]):
            asked = asked or [message for message, _ in messages]
        elif messages and answers is None and all(map(_is_answer, messages)):
            answers = [_choice(*message) for message in messages]
            around = holders
    return asked, answers, around


def has_message(row: dict[str, Any]) -> bool:
    """Whether a row has anything under a name of messages, a question or an answer."""
    return any(
        bool(value)
        and isinstance(value, str | list | dict)
        and re.split(r"[._]", path)[-1] in TEXT_WORDS
        for path, value, _ in _values(row)
    )


def sent_parameters(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a request, from anywhere in a row but its messages.

    The outermost count. Of several at one depth, those around the response do (Magpie's rows have
    the parameters of who wrote the prompt, too), or the first ones.
    """
    sent: dict[str, Any] = {}
    ranks: dict[str, tuple[int, bool]] = {}
    for path, value, holders in _values(row):
        outer, _, name = path.rpartition(".")
        is_set = value is not None and value != ""
        if name not in SENT or not is_set or (name == "temp" and type(value) not in (int, float)):
            continue
        name = OTHER_NAMES.get(name, name)
        rank = (len(holders), not OF_RESPONSE.search(outer))
        if name not in sent or rank < ranks[name]:
            sent[name] = vercel_tools(_decoded(value)) if name == "tools" else _decoded(value)
            ranks[name] = rank
    return sent


def logged_about(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the model, limit, counts and end of a call, as far as they were logged."""
    about: dict[str, Any] = {}
    names = {
        "model": MODELS,
        "limit": LIMITS,
        "count": COUNTS,
        "prompt_count": PROMPT_COUNTS,
        "end": ENDS,
    }
    ranks = {
        end: (about_key, rank) for about_key, ends in names.items() for rank, end in enumerate(ends)
    }
    best: dict[str, int] = {}
    for path, value, _ in _values(row):
        for end in (path, ".".join(path.split(".")[-2:]), path.rpartition(".")[2]):
            about_key, rank = ranks.get(end, (None, 0))
            is_scalar = isinstance(value, str | int | float | list) and value not in ("", [])
            if about_key and is_scalar and rank < best.get(about_key, 99):
                best[about_key] = rank
                about[about_key] = value
                break
    ends = _decoded(about.get("end"))
    about["end"] = ends[0] if isinstance(ends, list) and ends else ends
    about["count"] = take_count(about, "count")
    about["prompt_count"] = take_count(about, "prompt_count")
    about["limit"] = parse_number(about, "limit")
    return about


def nest_lists(holder: dict[str, Any]) -> dict[str, Any]:
    """Returns an object whose flattened lists are lists again."""
    lists: dict[str, dict[int, dict[str, Any]]] = {}
    rest: dict[str, Any] = {}
    for key, value in holder.items():
        match = _NUMBERED.fullmatch(key)
        if match is None:
            rest[key] = value
            continue
        items = lists.setdefault(match[1], {})
        items.setdefault(int(match[2]), {})[match[3]] = value
    for key, items in lists.items():
        rest.setdefault(key, [nest_lists(items[at]) for at in sorted(items)])
    return rest


def _values(row: dict[str, Any]) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """Yields paths, values and the objects around them, breadth first."""
    waiting = deque([("", nest_lists(row), [row])])
    while waiting:
        path, holder, holders = waiting.popleft()
        for key, value in holder.items():
            where = f"{path}.{normalize_key(key)}".removeprefix(".")
            yield where, value, holders
            inner = object_of(value) if _messages(value) is None else None
            if inner is not None and len(holders) <= DEEPEST:
                waiting.append((where, nest_lists(inner), [*holders, inner]))


def _decoded(value: Any) -> Any:
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return parse_value(value.encode("utf-8", "surrogatepass"))
    except Reject:
        return value


Logged = tuple[dict[str, Any], Any]
"""A message, and its finish reason if the list has one."""


def _messages(value: Any) -> list[Logged] | None:
    """Returns the messages in a list, or the assistant's message that a value is."""
    if isinstance(value, str) and value[:200].lstrip()[:1] in ("[", "{") and _ROLE.search(value):
        value = _decoded(value)
    # LangChain's callbacks have a list for each prompt of a batch.
    while isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        (value,) = value
    if isinstance(value, dict):
        message = _message(value)
        return [message] if message and _is_answer(message) else None
    if not isinstance(value, list) or not value:
        return None
    answer = message_of_items(value)
    if answer is not None:
        return [(answer, None)]
    items = [message for item in _with_thoughts(value) for message in vercel_messages(item)]
    messages = [_message(item) for item in items]
    return None if None in messages else [message for message in messages if message]


def _with_thoughts(items: list[Any]) -> list[Any]:
    """Returns messages with the reasoning that the one before has as its content (Datadog)."""
    merged: list[Any] = []
    thought = None
    for item in items:
        role = item.get("role") if isinstance(item, dict) else None
        if role == REASONING_ROLE:
            thought = item.get("content")
            continue
        merged.append({"reasoning_content": thought, **item} if thought is not None else item)
        thought = None
    return merged


def _message(item: Any) -> Logged | None:
    """Returns a message as OpenAI writes it; None for anything else."""
    if not isinstance(item, dict):
        return None
    end = item.get("finish_reason")
    inner = item.get("message")
    if isinstance(inner, dict) and "role" not in item:
        item = inner
    item = _of_langchain(item)
    if any(key.startswith("message.") for key in item):
        item = {key.removeprefix("message."): value for key, value in item.items()}
    inner = item.get("content")
    if item.keys() >= OF_DIFY:
        text = {"type": "text", "text": item["text"]}
        content = [text, *item["files"]] if isinstance(item["files"], list) else [text]
        item = {"role": item["role"], "content": content if len(content) > 1 else item["text"]}
    elif isinstance(item.get("content"), str) and "role" not in item and item.keys() & SHORT:
        item = {"role": "assistant", **item}
    if isinstance(inner, dict) and not WRAPPED.isdisjoint(inner):
        end = inner.get("finish_reason")
        item = {**item, "content": _decoded(inner.get("message", inner.get("content")))}
    role = item.get("role")
    # Anthropic's and Ollama's responses have the role, too.
    if not isinstance(role, str) or item.get("type") == "message" or "choices" in item:
        return None
    role = ROLES.get(role.lower(), role)
    message = {key: value for key, value in item.items() if key != "finish_reason"}
    message |= {"role": role, "content": _content(item)}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message, end if end is not None else item.get("finish_reason")


def _of_langchain(item: dict[str, Any]) -> dict[str, Any]:
    """Returns a message that LangChain has serialized with a role; others unchanged.

    `dumpd` writes the class's path and its arguments, `message_to_dict` a type and data.
    """
    path = item.get("id")
    kind = str(item.get("type"))
    values = item.get("data")
    if kind == "constructor" and isinstance(path, list) and path:
        kind = str(path[-1]).removesuffix("Chunk").removesuffix("Message").lower()
        values = item.get("kwargs")
    if kind not in LANGCHAIN_KINDS or "role" in item or not isinstance(values, dict):
        return item
    extra = values.get("additional_kwargs")
    logged = {**values, **extra} if isinstance(extra, dict) else values
    message = {"role": ROLES.get(kind, kind), "content": values.get("content")}
    message |= {key: logged[key] for key in LANGCHAIN_FIELDS if logged.get(key)}
    about = values.get("response_metadata")
    end = about.get("finish_reason") if isinstance(about, dict) else None
    return message if end is None else {**message, "finish_reason": end}


def _content(item: dict[str, Any]) -> Any:
    """Returns a message's content; OpenInference lists its parts as `contents`."""
    parts = item.get("contents")
    if "content" in item or not isinstance(parts, list):
        return (
            _decoded(item.get("content"))
            if _has_parts(item.get("content"))
            else item.get("content")
        )
    texts = [part.get("message_content.text") for part in parts if isinstance(part, dict)]
    return [{"type": "text", "text": text} for text in texts]


def _has_parts(content: Any) -> bool:
    """Whether a content is a list of parts written as text."""
    return isinstance(content, str) and content.startswith('[{"type": "text"')


def _tool_call(call: Any) -> Any:
    """Returns a tool call as OpenAI writes it; traces omit the `function` level."""
    if not isinstance(call, dict) or "function" in call:
        return call
    plain = {key.removeprefix("tool_call."): value for key, value in call.items()}
    name = plain.get("function.name", plain.get("name"))
    # LangChain's `args` are an object.
    arguments = plain.get("function.arguments", plain.get("arguments", plain.get("args")))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    function = {"name": name, "arguments": arguments}
    return {"id": plain.get("id"), "type": "function", "function": function}


def _is_answer(message: Logged) -> bool:
    return message[0].get("role") == "assistant"


def _choice(message: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"message": message, "finish_reason": end}


def _is_answers_name(ends: set[str], holder: dict[str, Any]) -> bool:
    """Whether a text's path is that of an answer; `answer` alone may be a data set's solution."""
    return bool(ends & ANSWERS) or ("answer" in ends and _is_models(holder))


def _is_models(holder: dict[str, Any]) -> bool:
    """Whether an object has the reasoning or count of tokens of a model's response."""
    return not set(map(normalize_key, holder)).isdisjoint({*COUNTS, *THOUGHTS})


def _are_calls(value: Any) -> bool:
    """Whether a value is a list of OpenAI's tool calls."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(call, dict) and isinstance(call.get("function"), dict) for call in value)


def _has_answer_inside(text: str) -> bool:
    """Whether a text is an object that has the answer, which is among the row's values, too."""
    inner = object_of(text) if text.startswith('{"') else None
    return inner is not None and "completion" in inner and inner.keys() <= WRAPPED_ANSWERS


def _answer_text(
    row: dict[str, Any], asked: Sequence[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the answer to `asked` that a row has as text, and the objects around it."""
    answer: dict[str, Any] = {}
    around: list[dict[str, Any]] = []
    around_empty: list[dict[str, Any]] = []
    calls_tools = False
    for path, value, holders in _values(row):
        name = path.rpartition(".")[2]
        if name == "tool_calls" and _are_calls(value) and _is_models(holders[-1]):  # Higress
            answer.setdefault("tool_calls", value)
            around = around or holders
        calls = vercel_calls(_decoded(value)) if path.endswith("response.tool_calls") else []
        if calls:
            answer.setdefault("tool_calls", calls)
            around = around or holders
        part = _part_of_answer(path, value, holders[-1])
        if part == "content" and not value:
            around_empty = around_empty or holders
        elif part is not None and value and part not in answer:
            answer[part] = _only_item(value)
            around = holders if part == "content" else around
        calls_tools = calls_tools or (name in CALLS and bool(value))
    if "tool_calls" not in answer:
        around = _add_usual_texts(answer, row, asked) or around
    # Cut before the reasoning's end, the text is empty; without it, the answer would be rejected.
    if "reasoning_content" in answer and around_empty and not calls_tools:
        answer.setdefault("content", "")
        around = around or around_empty
    if answer.keys().isdisjoint(("content", "tool_calls")):
        return [], []
    if END_THINK in answer.get("content", ""):  # the reasoning is in the text
        answer.pop("reasoning_content", None)
    return [_choice({"role": "assistant", **answer}, None)], around


def _text_in_answer(row: dict[str, Any]) -> tuple[str | None, list[dict[str, Any]]]:
    """Returns the text in an answer that is an object of an application's own."""
    for path, value, holders in _values(row):
        if not isinstance(value, str) or not value:
            continue
        if _IN_ANSWER.fullmatch(path):
            return value, holders
        # An object may have thousands of keys, so it is looked through last.
        is_reply = _IN_REPLY.fullmatch(path) is not None
        if is_reply and ("finish_reason" in holders[-1] or _is_models(holders[-1])):
            return value, holders
    return None, []


def _add_usual_texts(
    answer: dict[str, Any], row: dict[str, Any], asked: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Adds the texts of an answer that have an application's own names.

    Returns the objects around an added answer.
    """
    content = answer.get("content", "")
    if content and ("reasoning_content" in answer or END_THINK in content):
        return []
    contents = (message.get("content") for message in asked)
    prompt = {content for content in contents if isinstance(content, str)}
    texts = [
        (path, value, holders)
        for path, value, holders in _values(row)
        if isinstance(value, str) and value and value not in prompt and not is_api_body(value)
    ]
    thoughts = {text for path, text, _ in texts if thought_name(path)} - SWITCHES
    if "reasoning_content" not in answer and len(thoughts) == 1:
        answer["reasoning_content"] = next(iter(thoughts))
    if "content" in answer:
        return []
    content, holders = _text_in_answer(row)
    if content is not None:
        answer["content"] = content
        return holders
    about = logged_about(row)
    hides_thought = any(is_hidden_thought(path, value) for path, value, _ in _values(row))
    is_ended = about["end"] is not None or about["count"] is not None
    chosen = choose_answer(
        [text for text in texts if answer_name(text[0]) or bare_name(text[0])],
        has_thought="reasoning_content" in answer,
        is_call=is_ended and not hides_thought,
    )
    if chosen is None:
        return []
    _, answer["content"], holders = chosen
    return holders


def _only_item(value: Any) -> Any:
    """Returns the item of a list that has one, as agentgateway's `gen_ai.completion` does."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _part_of_answer(path: str, value: Any, holder: dict[str, Any]) -> str | None:
    """Returns the key of an answer's message that a text's path stands for; None for any other."""
    text = "" if value is None else _only_item(value)  # null: none was written
    if not isinstance(text, str) or _has_answer_inside(text):
        return None
    ends = {path.rpartition(".")[2], ".".join(path.split(".")[-2:])}
    if _is_answers_name(ends, holder):
        return "content"
    return "reasoning_content" if ends & THOUGHTS and text not in SWITCHES else None


def _is_of_promptfoo(row: dict[str, Any]) -> bool:
    prompt = row.get("prompt")
    has_raw = isinstance(prompt, dict) and isinstance(prompt.get("raw"), str)
    return has_raw and not PROMPTFOO.isdisjoint(row)


def _prompt_of_promptfoo(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the text that a result of promptfoo's sent; messages are in JSON or YAML."""
    raw = row["prompt"]["raw"]
    return {} if _MESSAGES_AS_TEXT.match(raw) else {"prompt": raw}


def _is_short_answer(row: dict[str, Any]) -> bool:
    """Whether a row has an answer's texts, but no role, as data sets distilled from R1 do."""
    beside = (row.get(name) for name in ("role", *BESIDE_QUESTION, *CALLS))
    if any(value and isinstance(value, str | list) for value in beside):
        return False
    return all(isinstance(row.get(name), str) for name in SHORT_ANSWER)


def asked_in_texts(
    row: dict[str, Any], questions: Sequence[str] = QUESTIONS
) -> list[dict[str, Any]] | None:
    """Returns the messages of a row that has a question, and maybe a system message, as texts."""
    texts = {normalize_key(key): value for key, value in row.items() if isinstance(value, str)}
    if _is_of_promptfoo(row):
        texts = _prompt_of_promptfoo(row)
    question = next((texts[name] for name in questions if texts.get(name)), None)
    if question is None:
        return None
    system = next((texts[name] for name in SYSTEMS if texts.get(name)), None)
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": question}]
