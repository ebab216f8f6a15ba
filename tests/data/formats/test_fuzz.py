"""Damaged golden logs of every format: no crash, no row lost, no row twice, in bounded time.

The defects are those of a full disk, a manual edit or malice. `make test-long` runs the same at
length.
"""

import json
import pickle
import random
import resource
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats import FORMATS, format_of, parse_record, read_records
from tests.data.formats.test_golden import FOLDERS, GOLDEN
from tests.data.logs import read_exchanges
from tests.fuzzing import examples

FILES = [path for path in sorted(GOLDEN.glob("*/**/*")) if path.is_file()]
CONTENTS = [path.read_bytes() for path in FILES]
LONGEST = 60.0
"""Limit in seconds for one damaged log of some tens of lines; a quadratic reader takes more."""

STRANGE = (
    *(None, True, False, 0, -1, 1.5, 2**31, 10**30, -(10**400), 1e300, "", " ", "x" * 5000),
    *("../../etc/passwd", "a\x00b", "\ud83d", "\u2028", "<think>", "</think>", "[", '{"a": '),
    *("2026-99-99T00:00:00Z", "...", [], {}, [None], [[]], [{}], {"": {}}, ["a", 1], [-1]),
    *([2**40], [1.5], {"role": "user"}, [True]),
)
"""Replacements for a value."""

INVALID = (
    *(b"NaN", b"-0", b"1e999", b'"\\ud800"', b'"\xff\xfe"', b"9" * 5000, b"tru", b"'single'"),
    *(b"[" * 3000 + b"]" * 3000, b'{"a":' * 300 + b"1" + b"}" * 300, b'{"id":1,"id":2}'),
)
"""Text that replaces a JSON value."""


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with one to three defects."""
    for _ in range(rng.randint(1, 3)):
        how = rng.choice((other_value, other_value, other_value, other_bytes, other_lines))
        content = how(rng, content)
    return content


def other_value(rng: random.Random, content: bytes) -> bytes:
    """Replaces or removes one value of one JSON row."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        row = json.loads(lines[at])
    except (ValueError, RecursionError):
        return other_bytes(rng, content)
    if not isinstance(row, dict) or not row:
        return content
    holder = row
    key = rng.choice(list(row))
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key] = rng.choice((rng.choice(STRANGE), "@@mark@@"))
    if rng.random() < 0.3:
        del holder[key]
    written = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    lines[at] = written.replace(b'"@@mark@@"', rng.choice(INVALID))
    return b"\n".join(lines)


def other_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bytes flipped, lost, added or cut off, or a piece of another log."""
    at = rng.randrange(len(content) + 1)
    another_log = rng.choice(CONTENTS)
    piece = rng.choice((b"\xff", b"\x00", b'"', b"\\", b"{", b"]", b"\n", b"\r\n", b"'"))
    begin = rng.randrange(len(another_log) + 1)
    end = rng.randint(1, 2000)
    return rng.choice(
        [
            content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
            content[:at] + content[at + rng.randint(1, 20) :],
            content[:at] + piece + content[at:],
            content[:at],
            content[at:],
            content[:at] + another_log[begin : begin + end] + content[at:],
        ]
    )


def other_lines(rng: random.Random, content: bytes) -> bytes:
    """Lines lost, duplicated or reordered."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    ways = [
        lines[:at] + lines[at + 1 :],
        lines[:at] + [lines[at]] * rng.randint(1, 3) + lines[at:],
        rng.sample(lines, len(lines)),
    ]
    return b"\n".join(rng.choice(ways))


def checked(path: Path, name: str, scratch: Path) -> list[Exchange | Reject]:
    """The outcomes of a file; fails where a row is lost or used twice."""
    (file,) = log_files(str(path))
    name = format_of(file) if name == "auto" else name
    items = list(read_records(name, [file], scratch))
    assert sum(item.rows for item in items) == file.rows, "a row lost or used twice"
    assert len({item.place for item in items}) == len(items), "a place twice"
    outcomes: list[Exchange | Reject] = []
    for item in items:
        assert item.rows >= 1 and item.place.file == file.name and item.place.line >= 1
        if isinstance(item, Record):
            became = parse_record(name, pickle.loads(pickle.dumps(item)))
            assert became, "a record that became nothing"
            read = [outcome for outcome in became if isinstance(outcome, Exchange)]
            assert len({outcome.call or outcome.choice for outcome in read}) == len(read)
            outcomes += became
        else:
            outcomes.append(item)
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            assert outcome.reason.isidentifier() and outcome.rows >= 1
            json.dumps([outcome.reason, outcome.detail]).encode()
    return outcomes


@pytest.mark.parametrize(
    "index", range(len(FILES)), ids=lambda index: str(FILES[index].relative_to(GOLDEN))
)
@examples(10)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_log_is_read_to_its_end(builder, tmp_path, index, seed):
    rng = random.Random(seed)
    path = tmp_path / FILES[index].name
    path.write_bytes(damaged(rng, CONTENTS[index]))
    format_name = FOLDERS[FILES[index].relative_to(GOLDEN).parts[0]]
    began = time.monotonic()
    for name in (format_name, "auto", rng.choice(list(FORMATS))):
        try:
            outcomes = checked(path, name, tmp_path)
        except OutriderError:  # a damaged container (Parquet, Arrow), whose rows are unknown
            continue
        for outcome in outcomes:
            if isinstance(outcome, Exchange):
                try:
                    sequence = builder.build(outcome)
                except Reject:
                    continue
                assert 0 < sequence.completion_start < len(sequence.token_ids)
    assert time.monotonic() - began < LONGEST


MESSAGES = b'"messages": [{"role": "user", "content": "x"}]'
UNFINISHED = b"INFO Received request chatcmpl-1: prompt: '"
HOSTILE = {
    "deep lists": b'{"request": {%s, "tools": ' % MESSAGES + b"[" * 50_000 + b"]" * 50_000 + b"}}",
    "deep objects": b'{"a": ' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "many objects": b"{}" * 5_000 + b"\n",
    "many keys": b"{" + b",".join(b'"k%d": 1' % index for index in range(20_000)) + b"}\n",
    "a long number": b'{"request": {}, "response": ' + b"9" * 1_000_000 + b"}\n",
    "a large exponent": b'{"request": {%s}, "response": {"created": 1e999999}}' % MESSAGES,
    "one key twice": b'{"request": {%s, %s}, "response": {}}' % (MESSAGES, MESSAGES),
    "utf-16": '{"request": {}, "response": {}}'.encode("utf-16"),
    "a long text": b'{"id": "' + b"x" * 1_000_000 + b'"}\n',
    "escapes": b'{"id": "' + b"\\\\" * 500_000 + b'"}\n',
    "quotes": b"'" * 1_000_000 + b"\n",
    "blank lines": b"\n" * 300_000,
    "brackets": b"[" * 200_000,
    "no end": b'{"request": {"messages": [{"role": "user", "content": "' + b"a" * 500_000,
    "unfinished requests": UNFINISHED + b"\\'" * 200_000 + b"\n",
    "unfinished ids": b"INFO Generated response 1: output: '', output_token_ids: ["
    + b"1, " * 300_000
    + b"\n",
    "many unfinished requests": (UNFINISHED + b"x\n") * 2_000,
    "almost an event": b"] Received request " * 100_000 + b"\n",
    "zeros": b"\x00" * 1_000_000 + b"\n",
    "noise": random.Random(0).randbytes(300_000),
    "surrogates": b'{"id": "' + b"\\ud800" * 100_000 + b'"}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_logs_are_rejected_in_bounded_time(name, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(HOSTILE[name])
    for format_name in ("auto", *FORMATS):
        began = time.monotonic()
        outcomes = checked(path, format_name, tmp_path)
        assert all(isinstance(outcome, Reject) for outcome in outcomes)
        assert time.monotonic() - began < LONGEST, format_name


def test_a_line_of_100_mb_takes_little_memory(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.write(b'{"request": {"messages": "')
        for _ in range(100):
            file.write(b"x" * 2**20)
        file.write(b'"}}\n{"request": {}, "response": {"error": "x"}}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = read_exchanges(log_files(str(path)))
    assert [outcome.reason for outcome in outcomes] == ["line_too_long", "error_response"]
    # kB; the limit is 64 MB a row.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
