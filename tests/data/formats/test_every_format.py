"""Properties of every format, over its golden files."""

import copy
import json
import random
from collections import Counter

import pytest

from outrider.data.config import TrafficConfig
from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats import FORMATS, format_of, parse_record, read_records
from outrider.data.formats.rows import row_records
from outrider.data.ingest.ingest import ingest
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.formats.golden import GOLDEN
from tests.data.formats.golden_rows import ANSWERED, ASKED, CUT_OFF, THOUGHT

SPELLINGS = {
    "openai_streams": "openai_pairs",
    "openai_completions": "openai_pairs",
    "openai_chunks": "openai_joined",
}
"""Format of the folders that are not named after theirs."""

FOLDERS = {path.name: SPELLINGS.get(path.name, path.name) for path in sorted(GOLDEN.iterdir())}
FILES = [
    (file, name) for folder, name in FOLDERS.items() for file in log_files(str(GOLDEN / folder))
]

ODD = (
    None,
    True,
    0,
    -1,
    1e400,
    2**70,
    "",
    "x",
    "\ud800",
    "[",
    '{"a": ',
    "NaN",
    [],
    [[]],
    [None],
    {},
    {"": {}},
    ["a", 1],
)
"""Replacements for a value of a row."""

MUTATIONS = 500


def test_every_format_has_a_golden_file():
    assert set(FOLDERS.values()) == set(FORMATS)


@pytest.mark.parametrize(
    "file, name", FILES, ids=[file.path.partition("golden/")[2] for file, _ in FILES]
)
def test_a_golden_file_is_recognized_as_its_own_format(file, name):
    assert format_of(file) == name


@pytest.mark.parametrize("folder, name", FOLDERS.items())
def test_every_row_is_used_once_and_no_detail_repeats_the_customer(folder, name, tmp_path):
    files = log_files(str(GOLDEN / folder))
    items = list(read_records(name, files, tmp_path))
    assert sum(item.rows for item in items) == sum(file.meter.rows for file in files) > 0
    outcomes = [
        outcome
        for item in items
        if isinstance(item, Record)
        for outcome in parse_record(name, item)
    ]
    keys = Counter((one.place, one.choice) for one in outcomes if isinstance(one, Exchange))
    assert set(keys.values()) == {1}
    told = " ".join(one.detail for one in (*outcomes, *items) if isinstance(one, Reject))
    assert not any(word in told for word in (ASKED, THOUGHT, ANSWERED, CUT_OFF, "Husum", "Tönning"))


@pytest.mark.parametrize("folder, name", FOLDERS.items())
def test_golden_files_go_all_the_way(folder, name, text_target, tmp_path):
    traffic = TrafficConfig(path=str(GOLDEN / folder), format=name, max_reject_fraction=0.99)
    summary = ingest(text_target, traffic, tmp_path, workers=0)
    assert summary["exchanges"] > 0 and set(summary["formats"]) == {name}


def places(value, path=()):
    """The path of every value in a row."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def mutated(row, draw):
    """A copy of a row with one to three of its values replaced or removed."""
    row = json.loads(json.dumps(row))
    for _ in range(draw.randint(1, 3)):
        *path, last = draw.choice([path for path in places(row) if path])
        holder = row
        for key in path:
            holder = holder[key]
        if isinstance(holder, dict) and draw.random() < 0.3 and len(row) > 1:
            del holder[last]
        elif isinstance(holder[last], str) and draw.random() < 0.3:
            holder[last] = holder[last][: draw.randrange(len(holder[last]) + 1)]
        else:
            holder[last] = copy.deepcopy(draw.choice(ODD))
    return row


def rows_of(folder):
    for path in sorted((GOLDEN / folder).glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


@pytest.mark.parametrize(
    "name", [name for name in FOLDERS if getattr(FORMATS.get(name), "records", None) is row_records]
)
def test_no_mutated_row_is_more_than_a_reject(name, text_target):
    """For formats with one record per row; joining formats have tests of their own."""
    draw = random.Random(name)
    builder = SequenceBuilder(text_target)
    rows = list(rows_of(name))
    for number in range(1, MUTATIONS + 1):
        payload = json.dumps(mutated(draw.choice(rows), draw)).encode()
        outcomes = parse_record(name, Record(Place("log", number), payload))
        assert outcomes
        for outcome in outcomes:
            if isinstance(outcome, Exchange):
                try:
                    builder.build(outcome)
                except Reject:
                    continue
