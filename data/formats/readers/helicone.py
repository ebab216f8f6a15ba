"""Helicone's export: one request per row, with `request_body` and `response_body`.

    {"request_body": {"messages": [...]}, "response_body": {"choices": [...]},
     "response_status": 200, "request_created_at": "2026-07-01 10:00:00",
     "request_properties": {"Helicone-Session-Id": "s-17", "tenant": "acme"}}

For a streamed response, Helicone keeps the chunks as `streamed_data` and a body built from them.
That body lacks the finish reason and all but the first chunk of the reasoning, so a streamed
response without its chunks is rejected as `stream_not_kept`.

Export with `npx @helicone/export --start-date D --include-body`. The CSV export has no responses.
Rows of Helicone's table in ClickHouse (request_response_rmt) are read, too.
The session is `Helicone-Session-Id`, else `request_user_id`; `tenant` and `route` are properties.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.cache_hits import check_generated
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.calls.openai_stream import chunks_of_sse, join_chunks
from outrider.data.formats.fields import (
    first_value,
    take,
    take_json,
    take_mapping,
    take_names,
    take_number,
    take_text,
    take_time,
)
from outrider.data.formats.rows.other_rows import LOG_CHATS, generates
from outrider.data.formats.rows.row_fields import seconds_of
from outrider.data.formats.wrappers import open_row

NOTICE = "helicone_message"
"""Key of what stands for a body that Helicone keeps in a bucket and has not read."""


def recognizes(sample: FileSample) -> bool:
    return any(
        "request_created_at" in row and ("request_body" in row or "request_id" in row)
        for row in sample.rows
    )


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    path = take(row, "request_path", str, "row")
    if path and not generates(path):
        raise Reject("not_a_generation", f"request_path is another endpoint's; {LOG_CHATS}")
    status = take_number(row, "response_status" if "response_status" in row else "status", "row")
    if status is not None and status != 200:
        raise Reject("error_response", f"response_status {status:.0f}")
    check_generated(row)
    request, response = _bodies(row)
    is_notice = "messages" not in request and NOTICE in request
    is_notice = is_notice or ("choices" not in response and NOTICE in response)
    if not request or not response or is_notice:
        raise Reject("content_not_logged", "no bodies; export with --include-body")
    if "messages" not in request and "prompt" in request:
        raise Reject("prompt_not_messages", "request_body.prompt")
    logged = {
        **take_mapping(row, "properties", "row"),
        **take_mapping(row, "request_properties", "row"),
    }
    properties = {key.lower(): value for key, value in logged.items()}
    fields = {"session": ("helicone-session-id",), "tenant": ("tenant",), "route": ("route",)}
    names = (take_text(row, key, "row") for key in ("request_model", "model"))
    began = take_time(row, "request_created_at")
    users = (take_text(row, key, "row") or None for key in ("request_user_id", "user_id"))
    user = first_value(*users, request.get("user"))
    return exchanges(
        {"model": first_value(*names), **request, "user": user},
        _whole(response),
        record.place,
        **take_names(properties, fields, "request_properties"),
        time=began,
        seconds=seconds_of(row, began),
        log_id=take_text(row, "request_id", "row"),
    )


def _bodies(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns request and response, in the row or as fetched from the bucket.

    Helicone's scripts for export write what they read from `signed_body_url` next to it
    (examples/export in Helicone's repository).
    """
    fetched = take_mapping(row, "signed_body_content", "row")
    if fetched:
        return (
            take_mapping(fetched, "request", "signed_body_content"),
            take_mapping(fetched, "response", "signed_body_content"),
        )
    return take_mapping(row, "request_body", "row"), take_mapping(row, "response_body", "row")


def _whole(response: dict[str, Any]) -> dict[str, Any]:
    """Returns the response as the engine sent it."""
    chunks = response.get("streamed_data")
    if isinstance(chunks, str):
        return join_chunks(chunks_of_sse(chunks))
    chunks = take_json(response, "streamed_data", "response_body")
    if chunks:
        # Helicone writes an empty object for the stream's [DONE].
        return join_chunks(
            chunk for chunk in take(response, "streamed_data", list, "response_body") if chunk
        )
    for choice in take(response, "choices", list, "response_body") or ():
        if isinstance(choice, dict) and "delta" in choice:
            raise Reject(
                "stream_not_kept",
                "response_body was built from a stream whose chunks were not exported",
            )
    return response
