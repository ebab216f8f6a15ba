"""Engines' logs inside the records of any collector: the same outcomes as from the plain log."""

import json
from collections import Counter
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.engine_lines import engine_lines
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
    assert [vars(outcome) | {"place": None, "choice": 0} for outcome in outcomes] == [
        vars(outcome) | {"place": None, "choice": 0} for outcome in plain
    ]


def test_a_row_without_a_time_has_that_of_its_record(tmp_path):
    row = pair([{"role": "user", "content": "Hi"}], "r\n", "a")
    for name in ("loki's api", "otlp", "cloudwatch", "journald", "filebeat"):
        (outcome,) = read(tmp_path, TIMED_COLLECTORS[name]([json.dumps(row)]))
        assert isinstance(outcome, Exchange) and outcome.time is not None, name
        assert SECOND < outcome.time < SECOND + 1, name


def test_a_record_that_a_collector_parsed_is_read(tmp_path):
    lines = (GOLDEN / LOGS[1]).read_text().split("\n")
    events = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    plain = about(read(tmp_path, "".join(json.dumps(event) + "\n" for event in events).encode()))
    rows = [{"insertId": "i", "jsonPayload": event, "severity": "INFO"} for event in events]
    assert about(read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows).encode())) == plain


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
