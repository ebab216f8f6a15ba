"""A quick look at logs whose exchanges span rows: streams, and halves in two files."""

import pytest

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig, TrafficConfig
from outrider.data.ingest.inspection import inspect
from tests.data.logs import write_log


def asked(number):
    messages = [{"role": "user", "content": f"question {number}"}]
    return {"id": f"r{number}", "model": "r1", "messages": messages, "user": f"u{number}"}


def answered(number):
    choice = {
        "index": 0,
        "message": {"reasoning": "so\n", "content": "yes"},
        "finish_reason": "stop",
    }
    return {
        "id": f"chatcmpl-r{number}",
        "model": "r1",
        "created": 1000 + number,
        "choices": [choice],
    }


def chunks(number, whole=True):
    """A stream of four chunks, or of three if it was cut."""
    deltas = [
        ({"reasoning": "so\n"}, None),
        ({"content": "\n\ny"}, None),
        ({"content": "es"}, None),
        ({}, "stop"),
    ]
    return [
        {
            "id": f"chatcmpl-r{number}",
            "object": "chat.completion.chunk",
            "model": "r1",
            "created": 1000 + number,
            "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        }
        for delta, reason in deltas[: 4 if whole else 3]
    ]


@pytest.fixture
def look(text_target, tmp_path):
    def inspected(rows_per_file=None, **traffic):
        config = TrafficConfig(path=str(tmp_path / "logs"), **traffic)
        return inspect(text_target, config, SplitConfig(), tmp_path / "scratch", rows_per_file)

    (tmp_path / "logs").mkdir()
    return inspected


@pytest.fixture
def logs(look, tmp_path):
    return tmp_path / "logs"


def test_the_first_rows_of_two_halves(look, logs):
    write_log(logs / "requests.jsonl", [asked(number) for number in range(40)])
    write_log(logs / "responses.jsonl", [answered(number) for number in reversed(range(40))])
    found = look(rows_per_file=30)
    # 0 to 29 are requests, 39 to 10 are responses: the other halves follow the rows that were read.
    assert (found["rows"], found["exchanges"], found["joined"]) == (60, 20, 20)
    assert found["rejects"] == {"beyond_first": 20} and found["problems"] == []
    assert set(found["reject_examples"]) == {"beyond_first"}
    whole = look()
    assert (whole["rows"], whole["exchanges"], whole["joined"], whole["rejects"]) == (
        80,
        40,
        40,
        {},
    )


def test_the_first_rows_of_streams(look, logs):
    write_log(logs / "requests.jsonl", [asked(number) for number in range(12)])
    streamed = [chunk for number in range(12) for chunk in chunks(number)]
    write_log(logs / "chunks.jsonl", streamed)
    found = look(rows_per_file=30)
    # All 12 requests are read, seven whole streams, and half of an eighth with its request.
    assert (found["rows"], found["exchanges"], found["joined"]) == (42, 7, 7 * 4 + 2)
    assert found["rejects"] == {"beyond_first": 5} and found["problems"] == []
    assert (look()["exchanges"], look(rows_per_file=1000)["rejects"]) == (12, {})


def test_a_named_format_reads_what_its_beginning_does_not_tell(look, logs):
    """A recorder's own rows precede the first row that a format recognizes."""
    noise = [{"recorder": "started", "number": number} for number in range(300)]
    write_log(
        logs / "log.jsonl",
        [*noise, *(row for number in range(6) for row in (asked(number), *chunks(number)))],
    )
    told = look()
    assert told["exchanges"] == 0 and told["rejects"] == {"unknown_format": 330}
    found = look(format="openai_joined")
    assert (found["exchanges"], found["rejects"], found["formats"]) == (
        6,
        {"no_id": 300},
        {"openai_joined": 330},
    )
    first = look(rows_per_file=303, format="openai_joined")
    assert (first["exchanges"], first["rejects"]) == (0, {"no_id": 300, "beyond_first": 1})


def test_a_format_named_wrongly_loses_nothing_in_silence(look, logs):
    write_log(logs / "requests.jsonl", [asked(number) for number in range(5)])
    write_log(logs / "responses.jsonl", [answered(number) for number in range(5)])
    found = look(format="openai_pairs")
    assert (found["exchanges"], found["rejects"]) == (0, {"incomplete_pair": 10})
    assert "no usable row" in found["problems"][0]
    with pytest.raises(OutriderError, match="choose auto or one of"):
        look(format="openai_joint")
