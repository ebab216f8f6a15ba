"""Copies of one response: one sequence, whatever export, shipping, file or link made them."""

import itertools
import json
import random

import pytest

from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from tests.data.logs import pair, write_log

TEN = 1782900000


def row(number=0, **changes):
    """A logged exchange; the number decides text, id and time."""
    messages = [{"role": "user", "content": f"Question {number}"}]
    own = {"response__id": f"chatcmpl-{number}", "timestamp": TEN + number}
    return pair(messages, "r\n", f"\n\nAnswer {number}", **own | changes)


def run(target, tmp_path, files, **keys):
    logs = tmp_path / "logs"
    for name, rows in files.items():
        path = logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_log(path, rows)
    summary = ingest(target, TrafficConfig(path=str(logs), **keys), tmp_path / "out", workers=0)
    table = load_sequences(tmp_path / "out" / "sequences")
    rejects = [json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").open()]
    outcomes = summary["exchanges"] + sum(summary["rejects"].values())
    assert outcomes == summary["rows"] + summary["extra_choices"] - summary["joined"]
    assert len(table) == summary["exchanges"] == sum(summary["models"].values())
    return summary, table, rejects


@pytest.mark.parametrize("seed", range(3))
def test_each_response_gives_one_sequence_in_any_order_and_split(text_target, tmp_path, seed):
    rows = [row(number) for number in range(6) for _ in range(1 + number % 3)]
    random.Random(seed).shuffle(rows)
    cut = random.Random(seed).randrange(len(rows))
    files = {"a.jsonl": rows[:cut], "b/c.jsonl": rows[cut:]}
    summary, table, rejects = run(text_target, tmp_path, files)
    assert (summary["exchanges"], summary["rejects"]) == (6, {"duplicate": 6})
    assert sorted(table["time"][:]) == [TEN + number for number in range(6)]
    assert all(reject["detail"].startswith("the same response as ") for reject in rejects)


COPIES = {
    "the same row": ({}, {}),
    "another time": ({}, {"timestamp": TEN + 500}),
    "no time": ({}, {"timestamp": None, "response__created": None}),
    "an id in one": ({}, {"response__id": None}),
    "no ids": ({"response__id": None}, {"response__id": None}),
    "row ids without response ids": (
        {"response__id": None, "id": "a", "timestamp": TEN},
        {"response__id": None, "id": "a", "timestamp": TEN + 1},
    ),
}
TRAFFIC = {
    "another time and id": ({}, {"response__id": "x", "timestamp": TEN + 1}),
    "another id at the same time": ({}, {"response__id": "x"}),
    "another answer under the id of a retry": (
        {},
        {"response__choices__0__message__content": "\n\nAnother answer"},
    ),
    "another prompt under the same id": (
        {},
        {"request__messages": [{"role": "user", "content": "Question 1"}]},
    ),
    "another time without ids": (
        {"response__id": None},
        {"response__id": None, "timestamp": TEN + 1},
    ),
    "neither ids nor times": ({"response__id": None, "timestamp": None, "response__created": None},)
    * 2,
}


@pytest.mark.parametrize("case", [*COPIES, *TRAFFIC])
def test_copies_and_repeated_text(text_target, tmp_path, case):
    first, second = (COPIES | TRAFFIC)[case]
    summary, _, _ = run(text_target, tmp_path, {"a.jsonl": [row(**first), row(**second)]})
    assert summary["exchanges"] == (1 if case in COPIES else 2)
    assert summary["rejects"] == ({"duplicate": 1} if case in COPIES else {})


def test_a_constant_id_identifies_nothing(text_target, tmp_path):
    rows = [row(number, response__id="chatcmpl-0") for number in (0, 1, 1, 2)]
    rows[2]["timestamp"] += 5
    summary, _, _ = run(text_target, tmp_path, {"a.jsonl": rows})
    assert (summary["exchanges"], summary["rejects"]) == (4, {})


def test_a_copy_may_have_another_position_in_its_list(text_target, tmp_path):
    # CloudWatch's subscriptions and pages of APIs overlap.
    documents = [
        {"logEvents": [{"message": json.dumps(row(number))} for number in numbers]}
        for numbers in ((0, 1, 2), (2, 3))
    ]
    summary, table, _ = run(text_target, tmp_path, {"a.jsonl": documents})
    assert (summary["exchanges"], summary["rejects"]) == (4, {"duplicate": 1})
    assert len(set(table["sequence_id"][:])) == 4


def test_choices_of_one_response_are_no_copies(text_target, tmp_path):
    two = row(response__usage={"completion_tokens": 18})
    (choice,) = two["response"]["choices"]
    two["response"]["choices"] = [choice, choice | {"index": 1}]
    summary, _, _ = run(text_target, tmp_path, {"a.jsonl": [two, two]})
    assert (summary["exchanges"], summary["extra_choices"]) == (2, 2)
    assert summary["rejects"] == {"duplicate": 2}


def test_the_copy_with_the_engines_tokens_or_the_session_is_kept(text_target, tmp_path):
    bare = row(request__metadata={})
    summary, table, _ = run(text_target, tmp_path, {"a.jsonl": [bare, row()]})
    assert summary["exchanges"] == 1 and table["session"][:] == ["s-1"]
    ids = table[0]["token_ids"]
    start = table[0]["completion_start"]
    exact = row(
        request__metadata={},
        response__prompt_token_ids=ids[:start],
        response__choices__0__token_ids=ids[start:],
    )
    _, table, rejects = run(text_target, tmp_path / "exact", {"a.jsonl": [row(), exact]})
    assert table["fidelity"][:] == ["exact"]
    assert [reject["line"] for reject in rejects] == [1]


def observation(number, **more):
    return {
        "id": f"o{number}",
        "trace_id": f"t{number}",
        "type": "GENERATION",
        "start_time": f"2026-07-01 10:0{number}:00.000000",
        "provided_model_name": "r1",
        "input": json.dumps([{"role": "user", "content": f"Question {number}"}]),
        "output": json.dumps({"role": "assistant", "content": "a", "reasoning_content": "r"}),
        **more,
    }


def test_langfuses_two_export_sources(text_target, tmp_path):
    legacy = [observation(number) for number in range(4)]
    enriched = [observation(number, session_id=f"s{number // 2}") for number in range(4)]
    files = {"p/observations/1.jsonl": legacy, "p/observations_v2/1.jsonl": enriched}
    summary, table, rejects = run(text_target, tmp_path, files)
    assert summary["rejects"] == {"duplicate": 4}
    assert table["session"][:] == ["s0", "s0", "s1", "s1"]
    assert all("/observations/" in reject["file"] for reject in rejects)


def test_a_link_to_a_log(text_target, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    log = write_log(folder / "a-2026.jsonl", [row(number) for number in range(3)])
    (folder / "current.jsonl").symlink_to(log.name)
    summary, _, _ = run(text_target, tmp_path, {})
    assert summary["exchanges"] == 3


CHUNKS = [
    {"id": "chatcmpl-9", "choices": [{"index": 0, "delta": {"reasoning": "ha"}}]},
    {"id": "chatcmpl-9", "choices": [{"index": 0, "delta": {"reasoning": "ha"}}]},
    {"id": "chatcmpl-9", "choices": [{"index": 0, "delta": {"content": "a"}}]},
    {
        "id": "chatcmpl-9",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": None}],
    },
]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("interleaved", [False, True])
def test_chunks_that_were_shipped_several_times(text_target, tmp_path, copies, interleaved):
    asked = {"id": "9", "model": "r1", "messages": [{"role": "user", "content": "Hi"}]}
    chunks = CHUNKS * copies
    if interleaved:
        chunks = list(itertools.chain.from_iterable([chunk] * copies for chunk in CHUNKS))
    _, table, _ = run(text_target, tmp_path / "one", {"a.jsonl": [asked, *CHUNKS]})
    log = write_log(tmp_path / "log.jsonl", [asked, *chunks])
    ingest(text_target, TrafficConfig(path=str(log)), tmp_path / "out", workers=0)
    several = load_sequences(tmp_path / "out" / "sequences")
    assert several["token_ids"][:] == table["token_ids"][:]


def test_a_request_that_was_shipped_twice(text_target, tmp_path):
    asked = {"id": "9", "model": "r1", "messages": [{"role": "user", "content": "Hi"}]}
    answered = row()["response"] | {"id": "chatcmpl-9"}
    log = write_log(tmp_path / "log.jsonl", [asked, asked, answered])
    summary = ingest(text_target, TrafficConfig(path=str(log)), tmp_path / "out", workers=0)
    assert (summary["exchanges"], summary["rejects"]) == (1, {"duplicate": 1})


def test_the_server_decides_how_parts_are_joined(text_target, tmp_path):
    parts = [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    log = write_log(tmp_path / "log.jsonl", [pair([{"role": "user", "content": parts}], "r", "a")])
    prompts = []
    for server in (None, "sglang"):
        traffic = TrafficConfig(path=str(log), server=server)
        ingest(text_target, traffic, tmp_path / str(server), workers=0)
        prompts += load_sequences(tmp_path / str(server) / "sequences")["prompt_text"][:]
    assert "<｜User｜>A\nB<｜Assistant｜>" in prompts[0]
    assert "<｜User｜>A B<｜Assistant｜>" in prompts[1]
