"""Traces of LLM calls that have messages, but not the API's request and response.

    {"type": "llm", "input": [{"role": "user", "content": "..."}],
     "output": [{"role": "assistant", "content": "..."}],
     "metadata": {"model": "deepseek-r1", "temperature": 0.6}, "metrics": {"completion_tokens": 93}}

Exports of LangSmith, Braintrust, Datadog LLM Observability, PostHog, Lunary, Humanloop, LangWatch,
Bifrost, Arize and others, under any of their names: messages are recognized by their roles,
parameters, counts and ends by their names (message_sides.py). Spans of other kinds
than calls are set aside. Most have no finish reason, so that an answer that used all of its
`max_tokens` counts as truncated, and any other as finished. Token ids are lost, and often the
reasoning (`reasoning_missing`); a gateway's log of requests and responses has more.
"""

from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.cut_texts import check_whole
from outrider.data.formats.calls.finish_reasons import end_by_limit
from outrider.data.formats.calls.message_parts import openai_messages
from outrider.data.formats.calls.message_sides import (
    PROMPTFOO,
    MessageSides,
    has_message,
    logged_about,
    message_sides,
    sent_parameters,
)
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.calls.usual_texts import END_THINK
from outrider.data.formats.fields import take_count
from outrider.data.formats.rows.other_rows import FAILURES, check_access_row, check_status
from outrider.data.formats.sides import objects_in
from outrider.data.formats.wrappers import check_call, fields_of, open_row

THINK = "<think>"

JOINED_THOUGHT = "Thinking: "
"""How an output begins in which promptfoo has put reasoning before the answer
(src/providers/openai/chat.ts)."""

TOTALS = ("messages_total", "total_messages")
"""Names of the number of messages that were sent, of which a logger with a limit keeps some. Counts
under other names (`message_count`) may be of the conversation."""

FAILED = ("error", "exception", "error_message", "error.type", "$ai_is_error")
"""Keys that are set if a call failed."""


def recognizes(sample: FileSample) -> bool:
    return any(message_sides(row) is not None for row in sample.rows)


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    sides = message_sides(row)
    for holder in sides.holders if sides else [row]:
        check_call(holder)
    if sides is None:
        if any(map(_has_failed, [row, *objects_in(row)])):
            raise Reject("error_response", "the call failed")
        check_access_row(row)
        check_whole(row, "row")
        if not has_message(row):
            if logged_about(row)["count"]:
                raise Reject("content_not_logged", "a call's counts without its texts")
            raise Reject("not_a_generation", "a row with neither messages nor an answer")
        raise Reject("incomplete_pair", "no messages, or no answer with the assistant's role")
    return outcomes(row, sides, record.place)


def outcomes(
    row: dict[str, Any], sides: MessageSides, place: Place, **known: Any
) -> list[Exchange | Reject]:
    """Returns the exchanges of a row that has messages; values in `known` override its fields."""
    check_generated(row)
    _check_sent(row)
    _check_all_messages(row, sides)
    if any(map(_has_failed, [row, *sides.holders])):
        raise Reject("error_response", "the call failed")
    for holder in [row, *sides.holders]:
        check_status(holder)
    about = logged_about(row)
    request = request_of(row, sides.asked, about)
    response = response_of(sides.answers, about)
    logged = fields_of([row, *sides.holders])
    logged |= {name: value for name, value in known.items() if value is not None}
    return exchanges(request, response, place, **logged)


def request_of(
    row: dict[str, Any], asked: list[dict[str, Any]], about: dict[str, Any]
) -> dict[str, Any]:
    """Returns a row's request as the API has it; `about` is its `logged_about`."""
    return {
        **sent_parameters(row),
        "messages": openai_messages(asked, "the request's messages"),
        "model": about.get("model"),
    }


def response_of(answers: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """Returns a response as the API has it, with the end and the counts of `logged_about`."""
    for choice in answers:
        (choice["message"],) = openai_messages([choice["message"]], "the answer")
        if choice["finish_reason"] is None:
            choice["finish_reason"] = about["end"] or _assumed_end(choice["message"], about)
    usage = {"prompt_tokens": about["prompt_count"], "completion_tokens": about["count"]}
    return {"usage": usage, "choices": answers}


def _check_sent(row: dict[str, Any]) -> None:
    """Raises a `Reject` if the row's texts are not those that were sent and received."""
    prompt = row.get("prompt")
    template = prompt.get("template") if isinstance(prompt, dict) else None
    is_humanloop = isinstance(prompt, dict) and "version_id" in prompt
    if template and is_humanloop and "inputs" in row:
        raise Reject(
            "prompt_not_messages",
            "Humanloop's template, into which the inputs are filled, is not in the messages: log"
            " the endpoint's /v1/chat/completions",
        )
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if PROMPTFOO & row.keys() and str(output).startswith(JOINED_THOUGHT):
        raise Reject(
            "reasoning_missing",
            "promptfoo has joined reasoning and answer: set showThinking: false and log the"
            " endpoint's /v1/chat/completions",
        )


def _check_all_messages(row: dict[str, Any], sides: MessageSides) -> None:
    """Raises a `Reject` if a row says that there were more messages than it has."""
    present = len(sides.asked) + len(sides.answers)  # some count the answer
    for holder in [row, *sides.holders]:
        for name in TOTALS:
            total = take_count(holder, name)
            if total is not None and total > present:
                raise Reject(
                    "truncated", f"{name} is {total}, and the row has {len(sides.asked)} messages"
                )


def _assumed_end(message: dict[str, Any], about: dict[str, Any]) -> str | dict[str, Any]:
    """Returns how an answer without a finish reason ended; one within its reasoning was cut."""
    content = message.get("content")
    if isinstance(content, str) and content.lstrip().startswith(THINK) and END_THINK not in content:
        return "length"
    return end_by_limit(about["limit"], about["count"])


def _has_failed(holder: dict[str, Any]) -> bool:
    if isinstance(holder.get("error_info"), dict):  # Opik
        return True
    states = {str(holder.get(key)).lower() for key in ("status", "status_code")}  # Phoenix' table
    return any(holder.get(key) for key in FAILED) or not FAILURES.isdisjoint(states)
