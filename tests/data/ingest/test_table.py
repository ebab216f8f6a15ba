"""The table's files are read without keeping them mapped, since mapped pages count as memory."""

from pathlib import Path

import pyarrow as pa
import pytest

from outrider.data.config import TrafficConfig
from outrider.data.ingest import table
from outrider.data.ingest.arrow_files import columns_of
from outrider.data.ingest.chunks import SCHEMA
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from tests.data.logs import pair, screenings, write_log


def is_mapped(folder: Path) -> bool:
    return str(folder) in Path("/proc/self/maps").read_text()


def write_part(path: Path, rows: int) -> Path:
    columns = {"text": [f"row {number}" for number in range(rows)], "number": list(range(rows))}
    stored = pa.table(columns)
    with pa.ipc.new_stream(str(path), stored.schema) as writer:
        writer.write_table(stored, max_chunksize=7)
    return path


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_columns_of_a_part_do_not_keep_it_mapped(tmp_path, rows):
    part = write_part(tmp_path / "0.arrow", rows)
    columns = columns_of(part, ["number"])
    assert columns.to_pydict() == {"number": list(range(rows))}
    assert not is_mapped(tmp_path)


def test_one_part_is_mapped_at_a_time_and_batches_are_the_rows_in_order(
    text_target, tmp_path, monkeypatch
):
    log = write_log(tmp_path / "log.jsonl", [pair(*turn) for turn in screenings(9)])
    out = tmp_path / "out"
    mapped = []

    def kept_rows(part, *arguments):
        mapped.append(is_mapped(out))
        return of_part(part, *arguments)

    of_part = table._kept_rows
    monkeypatch.setattr(table, "_kept_rows", kept_rows)
    monkeypatch.setattr("outrider.data.ingest.chunks.CHUNK_RECORDS", 2)
    ingest(text_target, TrafficConfig(path=str(log)), out, workers=0)
    assert mapped == [False] * 5
    batches = list(table.record_batches(out / "sequences"))
    assert not is_mapped(out)
    assert {batch.schema for batch in batches} == {SCHEMA}
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == load_sequences(out / "sequences").to_list()
    assert [row["sequence_id"] for row in rows] == [f"0-{number}" for number in range(1, 10)]


@pytest.mark.parametrize(("share", "kinds"), [(6, {"first_question"}), (5, {"user"})])
def test_an_account_that_most_requests_name_is_nobody_s_session(
    text_target, tmp_path, share, kinds
):
    """Of ten requests, `share` name the portal; conversations and other users stay."""
    turns = list(screenings(10))
    rows = []
    for number, turn in enumerate(turns):
        user = "portal" if number < share else f"user {number}"
        time = 1_714_564_800 + number
        rows.append(pair(*turn, timestamp=time, request__metadata={}, request__user=user))
    rows.append(pair(*turns[0], timestamp=1_714_564_900, request__user="portal"))
    for number, row in enumerate(rows):
        row["response"]["id"] = f"chatcmpl-{number}"
    log = write_log(tmp_path / "log.jsonl", rows)
    ingest(text_target, TrafficConfig(path=str(log)), tmp_path / "out", workers=0)
    stored = load_sequences(tmp_path / "out" / "sequences").to_list()
    of_portal = stored[:share]
    assert {row["session_kind"] for row in of_portal} == kinds
    assert len({row["session"] for row in of_portal}) == (share if kinds != {"user"} else 1)
    assert len({row["user"] for row in of_portal}) == 1
    assert {row["session_kind"] for row in stored[share:10]} == {"user"}
    assert stored[10]["session"] == "s-1"
