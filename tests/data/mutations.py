"""Damaged logs: golden files with a few defects, and the properties of any outcome.

    content = mutated(random.Random(7), path.read_bytes(), others)

The defects are those of a full disk, a manual edit or malice. `checked` verifies that each row is
used once and becomes exchanges or a counted reject.
"""

import json
import pickle
import random
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats import UNKNOWN, format_of, parse_record, read_records
from outrider.data.ingest.sources import LogFile, log_files

GOLDEN = Path(__file__).parent / "golden"

STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1.5, 2**31, 10**30, -(10**400), 1e300),
    *(
        "",
        " ",
        "x" * 5000,
        "../../etc/passwd",
        "a\x00b",
        "\ud83d",
        "\u2028",
        "<think>",
        "</think>",
        "2026-99-99T00:00:00Z",
        "...",
    ),
    *(
        [],
        {},
        [None],
        [[]],
        [{}],
        {"": {}},
        ["a", 1],
        [-1],
        [2**40],
        [1.5],
        {"role": "user"},
        [True],
    ),
]
"""Replacements for a value."""

TOKENS = (
    *(
        b"NaN",
        b"Infinity",
        b"-0",
        b"1e999",
        b'"\\ud800"',
        b'"\xff\xfe"',
        b"9" * 5000,
        b"[" * 3000 + b"]" * 3000,
    ),
    *(b'{"a":' * 300 + b"1" + b"}" * 300, b'{"id":1,"id":2}', b"tru", b"'single'", b'"unfinished'),
)
"""Text that replaces a JSON value; most of it is invalid."""


def golden_files() -> list[tuple[str, Path]]:
    """Every golden file with the name of its folder, mostly that of a format."""
    return [
        (folder.name, path)
        for folder in sorted(GOLDEN.iterdir())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".md"
    ]


def mutated(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """The content with one to three defects."""
    for _ in range(rng.randint(1, 3)):
        content = rng.choice(_MUTATIONS)(rng, content, others)
    return content


def _json_value(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Replaces, removes or duplicates one value of one JSON row."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        row = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _bytes(rng, content, others)
    if not isinstance(row, dict) or not row:
        return content
    holder, key = row, rng.choice(list(row))
    while isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.8:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    how = rng.randrange(4)
    mark = "@@mark@@"
    if how == 0:
        del holder[key]
    elif how == 1:
        holder[key] = rng.choice(STRANGE)
    elif how == 2:
        holder[key] = mark
    else:
        other, its = row, rng.choice(list(row))
        holder[key] = [holder[key]] if rng.random() < 0.5 else other[its]
    try:
        written = json.dumps(row, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    except ValueError:  # a row that now holds itself
        return content
    if how == 2:
        written = written.replace(f'"{mark}"'.encode(), rng.choice(TOKENS))
    if rng.random() < 0.1:  # a key twice
        written = written.replace(b"{", b'{"id": 1, "id": 2, ', 1)
    lines[at] = written
    return b"\n".join(lines)


def _bytes(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Bytes flipped, lost or added."""
    held = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(held)) if held else 0
        how = rng.randrange(4)
        if how == 0 and held:
            held[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del held[at : at + rng.randint(1, 20)]
        elif how == 2:
            held[at:at] = rng.choice(
                (b"\xff", b"\x00", b'"', b"\\", b"{", b"]", b"\n", b"\r\n", b"'", b"\xed\xa0\x80")
            )
        else:
            held[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(held)


def _cut(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """The end or the beginning is missing."""
    at = rng.randrange(len(content) + 1)
    return content[:at] if rng.random() < 0.7 else content[at:]


def _splice(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Inserts a piece of another log."""
    other = rng.choice(others)
    begin, at = rng.randrange(len(other) + 1), rng.randrange(len(content) + 1)
    return content[:at] + other[begin : begin + rng.randint(1, 2000)] + content[at:]


def _lines(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Lines lost, duplicated or reordered."""
    lines = content.split(b"\n")
    how, at = rng.randrange(4), rng.randrange(len(lines))
    if how == 0:
        del lines[at]
    elif how == 1:
        lines[at:at] = [lines[at]] * rng.randint(1, 3)
    elif how == 2:
        rng.shuffle(lines)
    else:
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    return b"\n".join(lines)


_MUTATIONS = (_json_value, _json_value, _json_value, _bytes, _bytes, _cut, _splice, _lines)


def checked(file: LogFile, name: str, scratch: Path) -> tuple[int, list[Exchange | Reject]]:
    """The rows of a file and their outcomes; fails where a row is lost or used twice."""
    name = format_of(file) if name == "auto" else name
    outcomes: list[Exchange | Reject] = []
    used = 0
    places = set()
    for item in read_records(name, [file], scratch):
        used += item.rows
        assert item.rows >= 1 and item.place.file == file.name and item.place.line >= 1
        assert item.place not in places, f"{item.place} twice"
        places.add(item.place)
        if isinstance(item, Record):
            assert name != UNKNOWN
            again = pickle.loads(pickle.dumps(item))  # as a worker receives it
            became = parse_record(name, again)
            assert became, "a record that became nothing"
            choices = [outcome.choice for outcome in became if isinstance(outcome, Exchange)]
            assert len(set(choices)) == len(choices)
            outcomes += became
        else:
            outcomes.append(item)
    assert used == file.meter.rows, f"{file.meter.rows} rows read, {used} used"
    for outcome in outcomes:
        if isinstance(outcome, Exchange):
            _check_exchange(outcome)
        else:
            assert type(outcome) is Reject and outcome.reason.isidentifier() and outcome.rows >= 1
            json.dumps([outcome.reason, outcome.detail]).encode()
    return used, outcomes


def _check_exchange(exchange: Exchange) -> None:
    assert exchange.finish_reason in ("stop", "length")
    assert (
        exchange.messages is not None
        or exchange.prompt_token_ids is not None
        or exchange.prompt_text is not None
    )
    for ids in (exchange.prompt_token_ids, exchange.completion_token_ids):
        assert ids is None or all(type(one) is int for one in ids)
    for text in (
        exchange.prompt_text,
        exchange.reasoning,
        exchange.content,
        exchange.session,
        exchange.tenant,
        exchange.model,
    ):
        assert text is None or text.encode() is not None
    for number in (exchange.time, exchange.temperature, exchange.top_p, exchange.weight):
        assert number is None or abs(number) < 1e309
    assert isinstance(exchange.stop_strings, tuple)


def one_file(path: Path) -> LogFile:
    """A fresh `LogFile` of a path."""
    (file,) = log_files(str(path))
    return file
