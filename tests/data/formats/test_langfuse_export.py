"""Langfuse's legacy export: session and user are in the traces alone."""

import json
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from tests.data.logs import read_exchanges

OBSERVATION = {
    "id": "o1",
    "trace_id": "t1",
    "type": "GENERATION",
    "start_time": "2026-07-01 10:00:00.000000",
    "input": json.dumps([{"role": "user", "content": "Hi"}]),
    "output": json.dumps({"role": "assistant", "content": "Ho", "reasoning_content": "Hm."}),
}
TRACE = {
    "id": "t1",
    "timestamp": "2026-07-01 10:00:00.000000",
    "user_id": "u1",
    "session_id": "s1",
    "public": False,
    "bookmarked": False,
    "tags": [],
    "input": json.dumps({"messages": [{"role": "user", "content": "Hi"}]}),
}
SCORE = {"id": "x", "trace_id": "t1", "observation_id": None, "data_type": "NUMERIC"}
MANIFEST = {"exportSource": "LEGACY", "files": [{"key": "p/observations/1.jsonl"}]}


def read(folder: Path, files: dict[str, list[dict]]) -> list[Exchange | Reject]:
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_exchanges(log_files(str(folder))))


@pytest.mark.parametrize("names", ["p/{}/1.jsonl", "{}.jsonl"])
@pytest.mark.parametrize("above", ["log", "traces"])
def test_observations_have_the_session_and_user_of_their_trace(tmp_path, names, above):
    renamed = {**TRACE, "session_id": "s2"}
    own = {**OBSERVATION, "id": "o2", "session_id": "own"}
    unknown = {**OBSERVATION, "id": "o3", "trace_id": "t9"}
    files = {
        names.format("observations"): [OBSERVATION, own, unknown],
        names.format("traces"): [TRACE, renamed],
        names.format("scores"): [{**SCORE, "string_value": None}],
        names.format("manifests"): [MANIFEST],
    }
    outcomes = read(tmp_path / above, files)
    exchanges = [outcome for outcome in outcomes if isinstance(outcome, Exchange)]
    owners = [(exchange.session, exchange.user) for exchange in exchanges]
    assert owners == [("s2", "u1"), ("own", "u1"), (None, None)]
    rejects = [outcome for outcome in outcomes if isinstance(outcome, Reject)]
    assert {reject.reason for reject in rejects} == {"not_a_generation"} and len(rejects) == 4


def test_a_damaged_row_next_to_traces_is_a_reject(tmp_path):
    files = {"traces.jsonl": [TRACE], "observations.jsonl": [OBSERVATION]}
    read(tmp_path, files)
    path = tmp_path / "observations.jsonl"
    path.write_text(path.read_text() + '{"trace_id": \n')
    outcomes = list(read_exchanges(log_files(str(tmp_path))))
    assert [getattr(one, "reason", "") for one in outcomes] == ["not_a_generation", "", "not_json"]
