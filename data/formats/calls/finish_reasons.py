"""Names that producers give to the end of a response.

    finish_reason("eos_token")      # "stop"

Engines and gateways write OpenAI's `stop` and `length`, or their own API's names. Names are
compared in lower case, without an enumeration's prefix (`FinishReason.STOP`).
"""

from typing import Any

from outrider.data.exchange import Reject

STOP_STRING = "stop_sequence"
"""The response ended with one of the request's stop strings: TGI, Anthropic, Bedrock, Cohere."""

ASSUMED = "assumed_stop"
"""Written by readers: no end was logged, and the response did not reach its limit."""

FINISHED = frozenset(
    {
        ASSUMED,
        *("stop", "tool_calls", "function_call"),  # OpenAI, vLLM, SGLang, Gemini (STOP), Ollama
        *("eos_token", STOP_STRING),  # TGI 3, watsonx, spring-ai
        *("end_turn", "tool_use"),  # Anthropic, Bedrock Converse
        *("complete", "tool_call"),  # Cohere, OpenTelemetry
        *("finish", "eos", "eos_found"),  # Titan, Together, llama.cpp
    }
)
"""The model ended the response."""

CUT = frozenset(
    {
        *("length", "max_tokens"),  # OpenAI, TGI; Anthropic, Gemini, Bedrock, Cohere
        *("model_length", "limit", "token_limit"),  # Mistral, llama.cpp, watsonx
        *("max_output_tokens", "model_context_window_exceeded"),  # Responses, Anthropic
    }
)
"""The response reached its limit on tokens."""

ENDS = FINISHED | CUT


def finish_reason(logged: Any) -> str:
    """Returns `stop` or `length`; tool calls count as `stop`.

    Raises:
        Reject: If the response did not end, or the end is unknown.
    """
    name = normalize_reason(logged)
    if name == "cut":
        raise Reject("stream_cut", "the stream ended without a finish_reason")
    if name in FINISHED:
        return "stop"
    if name in CUT:
        return "length"
    raise Reject("not_finished", "finish_reason is neither stop nor length")


def end_by_limit(limit: float | None, used: int | None) -> str | dict[str, Any]:
    """Returns the end of a response without a finish reason, from its limit and count of tokens.

    It is `length` or `ASSUMED`. Without a count, the limit is kept: the response's tokens, which a
    reader does not have, decide (`token_limit`).
    """
    if limit is None:
        return ASSUMED
    if used is None:
        return {"type": ASSUMED, "limit": limit}
    return "length" if used >= limit else ASSUMED


def token_limit(logged: Any) -> float | None:
    """Returns the limit that `end_by_limit` kept in a finish reason."""
    if not isinstance(logged, dict) or logged.get("type") != ASSUMED:
        return None
    limit = logged.get("limit")
    return limit if isinstance(limit, float) else None


def normalize_reason(logged: Any) -> str | None:
    """Returns a finish reason in lower case, with `_` between words."""
    if isinstance(logged, dict):  # SGLang: {"type": "stop", "matched": 1}
        logged = logged.get("type")
    if not isinstance(logged, str):
        return None
    name = logged.rpartition(".")[2].lower().replace("-", "_").replace(" ", "_")
    return name.removeprefix("finish_reason_")
