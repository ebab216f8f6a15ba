"""Renders a conversation with the target's chat template, as the engine did.

Engines change a request's messages before the template. vLLM 0.32 (renderers/chat_utils.py and
hf.py) keeps the keys it knows, turns missing content into an empty text and a tool call's arguments
into an object, and renames `developer` to `system` for templates that do not know it. SGLang does
the same. `as_the_engine_reads` reproduces this.

    template = ChatTemplate(tokenizer)
    template.render(messages, {"tools": [...]})         # up to the start of the response
    template.tool_calls(messages, {}, calls)            # the text that parses to these calls
"""

import json
from typing import Any

import jinja2

from outrider.data.exchange import Reject

REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    RecursionError,
)
"""Errors of a template on a conversation it was not written for."""

TOOL_CALLS_BEGIN, TOOL_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"

_MARK = "\ue000{}\ue001"
"""Placeholder for a text whose position in the rendering is searched. In the private use area, so
that no template writes it."""


class ChatTemplate:
    """Chat template of one tokenizer."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._knows_developer = any(
            f"{quote}developer{quote}" in tokenizer.chat_template for quote in "'\""
        )

    def render(self, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> str:
        """Renders the prompt; raises `Reject` where the template refuses the conversation."""
        arguments = {
            "add_generation_prompt": not arguments.get("continue_final_message"),
            **arguments,
        }
        try:
            read = as_the_engine_reads(messages, self._knows_developer)
            return self._tokenizer.apply_chat_template(read, tokenize=False, **arguments)
        except REFUSALS as error:
            # Its text may quote the customer.
            raise Reject("template_refuses", type(error).__name__) from None

    def tool_calls(
        self, messages: list[dict[str, Any]], arguments: dict[str, Any], calls: list[Any]
    ) -> str:
        """Text of a response's tool calls, without preceding content and the end token.

        The template renders the calls as an assistant's turn, which shows how the model writes
        them. The arguments are inserted as logged, which is how the model wrote them.
        """
        names, texts = zip(*(_name_and_arguments(call) for call in calls), strict=True)
        turns = arguments | {"add_generation_prompt": False, "continue_final_message": False}
        for content in (
            _MARK.format("content"),
            None,
        ):  # R1's first template renders calls only without content
            for in_object in (
                False,
                True,
            ):  # templates write the arguments as they are, or as a JSON object
                marks = [_MARK.format(number) for number in range(len(calls))]
                turn = {
                    "role": "assistant",
                    "content": content,
                    "tool_calls": [
                        {
                            "id": f"call_{number}",
                            "type": "function",
                            "function": {
                                "name": name,
                                "arguments": {mark: 0} if in_object else mark,
                            },
                        }
                        for number, (name, mark) in enumerate(zip(names, marks, strict=True))
                    ],
                }
                written = self._turn(messages, turns, turn)
                if written is None:
                    continue
                if any(f'"{mark}"' in written for mark in marks) and not in_object:
                    continue  # the template writes texts as JSON
                if in_object:
                    for mark in marks:
                        written = written.replace(json.dumps({mark: 0}, ensure_ascii=False), mark)
                if all(written.count(mark) == 1 for mark in marks) and all(
                    name in written for name in names
                ):
                    for mark, text in zip(marks, texts, strict=True):
                        written = written.replace(mark, text)
                    return written
        raise Reject(
            "tool_calls_without_ids", "the target's chat template does not show how it writes them"
        )

    def _turn(
        self, messages: list[dict[str, Any]], arguments: dict[str, Any], turn: dict[str, Any]
    ) -> str | None:
        """What the template writes of a last turn after its content, or after its start without
        any.
        """
        opening = {"role": "assistant", "content": _MARK.format("content")}
        try:
            read = as_the_engine_reads(messages, self._knows_developer)
            whole = self._tokenizer.apply_chat_template([*read, turn], tokenize=False, **arguments)
            if turn["content"] is None:
                plain = self._tokenizer.apply_chat_template(
                    [*read, opening], tokenize=False, **arguments
                )
                before, found, _ = plain.partition(opening["content"])
                written = whole.removeprefix(before)
                found = found and len(written) < len(whole)
            else:
                _, found, written = whole.partition(turn["content"])
        except REFUSALS:
            return None
        if not found:
            return None
        written = written.removesuffix(self._tokenizer.eos_token)
        # R1's first template omits the closing mark of a single call; the model does not.
        if written.startswith(TOOL_CALLS_BEGIN) and not written.endswith(TOOL_CALLS_END):
            written += TOOL_CALLS_END
        return written


def as_the_engine_reads(
    messages: list[dict[str, Any]], knows_developer: bool = False
) -> list[dict[str, Any]]:
    """The messages as vLLM passes them to the template; each content is one text, or None."""
    read = [_read(message) for message in messages]
    if knows_developer or not any(message["role"] == "developer" for message in read):
        return read
    system = [
        message["content"]
        for message in read
        if message["role"] in ("developer", "system") and message["content"]
    ]
    others = [message for message in read if message["role"] not in ("developer", "system")]
    return [{"role": "system", "content": "\n\n".join(system)}, *others]


def _read(message: dict[str, Any]) -> dict[str, Any]:
    role = message["role"]
    read = {"role": role, "content": message.get("content") or ""}
    if isinstance(message.get("name"), str):
        read["name"] = message["name"]
    if role == "tool" and "tool_call_id" in message:
        read["tool_call_id"] = message["tool_call_id"]
    if role == "developer":
        read["tools"] = message.get("tools")
    if role == "assistant":
        if message.get("tool_calls"):
            read["tool_calls"] = [_with_object_arguments(call) for call in message["tool_calls"]]
        if message.get("reasoning") is not None:
            read["reasoning"] = read["reasoning_content"] = message["reasoning"]
    return read


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            arguments = {}
    return {
        **call,
        "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}},
    }


def _name_and_arguments(call: Any) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, dict) else None
    name, arguments = (
        (function.get("name"), function.get("arguments"))
        if isinstance(function, dict)
        else (None, None)
    )
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise Reject(
            "tool_calls_without_ids", "a call has no name, or no arguments as the model wrote them"
        )
    return name, arguments
