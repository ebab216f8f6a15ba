"""Damaged golden logs of every format: no crash, no row lost, no row twice.

`make test-long` runs the same at length.
"""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import FORMATS, format_of, read_exchanges
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.mutations import GOLDEN, checked, golden_files, mutated, one_file
from tests.fuzzing import examples

FILES = golden_files()
CONTENTS = [path.read_bytes() for _, path in FILES]
LONGEST = 60.0
"""Limit in seconds for one damaged log of some tens of lines; a quadratic reader takes more."""


@pytest.fixture(scope="module")
def builder(text_target):
    return SequenceBuilder(text_target)


@pytest.mark.parametrize("folder", sorted({name for name, _ in FILES}))
def test_golden_logs_are_recognized_and_read(folder, tmp_path):
    names = {format_of(file) for file in log_files(str(GOLDEN / folder))}
    assert names == {folder} if folder in FORMATS else names <= set(FORMATS)
    outcomes = list(read_exchanges(log_files(str(GOLDEN / folder))))
    assert any(isinstance(outcome, Exchange) for outcome in outcomes)
    for name, path in FILES:
        if name == folder:
            assert checked(one_file(path), "auto", tmp_path)[0]


def test_every_format_has_golden_logs():
    assert set(FORMATS) <= {name for name, _ in FILES}


@pytest.mark.parametrize(
    "index", range(len(FILES)), ids=lambda index: f"{FILES[index][0]}-{FILES[index][1].name}"
)
@examples(10)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_log_is_read_to_its_end(builder, tmp_path, index, seed):
    rng = random.Random(seed)
    name, golden = FILES[index]
    path = tmp_path / golden.name
    path.write_bytes(mutated(rng, CONTENTS[index], CONTENTS))
    began = time.monotonic()
    for format_name in (name if name in FORMATS else "auto", "auto", rng.choice(list(FORMATS))):
        try:
            _, outcomes = checked(one_file(path), format_name, tmp_path)
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


HOSTILE = {
    "deep lists": b'{"request": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "deep objects": b'{"a": ' * 50_000 + b"1" + b"}" * 50_000 + b"\n",
    "many objects": b"{}" * 20_000 + b"\n",
    "many keys": b"{" + b",".join(b'"k%d": 1' % index for index in range(20_000)) + b"}\n",
    "a long number": b'{"request": {}, "response": ' + b"9" * 1_000_000 + b"}\n",
    "a long text": b'{"id": "' + b"x" * 1_000_000 + b'"}\n',
    "escapes": b'{"id": "' + b"\\\\" * 500_000 + b'"}\n',
    "quotes": b"'" * 1_000_000 + b"\n",
    "blank lines": b"\n" * 300_000,
    "brackets": b"[" * 200_000,
    "no end": b'{"request": {"messages": [{"role": "user", "content": "' + b"a" * 500_000,
    "carriage returns": b"Received request 1: prompt: 'a\r\n" * 2_000,
    "unfinished requests": b"INFO Received request chatcmpl-1: prompt: '"
    + b"\\'" * 200_000
    + b"\n",
    "unfinished ids": b"INFO Generated response 1: output: '', output_token_ids: ["
    + b"1, " * 300_000
    + b"\n",
    "many unfinished requests": b"".join(
        b"INFO Received request %d: prompt: 'x\n" % index for index in range(2_000)
    ),
    "almost an event": b"] Received request " * 100_000 + b"\n",
    "zeros": b"\x00" * 1_000_000 + b"\n",
    "marks": b"(" * 1_000_000,
    "surrogates": b'{"id": "' + b"\\ud800" * 100_000 + b'"}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_logs_take_bounded_time(name, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(HOSTILE[name])
    for format_name in ("auto", *FORMATS):
        began = time.monotonic()
        checked(one_file(path), format_name, tmp_path)
        assert time.monotonic() - began < LONGEST, format_name
