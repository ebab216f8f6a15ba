"""Renders a conversation with the target's chat template, as the engine did.

Engines change a request's messages before rendering them. vLLM 0.32 (renderers/chat_utils.py and
hf.py) keeps only known keys, turns missing content into an empty string and a tool call's arguments
into an object, and renames `developer` to `system` for templates that do not support it.
`as_the_engine_reads` reproduces this. SGLang does the same, except that it joins text parts with
a space (formats/text_parts.py).

    render_prompt(tokenizer, messages, {"tools": [...]})         # up to the start of the response
"""

import json
import re
from typing import Any

import jinja2

from outrider.data.exchange import Reject


def render_prompt(tokenizer: Any, messages: list[dict[str, Any]], arguments: dict[str, Any]) -> str:
    """Renders the prompt; raises a `Reject` if the template refuses the conversation."""
    generation = {"add_generation_prompt": not arguments.get("continue_final_message")}
    # Templates raise these on conversations that they do not support. ArithmeticError: Jinja's
    # sandbox raises an OverflowError for a range of more than 100,000.
    mistakes = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
    try:
        template = tokenizer.get_chat_template(tools=arguments.get("tools"))
        knows_developer = re.search("""['"]developer['"]""", template) is not None
        read = as_the_engine_reads(messages, knows_developer)
        text = tokenizer.apply_chat_template(read, tokenize=False, **generation | arguments)
        text.encode()  # a lone surrogate in a tool cannot be tokenized
        return text
    except (jinja2.TemplateError, RecursionError, *mistakes) as error:
        # The error's message may quote customer text.
        raise Reject("template_refuses", type(error).__name__) from None


def as_the_engine_reads(
    messages: list[dict[str, Any]], knows_developer: bool = False
) -> list[dict[str, Any]]:
    """Returns text-only messages as vLLM passes them to templates."""
    read = [_read(message) for message in messages]
    if knows_developer or not any(message["role"] == "developer" for message in read):
        return read
    system = [
        message["content"]
        for message in read
        if message["role"] in ("developer", "system") and message["content"]
    ]
    conversation = [message for message in read if message["role"] not in ("developer", "system")]
    return [{"role": "system", "content": "\n\n".join(system)}, *conversation]


def _read(message: dict[str, Any]) -> dict[str, Any]:
    """Returns what vLLM passes to the template of a message: the keys that its role may have.

    A reasoning is under both of the names that templates use.
    """
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
