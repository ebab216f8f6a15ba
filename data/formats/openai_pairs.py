"""OpenAI pairs: one chat completion per row, as logged by gateways.

    {"request": {"model": "deepseek-r1", "messages": [...]}, "response": {"choices": [...]},
     "timestamp": 1719830400}

A streamed response, in `response` or `chunks`, is its event stream's text or a list of its chunks.
Token ids are included if requests set `return_token_ids`. Where request and response are those of
HTTP, with `headers` and a `body`, the bodies are read.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats.fields import first
from outrider.data.formats.openai import body, exchanges, gateway_fields
from outrider.data.formats.other_rows import check_completion
from outrider.data.formats.rows import Sample, parse_row


def recognizes(sample: Sample) -> bool:
    return any(
        isinstance(row.get("request"), dict | str) and ("response" in row or "chunks" in row)
        for row in sample.rows
    )


def parse(record: Record) -> list[Exchange | Reject]:
    row = parse_row(record.payload)
    check_completion(row, row.get("request"), first(row.get("response"), row.get("chunks")))
    request = _side(row, "request")
    response = first(_side(row, "response"), body(row, "chunks"))
    check_completion(row, request, response)
    if request is None or response is None:
        raise Reject("incomplete_pair", f"no {'request' if request is None else 'response'}")
    return exchanges(request, response, record.place, **gateway_fields(row))


def _side(row: dict[str, Any], key: str) -> dict[str, Any] | None:
    """Returns a request or response, or the body of an HTTP message."""
    side = body(row, key)
    if side is None or "body" not in side or side.keys() & {"messages", "prompt", "choices"}:
        return side
    return body(side, "body")
