"""Streams in MLflow's traces: all chunks are read, a part of them is not."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges, write_log

ANSWER = {"role": "assistant", "content": "Yes."}
ASKED = {"model": "r1", "messages": [{"role": "user", "content": "Is it?"}], "temperature": 0.5}


def span_with(deltas: list[dict[str, str]], first: int = 0) -> dict[str, Any]:
    """A streamed call's span, whose outputs have the content alone, as MLflow joins them."""
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    choices[-1]["finish_reason"] = "stop"
    chunks = [{"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
    events = [
        {
            "name": f"mlflow.chunk.item.{number}",
            "attributes": {"mlflow.chunk.value": json.dumps(chunk)},
        }
        for number, chunk in enumerate(chunks, start=first)
    ]
    joined = {
        "object": "chat.completion",
        "choices": [{"message": ANSWER, "finish_reason": "stop"}],
    }
    attributes = {
        "mlflow.spanType": '"CHAT_MODEL"',
        "mlflow.spanInputs": json.dumps(ASKED),
        "mlflow.spanOutputs": json.dumps(joined),
    }
    return {"name": "Completions", "attributes": attributes, "events": events}


def read_span(folder: Path, span: dict[str, Any]) -> Exchange:
    trace = {"info": {"trace_id": "tr-1"}, "data": {"spans": [span]}}
    (exchange,) = read_exchanges(log_files(str(write_log(folder / "traces.jsonl", [trace]))))
    assert isinstance(exchange, Exchange)
    return exchange


DELTAS = [{"reasoning": "It "}, {"reasoning": "is."}, {"content": "Ye"}, {"content": "s."}]


@pytest.mark.parametrize("seed", range(3))
def test_the_chunks_have_the_reasoning_in_any_order_of_events(tmp_path: Path, seed: int) -> None:
    span = span_with(DELTAS)
    random.Random(seed).shuffle(span["events"])
    exchange = read_span(tmp_path, span)
    assert (exchange.reasoning, exchange.content) == ("It is.", "Yes.")


def test_chunks_without_the_first_are_not_read(tmp_path: Path) -> None:
    exchange = read_span(tmp_path, span_with(DELTAS[1:], first=1))
    assert (exchange.reasoning, exchange.content) == (None, "Yes.")


def test_events_of_other_streams_are_not_read(tmp_path: Path) -> None:
    span = span_with(DELTAS)
    span["events"][1]["attributes"]["mlflow.chunk.value"] = '"a"'
    assert read_span(tmp_path, span).content == "Yes."
