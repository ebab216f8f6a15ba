"""Any log: every row is an exchange or a counted reject, in bounded time and memory."""

import json
import random
import resource
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import FORMATS, parse_record, read_exchanges, read_records
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.formats.golden import GOLDEN
from tests.data.logs import write_log
from tests.fuzzing import examples

WHOLE_FILES = {"sglang_dump"}
"""Formats whose files are one value; a broken file counts as one row."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def golden_rows():
    """Every JSON row of the golden logs."""
    rows = []
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".log"):
            for line in path.read_bytes().splitlines():
                try:
                    row = json.loads(line.removeprefix(b"data:"))
                except ValueError:
                    continue
                if isinstance(row, dict):
                    rows.append(row)
    return rows


GOLDEN_ROWS = golden_rows()


@st.composite
def mutated_rows(draw):
    """A golden row with values replaced or removed, or with its text cut or changed."""
    row = json.loads(json.dumps(draw(st.sampled_from(GOLDEN_ROWS))))
    for _ in range(draw(st.integers(0, 3))):
        holder, key = row, draw(st.sampled_from(sorted(row)))
        while isinstance(holder[key], dict | list) and holder[key] and draw(st.integers(0, 4)):
            holder = holder[key]
            keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
            key = draw(st.sampled_from(keys))
        if draw(st.booleans()) and isinstance(holder, dict) and len(holder) > 1:
            del holder[key]
        else:
            holder[key] = draw(JSON)
    line = json.dumps(row, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    damage = draw(st.integers(0, 9))
    if damage == 0:
        return line[: draw(st.integers(0, len(line)))]
    if damage == 1:
        at = draw(st.integers(0, len(line)))
        return (
            line[:at]
            + draw(st.binary(max_size=4)).replace(b"\n", b"")
            + line[at + draw(st.integers(0, 2)) :]
        )
    return line


@pytest.fixture(scope="module")
def builder(text_target):
    return SequenceBuilder(text_target)


@pytest.mark.parametrize("name", FORMATS)
@examples(60)
@given(
    lines=st.lists(
        mutated_rows() | st.binary(max_size=40).map(lambda line: line.replace(b"\n", b" ")),
        max_size=6,
    )
)
def test_nothing_is_lost_and_nothing_crashes(builder, tmp_path, name, lines):
    log = write_log(tmp_path / "log.jsonl", lines)
    files = log_files(str(log))
    used, ids = 0, set()
    for item in read_records(name, files, tmp_path):
        used += item.rows
        if isinstance(item, Reject):
            assert item.place is not None
            continue
        outcomes = parse_record(name, item)
        assert outcomes
        for outcome in outcomes:
            assert isinstance(outcome, Exchange | Reject) and outcome.place is not None
            if isinstance(outcome, Exchange):
                assert (outcome.place, outcome.choice) not in ids
                ids.add((outcome.place, outcome.choice))
                try:
                    sequence = builder.build(outcome)
                except Reject:
                    continue
                assert 0 < sequence.completion_start < len(sequence.token_ids)
    assert used == files[0].meter.rows


MESSAGES = b'"messages": [{"role": "user", "content": "x"}]'
HOSTILE = {
    "nested lists": b'{"request": {%s, "tools": %s}, "response": {}}'
    % (MESSAGES, b"[" * 50_000 + b"]" * 50_000),
    "nested objects": b'{"request": '
    + b'{"a":' * 50_000
    + b"1"
    + b"}" * 50_000
    + b', "response": {}}',
    "unclosed": b'{"request": ' + b"[{" * 100_000,
    "a long number": b'{"request": {}, "response": {"created": ' + b"9" * 200_000 + b"}}",
    "a large exponent": b'{"request": {%s}, "response": {"created": 1e999999}}' % MESSAGES,
    "NaN": b'{"request": {%s, "temperature": NaN}, "response": {}}' % MESSAGES,
    "Infinity": b'{"request": {%s, "top_p": -Infinity}, "response": {}}' % MESSAGES,
    "one key twice": b'{"request": {%s, %s}, "response": {}}' % (MESSAGES, MESSAGES),
    "many keys": b'{"request": {%s, %s}, "response": {}}'
    % (MESSAGES, b",".join(b'"k%d": %d' % (n, n) for n in range(100_000))),
    "no utf-8": b'{"request": "\xff\xfe\xfa", "response": {}}',
    "utf-16": '{"request": {}, "response": {}}'.encode("utf-16"),
    "half a surrogate pair": (
        b'{"request": {"messages": [{"role": "user", "content": "\\ud800"}]}, '
        b'"response": {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}}'
    ),
    "wrong types": (
        b'{"request": {"messages": "x", "temperature": []}, "response": {"choices": {"0": 1}}}'
    ),
    "null bytes": b"\0" * 100_000,
    "a path as id": b'{"id": "../../../etc/passwd", "model": "m", %s}' % MESSAGES,
}


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_rows_take_little_time_and_are_rejected(builder, tmp_path, name):
    rows = list(HOSTILE.values())
    files = log_files(str(write_log(tmp_path / "log.jsonl", rows)))
    begin = time.process_time()
    outcomes = list(read_exchanges(files, name))
    assert time.process_time() - begin < 5
    assert all(isinstance(outcome, Reject) for outcome in outcomes)
    assert sum(outcome.rows for outcome in outcomes) == files[0].meter.rows
    assert files[0].meter.rows == (1 if name in WHOLE_FILES else len(rows))


def test_a_line_of_100_mb_takes_little_memory(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b'{"request": {"messages": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(
            b'"}}\n' + json.dumps({"request": {}, "response": {"error": "x"}}).encode() + b"\n"
        )
    (file,) = log_files(str(path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert [outcome.reason for outcome in read_exchanges([file])] == [
        "line_too_long",
        "error_response",
    ]
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
    )  # kB; the limit is 64 MB a row


def test_bytes_of_noise(tmp_path):
    noise = random.Random(0).randbytes(300_000)
    for name in FORMATS:
        (file,) = log_files(str(write_log(tmp_path / "log.jsonl", [noise])))
        outcomes = list(read_exchanges([file], name))
        assert sum(outcome.rows for outcome in outcomes) == file.meter.rows
        assert file.meter.rows > 1000 or name in WHOLE_FILES
