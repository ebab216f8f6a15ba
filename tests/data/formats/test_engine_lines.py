"""Engines' logs inside the records of any collector: the same outcomes as from the plain log."""

import csv
import io
import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.rows.engine_lines import engine_lines
from tests.data.files.packers import COLLECTORS, SECOND, TIMED_COLLECTORS
from tests.data.logs import pair, read_exchanges, write_log

GOLDEN = Path(__file__).parents[1] / "golden"
LOGS = ("vllm_log/debug.log", "sglang/level3.jsonl")


def read(folder: Path, stored: bytes) -> list[Exchange | Reject]:
    path = folder / "stored.log"
    path.write_bytes(stored)
    return list(read_exchanges(log_files(str(path))))


def about(outcomes) -> Counter[str]:
    """What replay needs of each outcome, other than lines without a request."""
    found: Counter[str] = Counter()
    for outcome in outcomes:
        if isinstance(outcome, Exchange):
            ids = (outcome.prompt_token_ids, outcome.completion_token_ids)
            sampling = (outcome.temperature, outcome.top_p, outcome.finish_reason)
            found[str((ids, sampling, outcome.session, outcome.user, outcome.tenant))] += 1
        elif outcome.reason != "not_a_generation":
            found[outcome.reason] += 1
    return found


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("name", [*COLLECTORS, *TIMED_COLLECTORS])
def test_any_collector_around_an_engines_log_changes_nothing(tmp_path, name, log):
    lines = [line for line in (GOLDEN / log).read_text().split("\n") if line]
    plain = about(read(tmp_path, "".join(f"{line}\n" for line in lines).encode()))
    assert len(plain) > 3
    outcomes = read(tmp_path, (COLLECTORS | TIMED_COLLECTORS)[name](lines))
    assert about(outcomes) == plain
    times = {outcome.time for outcome in outcomes if isinstance(outcome, Exchange)}
    if name in TIMED_COLLECTORS and log == LOGS[0]:
        assert all(time is not None and SECOND < time < SECOND + 1 for time in times)


@pytest.mark.parametrize("name", [*COLLECTORS, *TIMED_COLLECTORS])
def test_any_collector_around_a_gateways_rows_changes_nothing(tmp_path, name):
    if name == "journald in color":
        return  # JSON has no colors
    rows = [
        pair([{"role": "user", "content": f"Hi {at}"}], "r\n", "a", timestamp=SECOND + at)
        for at in range(3)
    ]
    lines = [json.dumps(row) for row in rows]
    plain = read(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    outcomes = read(tmp_path, (COLLECTORS | TIMED_COLLECTORS)[name](lines))
    assert [vars(outcome) | {"place": None, "call": 0} for outcome in outcomes] == [
        vars(outcome) | {"place": None, "call": 0} for outcome in plain
    ]


def test_a_row_without_a_time_has_that_of_its_record(tmp_path):
    row = pair([{"role": "user", "content": "Hi"}], "r\n", "a")
    for name in ("loki's api", "otlp", "cloudwatch", "journald", "filebeat"):
        (outcome,) = read(tmp_path, TIMED_COLLECTORS[name]([json.dumps(row)]))
        assert isinstance(outcome, Exchange) and outcome.time is not None, name
        assert SECOND < outcome.time < SECOND + 1, name


def test_lines_that_journalctl_left_out_are_told_with_their_requests(tmp_path):
    lines = (GOLDEN / LOGS[0]).read_text().splitlines()
    (at, *_) = [number for number, line in enumerate(lines) if " details: prompt" in line]
    records = [{"MESSAGE": line, "__REALTIME_TIMESTAMP": f"{SECOND}000000"} for line in lines]
    records[at]["MESSAGE"] = None
    outcomes = read(tmp_path, "".join(json.dumps(record) + "\n" for record in records).encode())
    truncated = [outcome for outcome in outcomes if getattr(outcome, "reason", "") == "truncated"]
    plain = read(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    without_lines = [one for one in plain if "VLLM_LOGGING_LEVEL" in getattr(one, "detail", "")]
    assert len(truncated) == 2 + len(without_lines)
    assert all("journalctl -a" in reject.detail for reject in truncated)


def test_a_record_that_a_collector_parsed_is_read(tmp_path):
    lines = (GOLDEN / LOGS[1]).read_text().split("\n")
    events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    plain = about(read(tmp_path, "".join(json.dumps(event) + "\n" for event in events).encode()))
    rows = [{"insertId": "i", "jsonPayload": event, "severity": "INFO"} for event in events]
    assert about(read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows).encode())) == plain


def nanoseconds(at: int) -> str:
    return f"{SECOND + at}000000000"


def rows_newest_first(lines: list[str]) -> bytes:
    rows = [{"line": line, "timestamp": nanoseconds(at)} for at, line in enumerate(lines)]
    return "".join(json.dumps(row) + "\n" for row in reversed(rows)).encode()


def list_newest_first(lines: list[str]) -> bytes:
    rows = [{"line": line, "timestamp": nanoseconds(at)} for at, line in enumerate(lines)]
    return json.dumps(rows[::-1], indent=1).encode()


def table_newest_first(lines: list[str]) -> bytes:
    table = io.StringIO(newline="")
    rows = [(nanoseconds(at), line) for at, line in enumerate(lines)]
    csv.writer(table).writerows([("timestamp", "line"), *reversed(rows)])
    return table.getvalue().encode()


def streams_newest_first(lines: list[str]) -> bytes:
    """Loki's answer, in which lines of each level are a stream."""
    values: dict[str, list[list[str]]] = {"info": [], "debug": []}
    for at, line in enumerate(lines):
        values["debug" if "DEBUG" in line else "info"].insert(0, [nanoseconds(at), line])
    result = [{"stream": {"detected_level": level}, "values": values[level]} for level in values]
    return json.dumps({"status": "success", "data": {"result": result}}).encode()


@pytest.mark.parametrize(
    "stored",
    [rows_newest_first, list_newest_first, table_newest_first, streams_newest_first],
)
def test_a_log_whose_newest_line_is_first_is_the_same_log(tmp_path, stored):
    lines = [line for line in (GOLDEN / LOGS[0]).read_text().split("\n") if line]
    rows = rows_newest_first(lines).splitlines()
    plain = read(tmp_path, b"".join(row + b"\n" for row in reversed(rows)))
    outcomes = read(tmp_path, stored(lines))
    assert about(outcomes) == about(plain)
    times, plain_times = (
        [outcome.time for outcome in read_outcomes if isinstance(outcome, Exchange)]
        for read_outcomes in (outcomes, plain)
    )
    assert len(times) > 2 and times == plain_times


def test_lines_read_from_the_end_keep_their_numbers(tmp_path):
    (tmp_path / "log.jsonl").write_bytes(rows_newest_first(["a", "b", "c"]))
    (file,) = log_files(str(tmp_path / "log.jsonl"))
    texts = [(number, (line or b"")[-1:]) for number, line in engine_lines(file)]
    assert texts == [(3, b"a"), (2, b"b"), (1, b"c")]


def test_every_record_is_counted_once(tmp_path):
    lines = [line for line in (GOLDEN / LOGS[0]).read_text().split("\n") if line]
    outcomes = read(tmp_path, TIMED_COLLECTORS["loki's api"](lines))
    rejected = sum(outcome.rows for outcome in outcomes if isinstance(outcome, Reject))
    (file,) = log_files(str(tmp_path / "stored.log"))
    assert len(list(engine_lines(file))) == len(lines)
    assert 0 < rejected < len(lines)


def test_a_customer_who_writes_about_vllm_is_not_a_log_of_vllm(tmp_path):
    question = "INFO 07-01 12:00:00 Received request x: params: SamplingParams(n=1)"
    rows = [pair([{"role": "user", "content": question}], "r\n", "a") for _ in range(3)]
    outcomes = list(read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", rows)))))
    assert [type(outcome) for outcome in outcomes] == [Exchange] * 3
