"""Reconstructs the text that the engine emitted for a response logged as text.

R1's template opens `<think>\\n`; the reasoning follows, then `\\n</think>\\n\\n` and the content.
vLLM's parser for R1 cuts at `</think>` and keeps every character on both sides (reasoning "abc\\n",
content "\\n\\nans"); others strip them. A side with white space at the cut is used unchanged; a
stripped one gets R1's white space. Where several readings are possible and the engine's token count
was logged, the count decides.

    texts, only_if_counted = readings(exchange, "thinking")
    endings(exchange)        # [("", True)]: nothing after the text but the end token
"""

from typing import Literal

from outrider.data.exchange import Exchange

THINK, END_THINK = "<think>", "</think>"

Opening = Literal["thinking", "prefilled", "plain"]
"""Position in a response at which the prompt ends.

`thinking`: inside `<think>`, which R1's template or a prefilled turn opens. `prefilled`: inside an
answer that the request began. `plain`: at the start; the model opens `<think>` itself."""


def opening_of(exchange: Exchange, prompt_text: str) -> Opening:
    """Returns where the prompt ends."""
    if exchange.template_arguments.get("continue_final_message") and exchange.messages:
        _, opened, inside = str(exchange.messages[-1].get("content") or "").rpartition(THINK)
        return "thinking" if opened and END_THINK not in inside else "prefilled"
    return "thinking" if prompt_text.rstrip().endswith(THINK) else "plain"


def readings(exchange: Exchange, opening: Opening) -> tuple[list[str], bool]:
    """Texts that the engine may have produced, most likely first.

    Also returns whether only a token count can confirm them.
    """
    reasoning, content = exchange.reasoning, exchange.content or ""
    if exchange.completion_is_raw:
        return [content], False
    if opening == "prefilled":
        # A parser that sees no </think> treats the whole response as reasoning (vLLM's does).
        return [
            reasoning + END_THINK + content if reasoning and content else (reasoning or content)
        ], False
    if reasoning:
        if opening == "plain":
            reasoning = THINK + ("" if reasoning.startswith("\n") else "\n") + reasoning
        if not content:
            cut_while_thinking = exchange.finish_reason == "length"
            closed = _close(reasoning)
            return ([reasoning, closed] if cut_while_thinking else [closed, reasoning]), False
        # Both are the same where both sides have their white space.
        return [
            *dict.fromkeys((_close(reasoning) + _open(content), reasoning + END_THINK + content))
        ], False
    if END_THINK in content:
        if opening == "thinking" and content.startswith(THINK):
            # A gateway repeated the opening of the template.
            content = content.removeprefix(THINK).removeprefix("\n")
        return [content], False
    if opening == "plain" or exchange.finish_reason == "length":
        return [content], False
    # Content alone: with empty reasoning, R1 did not think; with none logged, the log kept only the
    # content.
    return ["\n" + END_THINK + _open(content), END_THINK + content, content], reasoning is None or (
        exchange.completion_tokens is not None
    )


def endings(exchange: Exchange) -> list[tuple[str, bool]]:
    """What may follow the text, most likely first: a stop string, and whether the end token does.

    A stop string is cut out of the logged text. Where a request named stop strings and the log does
    not have what ended the response, only a token count can decide; without one, nothing is
    assumed.
    """
    if exchange.finish_reason == "length":
        return [("", False)]
    if isinstance(exchange.stop_reason, str):
        return [("", False), (exchange.stop_reason, False)]
    if exchange.stop_strings and exchange.stop_reason is None:
        ended = [("", True), *((string, False) for string in exchange.stop_strings)]
        return [("", False)] if exchange.completion_tokens is None else [*ended, ("", False)]
    return [("", True)]


def _close(reasoning: str) -> str:
    return reasoning + ("" if reasoning[-1].isspace() else "\n") + END_THINK


def _open(content: str) -> str:
    return content if content[:1].isspace() else "\n\n" + content
