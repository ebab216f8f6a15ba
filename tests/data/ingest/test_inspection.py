"""Inspection of small logs with defects agrees with an ingest and shows no customer text."""

import json

import pytest
from tokenizers import Tokenizer

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig, TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.ingest.inspection import inspect, inspect_ingested
from outrider.data.ingest.traffic_facts import printable
from outrider.data.sequences import load_sequences
from outrider.data.tokenize.mask_view import marked
from tests.data.logs import pair, screenings, write_log

SECRET = "Ada Lovelace, born 1815"


def rows(count=30, model="nano-r1"):
    return [
        pair(
            messages,
            reasoning,
            answer,
            request__metadata__session_id=f"s{index // 2}",
            response__model=model,
            timestamp=1_714_564_800 + 60 * index,
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(count))
    ]


DAMAGED = [
    b'{"request": {"messages": [{"content": "' + SECRET.encode() + b'"',
    {"request": {"messages": [{"role": "user", "content": SECRET}]}, "response": None},
    {"request": {"messages": [{"role": "user", "content": SECRET}]}, "response": None},
]


def look(target, tmp_path, rows, rows_per_file=None, **config):
    log = write_log(tmp_path / "log.jsonl", rows)
    scratch = tmp_path / "scratch"
    return inspect(
        target, TrafficConfig(path=str(log), **config), SplitConfig(), scratch, rows_per_file
    )


def test_a_good_log_has_no_problems_and_a_split(text_target, tmp_path):
    found = look(text_target, tmp_path, rows())
    assert (found["files"], found["rows"], found["exchanges"], found["problems"]) == (1, 30, 30, [])
    assert [found["split"][part]["sessions"] for part in ("train", "validation", "heldout")] == [
        10,
        2,
        3,
    ]
    assert found["split"]["tokens"] == found["prompt_tokens"] + found["completion_tokens"]
    assert found["duplicates"]["near"] == {"compared": 30, "near_identical": 0, "similarity": 0.9}


def test_what_is_told_is_what_the_ingest_leaves(text_target, tmp_path):
    found = look(text_target, tmp_path, [*rows(), DAMAGED[0]])
    ingest(text_target, TrafficConfig(path=str(tmp_path / "log.jsonl")), tmp_path / "run")
    assert inspect_ingested(tmp_path / "run", SplitConfig()) == found


def test_a_damaged_log_is_described_and_its_problem_said(text_target, tmp_path):
    found = look(text_target, tmp_path, [DAMAGED[0], *rows(), *DAMAGED[1:]])
    assert found["rejects"] == {"incomplete_pair": 2, "not_json": 1}
    assert found["reject_examples"]["not_json"]["place"] == f"{tmp_path}/log.jsonl:1"
    assert found["reject_examples"]["incomplete_pair"] == {
        "place": f"{tmp_path}/log.jsonl:32",
        "detail": "no response",
    }
    (problem,) = found["problems"]
    assert (
        "3 of 33 rows rejected (incomplete_pair 2, not_json 1). That is 9.1%" in problem
        and "scratch" not in problem
    )
    assert "Ada" not in json.dumps(found)


def test_a_log_without_a_usable_row_is_described_and_an_empty_one_is_an_error(
    text_target, tmp_path
):
    found = look(text_target, tmp_path, DAMAGED)
    assert (found["exchanges"], found["split"], found["duplicates"]["near"]) == (0, None, None)
    assert "no usable row" in found["problems"][0]
    with pytest.raises(OutriderError, match="no rows"):
        look(text_target, tmp_path, [b""])


def test_too_few_sessions_are_a_problem_of_a_whole_log_and_not_of_its_beginning(
    text_target, tmp_path
):
    found = look(text_target, tmp_path, rows(4))
    assert found["split"] is None and "2 sessions; a split needs at least 3" in found["problems"][0]
    found = look(text_target, tmp_path, rows(), rows_per_file=4)
    assert (found["rows"], found["exchanges"], found["split"], found["problems"]) == (
        4,
        4,
        None,
        [],
    )


def test_the_limit_is_of_every_file_and_of_values_over_several_lines_too(text_target, tmp_path):
    write_log(tmp_path / "a.jsonl", rows())
    (tmp_path / "b.json").write_text(json.dumps(rows(), indent=1))
    found = inspect(
        text_target, TrafficConfig(path=str(tmp_path)), SplitConfig(), tmp_path / "scratch", 7
    )
    assert (found["files"], found["rows"]) == (2, 14)
    assert found["duplicates"]["identical"] == 7


def test_near_identical_prompts_are_counted_once_each(text_target, tmp_path):
    made = rows(20)
    again = rows(3)
    for row in again:
        row["request"]["messages"][-1]["content"] = row["request"]["messages"][-1][
            "content"
        ].upper()
    near = look(text_target, tmp_path, [*made, *again, *rows(2)])["duplicates"]
    assert (
        near["identical"] == 2
        and near["near"]["compared"] == 23
        and near["near"]["near_identical"] == 3
    )


@pytest.fixture
def sequence(text_target, tmp_path):
    look(text_target, tmp_path, rows(6))
    row = load_sequences(tmp_path / "scratch" / "sequences")[0]
    return (
        Tokenizer.from_file(str(text_target / "tokenizer.json")),
        row["token_ids"],
        row["completion_start"],
    )


def parts_of(text):
    return [
        "".join(
            text.plain[span.start : span.end]
            for span in text.spans
            if str(span.style).startswith(style)
        )
        for style in ("dim", "green")
    ]


def test_a_marked_sequence_shows_what_is_trained_on(sequence, monkeypatch):
    monkeypatch.setattr("outrider.data.tokenize.mask_view.SHOWN", 10_000)
    tokenizer, ids, start = sequence
    text = marked(tokenizer, ids, start)
    decoded = [
        tokenizer.decode(part, skip_special_tokens=False) for part in (ids[:start], ids[start:])
    ]
    assert parts_of(text) == decoded
    assert decoded[0].endswith("<｜Assistant｜><think>\n")
    marks = [
        text.plain[span.start : span.end] for span in text.spans if "reverse" in str(span.style)
    ]
    begin, user, assistant, end = (
        "<｜begin▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
    )
    assert marks == [begin, user, assistant, "<think>", "</think>", end]


def test_nothing_of_a_log_is_obeyed_by_a_terminal():
    assert printable("\x1b[2J\x07é\u202ea\tb\n\x9b") == "␛[2J␇é�a\tb\n�"
