"""OpenAI's shapes beyond the golden logs: choices, text completions, joined halves."""

import json

from outrider.data.exchange import Place, Record
from outrider.data.formats import parse_record
from outrider.data.formats.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import read_exchanges, write_log

PROMPT = "<｜User｜>When is it open?<｜Assistant｜><think>\n"
TEXT = "Hm.\n</think>\n\nOn Saturdays."


def test_a_text_completion_is_the_engines_whole_output(text_target):
    """A text without `</think>` is complete: no parser has removed anything."""
    builder = SequenceBuilder(text_target)
    payload = {
        "request": {"prompt": PROMPT},
        "response": {"choices": [{"text": "No thoughts.", "finish_reason": "stop"}]},
    }
    (bare,) = parse_record("openai_pairs", Record(Place("log", 1), json.dumps(payload).encode()))
    sequence = builder.build(bare)
    ids, start = sequence.token_ids, sequence.completion_start
    assert ids[:start] == builder.tokenizer(PROMPT).input_ids
    assert builder.tokenizer.decode(ids[start:]) == "No thoughts.<｜end▁of▁sentence｜>"


def test_halves_that_stand_apart(tmp_path):
    request = {"id": "r1", "model": "r1", "prompt": PROMPT, "temperature": 0.5}
    response = {
        "id": "r1",
        "object": "text_completion",
        "choices": [{"text": TEXT, "finish_reason": "stop"}],
    }
    write_log(tmp_path / "joined.jsonl", [request, response])
    (joined,) = read_exchanges(log_files(str(tmp_path / "joined.jsonl")))
    batch = [
        {
            "custom_id": "a",
            "url": "/v1/completions",
            "body": {"model": "r1", "prompt": PROMPT, "temperature": 0.5},
        },
        {"custom_id": "a", "response": {"status_code": 200, "body": response}, "error": None},
    ]
    write_log(tmp_path / "batch.jsonl", batch)
    (batched,) = read_exchanges(log_files(str(tmp_path / "batch.jsonl")))
    for one in (joined, batched):
        assert (one.prompt_text, one.content, one.temperature) == (PROMPT, TEXT, 0.5)


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
