"""OpenAI pairs: one chat completion per row, as logged by gateways.

    {"request": {"model": "deepseek-r1", "messages": [...]}, "response": {"choices": [...]},
     "timestamp": 1719830400}

A streamed response, in `response` or `chunks`, is its event stream's text or a list of its chunks.
Token ids are included if requests set `return_token_ids`.
"""

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats.fields import first
from outrider.data.formats.openai import body, exchanges, gateway_fields
from outrider.data.formats.rows import Sample, parse_row


def recognizes(sample: Sample) -> bool:
    return any(
        isinstance(row.get("request"), dict | str) and ("response" in row or "chunks" in row)
        for row in sample.rows
    )


def parse(record: Record) -> list[Exchange | Reject]:
    row = parse_row(record.payload)
    request = body(row, "request")
    response = first(body(row, "response"), body(row, "chunks"))
    if request is None or response is None:
        raise Reject("incomplete_pair", f"no {'request' if request is None else 'response'}")
    return exchanges(request, response, record.place, **gateway_fields(row))
