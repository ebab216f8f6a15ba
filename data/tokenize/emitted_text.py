"""Reconstructs the engine's output text from a logged response.

R1's template opens `<think>\\n`; the reasoning follows, then `\\n</think>\\n\\n` and the content.
vLLM's parser for R1 splits at `</think>` and keeps all whitespace (reasoning "abc\\n", content
"\\n\\nans"); others strip it. Logged whitespace is kept; where it was stripped, R1's is added.
If several readings are possible and the engine's token count was logged, the count decides.

    texts, only_if_counted = readings(exchange, "thinking")
    endings(exchange)        # [("", True)]: the text, then only the EOS token
"""

from typing import Literal

from outrider.data.exchange import Exchange

THINK, END_THINK = "<think>", "</think>"

Opening = Literal["thinking", "prefilled", "plain"]
"""Point in the assistant turn at which the prompt ends.

`thinking`: inside `<think>`, which R1's template or a prefilled turn opens. `prefilled`: inside an
answer that the request began. `plain`: at the start; the model opens `<think>` itself."""


def opening_of(exchange: Exchange, prompt_text: str) -> Opening:
    """Returns the point in the assistant turn at which the prompt ends."""
    if exchange.template_arguments.get("continue_final_message") and exchange.messages:
        _, opened, inside = str(exchange.messages[-1].get("content") or "").rpartition(THINK)
        return "thinking" if opened and END_THINK not in inside else "prefilled"
    return "thinking" if prompt_text.rstrip().endswith(THINK) else "plain"


def readings(exchange: Exchange, opening: Opening) -> tuple[list[str], bool]:
    """Returns the texts that the engine may have produced, most likely first.

    The second value is True if only a token count can confirm them.
    """
    reasoning = exchange.reasoning
    content = exchange.content or ""
    if exchange.completion_is_raw:
        return [content], False
    if opening == "prefilled":
        # Without </think>, parsers such as vLLM's treat the whole response as reasoning.
        closed = reasoning + END_THINK if reasoning and content else reasoning or ""
        return [closed + content], False
    # A gateway repeated the template's <think>, in the reasoning or in the content.
    if opening == "thinking":
        reasoning = _without_opening(reasoning) if reasoning else reasoning
        content = _without_opening(content) if END_THINK in content else content
    if reasoning:
        return _with_reasoning(reasoning, content, opening, exchange.finish_reason)
    if END_THINK in content:
        return [content], False
    if opening == "plain" or exchange.finish_reason == "length":
        return [content], False
    # Only content was logged. If the logged reasoning is empty, R1 did not think; if it is None,
    # the log may have dropped the reasoning.
    return ["\n" + END_THINK + _open(content), END_THINK + content, content], reasoning is None or (
        exchange.completion_tokens is not None
    )


def _with_reasoning(
    reasoning: str, content: str, opening: Opening, finish_reason: str
) -> tuple[list[str], bool]:
    """Returns the readings of a response with reasoning, as `readings`."""
    if opening == "plain" and not reasoning.startswith(THINK):
        reasoning = THINK + ("" if reasoning.startswith("\n") else "\n") + reasoning
    if content:
        # The two are equal if no whitespace was stripped on either side.
        both = (_close(reasoning) + _open(content), reasoning + END_THINK + content)
        return [*dict.fromkeys(both)], False
    if finish_reason == "length":
        return [reasoning, _close(reasoning)], False
    # A gateway may report a stream that was cut as finished (LiteLLM does), so nothing shows that
    # the model wrote </think> and the EOS token, except the engine's count of them.
    return [_close(reasoning), reasoning], True


def _without_opening(text: str) -> str:
    return text.removeprefix(THINK).removeprefix("\n") if text.startswith(THINK) else text


def endings(exchange: Exchange) -> list[tuple[str, bool]]:
    """Returns possible endings (stop string, has EOS token), most likely first.

    Logged texts lack the stop string. If the request has stop strings and the log does not record
    how the response ended, only a token count can decide; without a count, nothing is appended.
    A response without any logged end ends with the EOS token, unless the count shows that it lacks
    one.
    """
    if exchange.finish_reason == "length":
        return [("", False)]
    if isinstance(exchange.stop_reason, str):
        return [("", False), (exchange.stop_reason, False)]
    if exchange.stop_strings and exchange.stop_reason is None:
        ended = [("", True), *((string, False) for string in exchange.stop_strings)]
        return [("", False)] if exchange.completion_tokens is None else [*ended, ("", False)]
    return [("", True), ("", False)] if exchange.end_is_assumed else [("", True)]


def _close(reasoning: str) -> str:
    return reasoning + ("" if reasoning[-1].isspace() else "\n") + END_THINK


def _open(content: str) -> str:
    return content if content[:1].isspace() else "\n\n" + content
