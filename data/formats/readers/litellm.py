"""LiteLLM's StandardLoggingPayload and spend logs: one per file, JSON lines or a table.

    {"id": "chatcmpl-1", "call_type": "acompletion", "status": "success",
     "model": "hosted_vllm/deepseek-r1", "startTime": 1719830400.1, "messages": [...],
     "response": {"choices": [{"message": {"content": "...", "reasoning_content": "..."}, ...}]},
     "model_parameters": {"temperature": 0.6},
     "metadata": {"user_api_key_team_alias": "acme", "requester_metadata": {...}}, ...}

To get it, use a logging callback to files or a bucket (S3, GCS and Azure get one file per call).
Token ids are lost. Sampling is read from `model_parameters`, the session from `session_id` in the
client's metadata or from `litellm_session_id`, the user from `user`, and the tenant from the key's
team, organization or alias. A UUID that only one call has is that call's, and no session.

Rows of the table LiteLLM_SpendLogs are read if `store_prompts_in_spend_logs` was on: the request is
in `proxy_server_request`. LiteLLM cuts strings above 2,048 characters there, and such rows are
rejected as `truncated`; set MAX_STRING_LENGTH_PROMPT_IN_DB to keep them whole. Failures and answers
from LiteLLM's cache are set aside; redacted messages and calls without a response are rejected.
The table's columns are those of schema.prisma at commit 029f645f, the payload's keys those of
litellm/types/utils.py (`StandardLoggingPayload`).
"""

import re
from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.cut_texts import check_complete, check_whole
from outrider.data.formats.calls.openai import body, exchanges
from outrider.data.formats.fields import (
    first_value,
    take,
    take_count,
    take_json,
    take_json_or_text,
    take_mapping,
    take_names,
    take_text,
    take_time,
)
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.other_rows import is_served
from outrider.data.formats.rows.paths import find_field
from outrider.data.formats.rows.row_fields import seconds_of
from outrider.data.formats.wrappers import open_row

GUARDRAILS = "guardrail_information"
"""Key of what LiteLLM's guardrails did; spend logs have it in their metadata."""

AFTER_THE_CALL = frozenset({"post_call", "logging_only"})
"""Modes in which a guardrail changes texts that the engine has seen or written."""

TENANTS = tuple(f"user_api_key_{key}" for key in ("team_alias", "team_id", "org_id", "alias"))
"""Metadata keys that name the tenant, in order of preference."""


_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")

CHATS = ("completion", "acompletion", "completion_with_retries", "router_completion")
"""Values of `call_type` for chat completions."""

RESPONSES = ("responses", "aresponses")
"""Values of `call_type` for the Responses API, whose input is in `messages`."""

REFUSED = ("error_class", "attributes.error_class")
"""Paths of the error's class in what its Datadog logger writes of a refused request."""

NOT_STORED = "set store_prompts_in_spend_logs: true in LiteLLM"

ADMIN = "default_user_id"
"""The user of keys that were made with the master key (litellm_proxy_admin_name, proxy/_types.py):
whoever sends requests with these keys."""

IN_PAYLOAD = {"call_type", "model_parameters", "startTime", "messages", "response", "metadata"}
IN_SPEND_LOG = {"call_type", "proxy_server_request", "startTime", "response"}
"""Keys of every payload and spend log, also of failed calls."""


OF_CLIENT = ("session_id", "conversation_id", "thread_id", "chat_id")
"""Names of a conversation in the metadata that a client sends along."""


def recognizes(sample: FileSample) -> bool:
    return any(row.keys() >= IN_PAYLOAD or row.keys() >= IN_SPEND_LOG for row in sample.rows)


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    call = take(row, "call_type", str, "row")
    of_responses = call in RESPONSES and is_served(object_of(row.get("response")))
    if call and call not in CHATS and not of_responses:
        raise Reject("not_a_generation", "call_type is not a chat completion")
    if take(row, "status", str, "row") == "failure":
        raise Reject("error_response", "status is failure")
    if any(find_field(row, path) for path in REFUSED):
        raise Reject("error_response", "LiteLLM's proxy refused the request")
    check_generated(row)
    for key in ("messages", "response", "proxy_server_request"):
        logged = take_json_or_text(row, key, "row")
        if _is_redacted(logged):
            raise Reject("redacted", "turn_off_message_logging was on")
        check_whole(logged, f"row.{key}")
    _check_guardrails(row)
    response = body(row, "response")
    if not response and not (take_json(row, "messages", "row") or row.get("prompt")):
        is_stored = take_mapping(row, "proxy_server_request", "row")
        if not is_stored:
            check_complete(row)
            raise Reject("content_not_logged", NOT_STORED)
    if not response:
        raise Reject("prompts_only", "the call succeeded, but its response was not logged")
    metadata = take_mapping(row, "metadata", "row")
    counted = take_count(row, "completion_tokens")
    usage = {"completion_tokens": counted} if counted else {}
    log_id = first_value(take_text(row, "request_id", "row"), take_text(row, "id", "row"))
    began = take_time(row, "startTime")
    session = _session_of_client(metadata)
    session = session or take_text(row, "session_id", "row") or take_text(row, "trace_id", "row")
    # The client's `litellm_session_id`, or else a UUID of each call (litellm_logging.py,
    # `_get_standard_logging_payload_trace_id`). Clients also send UUIDs, each with several calls.
    is_drawn = session is not None and _UUID.fullmatch(session) is not None
    request = _request(row, metadata)
    return exchanges(
        {**request, "input": request["messages"]} if of_responses else request,
        {"usage": usage, **response},
        record.place,
        **take_names(metadata, {"tenant": TENANTS}, "metadata"),
        session=None if is_drawn else session,
        trace=session if is_drawn else None,
        route=take_text(row, "model_group", "row"),
        time=began,
        seconds=seconds_of(row, began),
        log_id=log_id,
    )


def _session_of_client(metadata: dict[str, Any]) -> str | None:
    """Returns the conversation that the client's own metadata names."""
    sent = take_mapping(metadata, "requester_metadata", "metadata") or {}
    texts = (take_text(sent, name, "requester_metadata") for name in OF_CLIENT)
    return next(filter(None, texts), None)


def _check_guardrails(row: dict[str, Any]) -> None:
    """Rejects a row whose texts a guardrail masked after the engine had seen or written them.

    What is masked before the call is what the engine got (proxy/guardrails, Presidio's modes).
    """
    metadata = take_mapping(row, "metadata", "row")
    names = (GUARDRAILS, f"standard_logging_{GUARDRAILS}")
    in_metadata = (metadata[name] for name in names if metadata.get(name))
    listed = row.get(GUARDRAILS) or next(in_metadata, ())
    for applied in listed if isinstance(listed, list) else [listed]:
        if isinstance(applied, dict) and applied.get("masked_entity_count"):
            modes = applied.get("guardrail_mode")
            modes = modes if isinstance(modes, list) else [modes]
            if after := sorted(AFTER_THE_CALL.intersection(map(str, modes))):
                raise Reject("redacted", f"a guardrail in mode {after[0]} masked the texts")


def _request(row: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns the client's request, with the fields that LiteLLM keeps apart from it."""
    parameters = take_mapping(row, "model_parameters", "row")
    sent = take_mapping(row, "proxy_server_request", "row")
    # Payloads have the HTTP request around the body, spend logs only the body.
    sent = take_mapping(sent, "body", "proxy_server_request") or sent
    extra = take(parameters, "extra_body", dict, "model_parameters") or {}
    client = take_mapping(metadata, "requester_metadata", "metadata")
    labels = take_mapping(metadata, "spend_logs_metadata", "metadata")
    # Spend logs have `{}` for messages unless LiteLLM is set to store prompts.
    messages = first_value(sent.get("messages"), take_json(row, "messages", "row") or None)
    if messages is None and "prompt" not in sent:
        raise Reject("content_not_logged", NOT_STORED)
    own_metadata = take_mapping(sent, "metadata", "proxy_server_request")
    users = (parameters.get("user"), sent.get("user"), row.get("end_user"), row.get("user"))
    return {
        **sent,
        **extra,
        **parameters,
        "messages": messages,
        "metadata": {**own_metadata, **labels, **client},
        "model": row.get("model"),
        "user": next((user for user in users if user and user != ADMIN), None),
    }


def _is_redacted(value: Any) -> bool:
    """Whether a text, message or choice contains LiteLLM's redaction notice."""
    if isinstance(value, dict):
        keys = ("content", "text", "message", "reasoning_content", "choices")
        value = [value.get(key) for key in keys]
    if isinstance(value, list):
        return any(map(_is_redacted, value[:100]))
    return value in ("redacted-by-litellm", "REDACTED_BY_LITELM")
