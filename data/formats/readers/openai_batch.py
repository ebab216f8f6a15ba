"""OpenAI Batch: input and output files, joined by `custom_id`.

    {"custom_id": "a-1", "method": "POST", "url": "/v1/chat/completions",
     "body": {"model": "...", "messages": [...]}}
    {"id": "batch_req_1", "custom_id": "a-1", "error": null,
     "response": {"status_code": 200, "body": {"choices": [...]}}}

`traffic.path` names both files (and the error file) in any order. vLLM's `run-batch` writes the
same format. Request times are not logged. Runs may number their requests alike, so rows are joined
by `custom_id` and model (data/formats/rows/join.py).
"""

import functools

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample, Row
from outrider.data.formats.calls.openai import body, exchanges
from outrider.data.formats.fields import take, take_text
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.join import joined_records, model_of
from outrider.data.formats.rows.other_rows import LOG_CHATS, generates
from outrider.data.formats.wrappers import open_row

"""URL suffix of chat and text completions."""


def recognizes(sample: FileSample) -> bool:
    return any("custom_id" in row and ("body" in row or "response" in row) for row in sample.rows)


def _member_of(row: Row | None) -> tuple[str, str, str | None]:
    parsed = open_row(row)
    key = take_text(parsed, "custom_id", "row")
    if key is None:
        raise Reject("no_id", "no custom_id")
    side = "request" if "body" in parsed else "response"
    holder = parsed if side == "request" else object_of(parsed.get("response")) or {}
    # Fireworks writes the completion itself.
    side_body = object_of(holder.get("body")) or holder
    return key, side, model_of(side_body)


records = functools.partial(joined_records, member_of=_member_of)


def parse(record: Record) -> list[Exchange | Reject]:
    request_row, (response_row,) = record.payload
    row = open_row(response_row)
    response = take(row, "response", dict, "row") or {}
    status = take(response, "status_code", int, "response")
    if row.get("error") is not None or status not in (None, 200):
        raise Reject("error_response")
    if request_row is None:
        raise Reject("unmatched_response", "no request with this custom_id")
    request_row = open_row(request_row)
    url = take(request_row, "url", str, "row")
    if url and not generates(url):
        raise Reject("not_a_generation", f"the url is another endpoint's; {LOG_CHATS}")
    request = body(request_row, "body")
    # Fireworks writes the completion itself.
    answer = response if "choices" in response else body(response, "body")
    if request is None or answer is None:
        raise Reject(
            "incomplete_pair", f"no body in the {'request' if request is None else 'response'}"
        )
    return exchanges(request, answer, record.place, log_id=take_text(row, "id", "row"))
