"""LiteLLM's StandardLoggingPayload, one per file or as JSON lines.

    {"id": "chatcmpl-1", "call_type": "acompletion", "status": "success",
     "model": "hosted_vllm/deepseek-r1", "startTime": 1719830400.1, "messages": [...],
     "response": {"choices": [{"message": {"content": "...", "reasoning_content": "..."}, ...}]},
     "model_parameters": {"temperature": 0.6},
     "metadata": {"user_api_key_team_alias": "acme", "requester_metadata": {...}}, ...}

To get it, use a logging callback to files or a bucket (S3, GCS and Azure get one file per call).
Token ids are lost. Sampling is read from `model_parameters`, the session from `session_id` in the
client's metadata or from `user`, and the tenant from the key's team, organization or alias.
Failures, cache hits, redacted messages and calls without a response are rejected.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats.fields import first, take, take_names, take_text, take_time
from outrider.data.formats.openai import body, exchanges
from outrider.data.formats.rows import Sample, parse_row

TENANTS = tuple(f"user_api_key_{key}" for key in ("team_alias", "team_id", "org_id", "alias"))
"""Metadata keys that name the tenant, in order of preference."""


def recognizes(sample: Sample) -> bool:
    # Every payload has these keys, even if the call failed.
    keys = {"call_type", "model_parameters", "startTime", "messages", "response", "metadata"}
    return any(_payload(row).keys() >= keys for row in sample.rows)


def _payload(row: dict[str, Any]) -> dict[str, Any]:
    # A custom callback may log its whole `kwargs`, which contain the payload.
    wrappers = ("standard_logging_object", "standard_logging_payload")
    return next((row[key] for key in wrappers if isinstance(row.get(key), dict)), row)


def parse(record: Record) -> list[Exchange | Reject]:
    row = _payload(parse_row(record.payload))
    call = take(row, "call_type", str, "row")
    chats = ("completion", "acompletion", "completion_with_retries", "router_completion")
    if call and call not in chats:
        raise Reject("not_a_generation", "call_type is not a chat completion")
    if take(row, "status", str, "row") == "failure":
        raise Reject("error_response", "status is failure")
    # The response was generated for an earlier request, which has its own row.
    if row.get("cache_hit") in (True, "True", "true"):
        raise Reject("cache_hit")
    if _is_redacted(row.get("messages")) or _is_redacted(row.get("response")):
        raise Reject("redacted", "turn_off_message_logging was on")
    response = body(row, "response")
    if not response:
        raise Reject("prompts_only", "the call succeeded, but its response was not logged")
    counted = take(row, "completion_tokens", int, "row")
    usage = {"completion_tokens": counted} if counted else {}
    messages = take(row, "messages", list, "row")
    parameters = take(row, "model_parameters", dict, "row") or {}
    extra = take(parameters, "extra_body", dict, "model_parameters") or {}
    metadata = take(row, "metadata", dict, "row") or {}
    client = take(metadata, "requester_metadata", dict, "metadata") or {}
    client = {**(take(metadata, "spend_logs_metadata", dict, "metadata") or {}), **client}
    request = {
        **extra,
        **parameters,
        "messages": messages,
        "metadata": client,
        "model": row.get("model"),
        "user": first(parameters.get("user"), row.get("end_user") or None),
    }
    return exchanges(
        request,
        {"usage": usage, **response},
        record.place,
        **take_names(metadata, {"tenant": TENANTS}, "metadata"),
        route=take_text(row, "model_group", "row"),
        time=take_time(row, "startTime", "row"),
    )


def _is_redacted(value: Any) -> bool:
    """Whether a text, message or choice contains LiteLLM's redaction notice."""
    if isinstance(value, dict):
        keys = ("content", "text", "message", "reasoning_content", "choices")
        value = [value.get(key) for key in keys]
    if isinstance(value, list):
        return any(map(_is_redacted, value[:100]))
    return value == "redacted-by-litellm"
