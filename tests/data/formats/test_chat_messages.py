"""Conversation data sets: JSON lines, tables, and folders of the Hugging Face Hub."""

import json

import pytest
from datasets import Dataset, DatasetDict

from outrider.common.errors import OutriderError
from outrider.data.exchange import ASIDE, Place, Record
from outrider.data.formats import format_of, parse_record, read_exchanges
from outrider.data.ingest.sources import log_files
from tests.data.formats.golden_rows import (
    ANSWERED,
    ASKED,
    CALL,
    CUT_OFF,
    INLINE,
    THOUGHT,
    TOOL,
    TOOL_ASKED,
    TWO_TURNS,
    one_each,
    reasons,
)

LINES = "messages/train.jsonl"
ROWS = [
    {
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": f"{ANSWERED} {number}", "reasoning_content": THOUGHT},
        ]
    }
    for number in range(5)
]


def test_the_last_turn_is_the_completion():
    found = one_each(LINES)
    assert (found[1].reasoning, found[1].content, found[1].finish_reason) == (
        THOUGHT,
        ANSWERED,
        "stop",
    )
    assert found[2].messages == TWO_TURNS and found[2].content == INLINE, (
        "without the weights of the turns"
    )
    assert (found[1].weight, found[2].weight) == (1.0, 0.5)
    assert (found[1].temperature, found[1].completion_tokens) == (None, None)


def test_tool_calls_as_completion_and_as_context():
    found = one_each(LINES)
    assert found[3].tool_calls == [CALL] and found[3].template_arguments == {"tools": [TOOL]}
    assert [message["role"] for message in found[4].messages] == ["user", "assistant", "tool"]
    assert found[4].messages[0] == {"role": "user", "content": TOOL_ASKED}


def test_a_cut_off_where_the_row_says_so():
    assert (one_each(LINES)[5].reasoning, one_each(LINES)[5].finish_reason) == (CUT_OFF, "length")


def test_rows_that_are_no_exchange():
    assert reasons(one_each(LINES)) == {
        6: "weighted_out",
        7: "no_response",
        8: "no_messages",
        9: "wrong_type",
        10: "not_json",
    }


def test_a_table_does_not_hand_its_nulls_to_the_template():
    found = one_each("messages/train-00000-of-00001.parquet")
    assert found[1].messages == [{"role": "user", "content": ASKED}]
    assert (found[1].reasoning, found[2].weight) == (THOUGHT, 0.25)


@pytest.mark.parametrize("last, expected", [("user", "openai_joined"), ("assistant", "messages")])
def test_requests_without_responses_are_not_taken_for_it(tmp_path, last, expected):
    messages = [{"role": "user", "content": ASKED}, {"role": last, "content": ANSWERED}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "messages": messages}) + "\n")
    assert [format_of(file) for file in log_files(str(tmp_path))] == [expected]


@pytest.mark.parametrize(
    "data_set",
    [
        Dataset.from_list(ROWS),
        DatasetDict(train=Dataset.from_list(ROWS[:3]), test=Dataset.from_list(ROWS[3:])),
    ],
)
def test_a_folder_of_save_to_disk(tmp_path, data_set):
    data_set.save_to_disk(tmp_path / "saved")
    files = log_files(str(tmp_path / "saved"))
    assert {file.path.rpartition(".")[2] for file in files} == {"arrow"}
    found = sorted(exchange.content for exchange in read_exchanges(files))
    assert found == [f"{ANSWERED} {number}" for number in range(5)]


def test_the_hub_is_a_filesystem_as_any_other(tmp_path, monkeypatch):
    from fsspec.implementations.dirfs import DirFileSystem

    folder = tmp_path / "datasets" / "acme" / "hours" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "README.md").write_text("---\n---\n")
    (folder.parent / "dataset_infos.json").write_text("{}")
    Dataset.from_list(ROWS).to_parquet(folder / "train-00000-of-00001.parquet")
    hub = DirFileSystem(str(tmp_path))
    monkeypatch.setattr(
        "outrider.data.ingest.sources.url_to_fs", lambda url: (hub, url.removeprefix("hf://"))
    )
    with pytest.raises(
        OutriderError,
        match="no such file or folder; a private or gated data set needs the variable HF_TOKEN",
    ):
        log_files("hf://datasets/acme/hidden")
    files = log_files("hf://datasets/acme/hours")
    assert [file.path for file in files] == [
        "datasets/acme/hours/data/train-00000-of-00001.parquet"
    ]
    assert len(list(read_exchanges(files))) == 5


def test_a_name_of_the_hub_is_told_how_to_be_written():
    with pytest.raises(
        OutriderError, match="a data set of the Hugging Face Hub is hf://datasets/acme/hours"
    ):
        log_files("acme/hours")


def test_a_log_of_the_same_name_is_not_skipped_where_there_are_no_tables(tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(ROWS))
    assert len(list(read_exchanges(log_files(str(tmp_path))))) == 5


@pytest.mark.parametrize("changes", [{"weight": 0}, {"weight": -1.5}])
def test_a_row_that_is_weighted_out(changes):
    payload = json.dumps({**ROWS[0], **changes}).encode()
    (outcome,) = parse_record("messages", Record(Place("log", 1), payload))
    assert outcome.reason == "weighted_out" and outcome.reason in ASIDE


def test_tools_that_a_table_keeps_as_text():
    payload = {**ROWS[0], "tools": json.dumps([TOOL])}
    (outcome,) = parse_record("messages", Record(Place("log", 1), payload))
    assert outcome.template_arguments == {"tools": [TOOL]}
