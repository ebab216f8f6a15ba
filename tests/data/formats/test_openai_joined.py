import json

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import read_exchanges
from outrider.data.ingest.sources import log_files
from tests.data.formats.golden import formats, outcomes, said
from tests.data.formats.test_openai_pairs import ANSWER, SECOND_ANSWER, SECOND_THOUGHT, THOUGHT
from tests.data.logs import write_log


def test_responses_are_joined_with_their_requests():
    found = outcomes("openai_joined")
    assert formats("openai_joined") == ["openai_joined"]
    assert said(found) == [
        "not_json",
        "no_id",
        (THOUGHT, ANSWER, "stop"),
        (SECOND_THOUGHT, SECOND_ANSWER, "stop"),
        (None, "The posting asks", "length"),
        ("I should look her up.\n", None, "stop"),
        "unmatched_request",
        "ambiguous_id",
        "unmatched_request",  # its response is the row with invalid JSON
        (THOUGHT, ANSWER, "stop"),
        "unmatched_response",
    ]
    by_wrapper, by_prefix = found[2:4]
    assert (by_wrapper.session, by_wrapper.time) == ("s-9", 1772442000.0)
    assert len(by_prefix.messages) == 4
    without_request = found[9]
    assert without_request.messages is None and without_request.prompt_token_ids == [0, 11, 12]


def test_chunks_are_grouped_by_their_stream():
    found = outcomes("openai_chunks")
    assert formats("openai_chunks") == ["openai_joined"]
    assert said(found) == [
        (THOUGHT, ANSWER, "stop"),
        (SECOND_THOUGHT, SECOND_ANSWER, "stop"),
        "stream_cut",
        (
            THOUGHT,
            ANSWER,
            "stop",
        ),  # a recorded event stream, with the prompt's ids in its first chunk
        "unmatched_response",  # the same without ids
    ]
    assert found[3].completion_token_ids == [21, 22, 23, 9, 25, 26, 27, 1]


def test_batches_are_joined_and_errors_counted():
    found = outcomes("openai_batch")
    assert formats("openai_batch") == ["openai_batch"]
    assert said(found) == [
        "not_json",
        "error_response",
        "error_response",
        (THOUGHT.strip(), ANSWER.strip(), "stop"),
        (SECOND_THOUGHT, SECOND_ANSWER, "stop"),
        ("The posting asks for", None, "length"),
        ("I should look her up.\n", None, "stop"),
        "unmatched_request",
        "not_a_generation",
        "unmatched_request",
        "unmatched_response",
    ]
    assert found[6].tool_calls and found[6].template_arguments["tools"]


def asked(key, text):
    body = {"model": "r1", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}


def answered(key, text):
    choice = {"message": {"reasoning": "r", "content": text}, "finish_reason": "stop"}
    return {
        "custom_id": key,
        "response": {"status_code": 200, "body": {"choices": [choice]}},
        "error": None,
    }


def failed(key):
    return {"custom_id": key, "response": {"status_code": 500, "body": {}}, "error": None}


def test_batches_that_count_their_ids_anew_are_joined_folder_by_folder(tmp_path):
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        write_log(tmp_path / day / "input.jsonl", [asked("1", day), asked("2", day)])
        write_log(tmp_path / day / "output.jsonl", [answered("2", day), answered("1", day)])
    found = list(read_exchanges(log_files(str(tmp_path))))
    assert len(found) == 4
    assert all(outcome.messages[0]["content"] == outcome.content for outcome in found)
    # In one folder it is unknown which request a response answers.
    for day in ("monday", "tuesday"):
        for name in ("input", "output"):
            (tmp_path / day / f"{name}.jsonl").rename(tmp_path / f"{day}_{name}.jsonl")
    found = list(read_exchanges(log_files(str(tmp_path))))
    assert [(outcome.reason, outcome.rows) for outcome in found] == [("ambiguous_id", 4)] * 2


def test_a_request_that_was_sent_again(tmp_path):
    write_log(tmp_path / "a_input.jsonl", [asked("1", "x"), asked("2", "y")])
    write_log(tmp_path / "b_input.jsonl", [asked("1", "x")])
    write_log(tmp_path / "errors.jsonl", [failed("1")])
    write_log(tmp_path / "output.jsonl", [answered("2", "y"), answered("1", "x")])
    files = log_files(str(tmp_path))
    found = list(read_exchanges(files))
    assert said(found) == ["error_response", ("r", "x", "stop"), ("r", "y", "stop")]
    assert sum(file.meter.rows for file in files) == 6


def test_ids_may_be_anything(tmp_path):
    keys = ["../../etc/passwd", "a" * 100_000, "'; DROP TABLE rows; --", "\x00", "ü\u2028", 17]
    rows = [row for key in keys for row in (answered(key, str(key)[:9]), asked(key, str(key)[:9]))]
    log = write_log(
        tmp_path / "log.jsonl",
        [*rows, asked(None, "n"), asked(["list"], "l"), asked("\ud800", "s")],
    )
    found = list(read_exchanges(log_files(str(log))))
    assert said(found[:3]) == ["no_id", "wrong_type", "not_utf8"]
    assert (
        all(isinstance(outcome, Exchange) for outcome in found[3:]) and len(found) == len(keys) + 3
    )
    assert all(outcome.messages[0]["content"] == outcome.content for outcome in found[3:])


def test_more_under_one_id_than_one_exchange_can_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("outrider.data.formats.join.LONGEST_LINE", 20_000)
    chunk = {
        "id": "chatcmpl-0",
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": "x"}}],
    }
    log = write_log(tmp_path / "log.jsonl", [json.dumps(chunk).encode()] * 200)
    (outcome,) = read_exchanges(log_files(str(log)))
    assert isinstance(outcome, Reject) and (outcome.reason, outcome.rows) == ("line_too_long", 200)
