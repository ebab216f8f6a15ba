"""Spans of MLflow's traces whose stream was logged chunk by chunk.

    {"attributes": {"mlflow.spanInputs": "{...}", "mlflow.spanOutputs": "{...}"},
     "events": [{"name": "mlflow.chunk.item.0", "attributes": {"mlflow.chunk.value": "{...}"}}]}

MLflow's autologging joins a stream's chunks and keeps only their content (mlflow/openai/autolog.py,
`_reconstruct_completion_from_stream`): the reasoning is in the chunks alone.
"""

from typing import Any

from outrider.data.formats.rows.embedded import object_of

CHUNK_NAME = "mlflow.chunk.item."

CHUNK = "mlflow.chunk.value"

OUTPUTS = "mlflow.spanOutputs"


def with_chunks(span: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a span with its chunks in place of its outputs; None for any other row.

    OpenTelemetry keeps the last 128 events of a span (OTEL_SPAN_EVENT_COUNT_LIMIT), so the chunks
    of a longer stream lack its beginning. Those are not read.
    """
    attributes = span.get("attributes")
    events = span.get("events")
    if not isinstance(attributes, dict) or not isinstance(events, list):
        return None
    if OUTPUTS not in attributes:
        return None
    chunks = {event["name"]: _chunk_of(event) for event in events if _is_chunk(event)}
    numbered = [chunks.get(f"{CHUNK_NAME}{number}") for number in range(len(chunks))]
    if not numbered or None in numbered or not any(map(_is_last, numbered)):
        return None
    rest = {key: value for key, value in span.items() if key != "events"}
    return {**rest, "attributes": {**attributes, OUTPUTS: numbered}}


def _is_last(chunk: dict[str, Any] | None) -> bool:
    choices = chunk["choices"] if chunk is not None else None
    return isinstance(choices, list) and any(
        isinstance(choice, dict) and choice.get("finish_reason") for choice in choices
    )


def _is_chunk(event: Any) -> bool:
    name = event.get("name") if isinstance(event, dict) else None
    return isinstance(name, str) and name.startswith(CHUNK_NAME)


def _chunk_of(event: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a chat completion's chunk, which other streams do not have."""
    attributes = event.get("attributes")
    chunk = object_of(attributes.get(CHUNK)) if isinstance(attributes, dict) else None
    return chunk if chunk is not None and "choices" in chunk else None
