"""Dumps are read; whatever a pickle asks for beyond that is named and never run."""

import collections
import datetime
import importlib
import os
import pickle
import struct
import time
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import format_of, read_exchanges, unpickle
from outrider.data.ingest.sources import log_files

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang_dump"


def read(path):
    (file,) = log_files(str(path))
    rows = list(read_exchanges([file]))
    assert file.meter.rows == len(rows)
    return rows


def test_a_dump_of_requests():
    assert [format_of(file) for file in log_files(str(GOLDEN))] == ["sglang_dump"] * 3
    normal, multi, tool, cut, embedding = read(GOLDEN / "requests.pkl")
    assert normal.prompt_token_ids == [0, 11, 12, 13, 300000]
    assert normal.completion_token_ids == [51, 52, 128799, 54, 1]
    assert (normal.content, normal.stop_reason) == ("She codes.\n</think>\n\nYes.", 1)
    assert (normal.model, normal.time, normal.temperature) == ("deepseek-r1", 1782907200.25, 0.6)
    assert [row.place.line for row in (multi, tool, cut)] == [2, 3, 4]
    assert (cut.finish_reason, cut.time) == (
        "length",
        None,
    )  # a clock that counts from the start of the machine
    assert embedding.reason == "not_a_generation"


def test_a_crash_dump_has_requests_without_an_answer():
    answered, running = read(GOLDEN / "crash.pkl")
    assert isinstance(answered, Exchange)
    assert running.reason == "not_finished"


def test_the_list_alone_and_an_old_protocol():
    assert [row.prompt_token_ids for row in read(GOLDEN / "protocol2.pkl")] == [
        [0, 11, 12, 13, 300000],
        [0, 21, 22, 23],
    ]


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol):
    value = {
        "texts": ["", "é\u2028\n\\", "x" * 300, b"\x00\xff" * 200],
        "numbers": [0, 255, 256, -1, 2**31, -(2**31) - 1, 2**62, 1.5, float("inf")],
        "ids": list(range(3000)),
        "rest": [None, True, False, (), (1,), (1, 2, 3, 4), {}, {"a": {1: 2}}],
    }
    assert unpickle.unpickle(pickle.dumps(value, protocol)) == value


def test_containers_become_plain_ones():
    value = [
        collections.OrderedDict(a=1),
        collections.deque([1, 2]),
        {3},
        frozenset([4]),
        datetime.datetime(2026, 7, 1),
    ]
    for protocol in (2, 4, 5):
        ordered, deque, one, frozen, moment = unpickle.unpickle(pickle.dumps(value, protocol))
        assert (ordered, deque, one, frozen) == ({"a": 1}, [1, 2], [3], [4])
        assert moment.name == ("datetime", "datetime")


RAN = []


def ran(*arguments):
    RAN.append(arguments)


class Calls:
    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.reduced


class Stateful:
    def __setstate__(self, state):
        ran(state)

    def __getstate__(self):
        return {"a": 1}


def names(*texts):
    return b"".join(b"\x8c" + struct.pack("<B", len(text)) + text for text in texts)


MALICIOUS = {
    "os.system": pickle.dumps(Calls(os.system, "touch /tmp/outrider_ran")),
    "posix.system": b"cposix\nsystem\n(S'true'\ntR.",
    "builtins.eval": pickle.dumps(Calls(eval, "__import__('os').getpid()")),
    "builtins.exec of protocol 0": b"c__builtin__\nexec\n(S'1'\ntR.",
    "builtins.getattr": pickle.dumps(Calls(getattr, "x", "upper")),
    "deep inside a request": pickle.dumps({"requests": [({"text": Calls(eval, "1")}, {})]}),
    "a function of the tests": pickle.dumps(Calls(ran, 1)),
    "arguments of an allowed class": pickle.dumps(collections.OrderedDict(a=Calls(ran, 2))),
    "__setstate__": pickle.dumps(Stateful()),
    "a name with a dot": b"\x80\x04" + names(b"builtins", b"object.__subclasses__") + b"\x93.",
    "an attribute of a record": b"\x80\x04"
    + names(b"sglang.srt.server_args", b"ServerArgs.__init__")
    + b"\x93.",
    "persistent id": b"\x80\x02U\x03abcQ.",
    "persistent id of protocol 0": b"Pabc\n.",
    "extension code": b"\x80\x02\x82\x01.",
    "long extension code": b"\x80\x02\x84\x01\x00\x00\x00.",
    "buffer": b"\x80\x05\x97.",
    "old class": b"(S'true'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "calls what is no name": b"\x80\x02]K\x01\x85R.",
    "__newobj__ of what is no name": b"ccopyreg\n__newobj__\n(K\x01tR.",
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_nothing_is_ever_run(name, tmp_path, monkeypatch):
    def refuse(*arguments, **keywords):
        raise AssertionError("run")

    for module, function in (
        (os, "system"),
        (pickle, "load"),
        (pickle, "loads"),
        (importlib, "import_module"),
    ):
        monkeypatch.setattr(module, function, refuse)
    path = tmp_path / "dump.pkl"
    path.write_bytes(MALICIOUS[name])
    RAN.clear()
    (file,) = log_files(str(path))
    (row,) = read_exchanges([file], "sglang_dump")
    assert isinstance(row, Reject) and row.reason == "unsafe_pickle" and not RAN
    assert row.place.line == 1 and file.meter.rows == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("os.system", "asks for posix.system"),
        ("builtins.eval", "asks for builtins.eval"),
        ("deep inside a request", "asks for builtins.eval"),
        ("persistent id", "asks for a persistent id"),
        ("extension code", "asks for extension code 1"),
    ],
)
def test_a_refused_pickle_is_told_what_it_asked_for(name, said):
    with pytest.raises(Reject) as caught:
        unpickle.unpickle(MALICIOUS[name])
    assert caught.value.detail == said


def test_hostile_pickles_take_bounded_time_and_memory(monkeypatch):
    monkeypatch.setattr(unpickle, "MEMORY", 64 * 2**20)
    laughs = b"\x80\x02]q\x00K\x01a" + b"".join(
        b"]" + b"q" + bytes([level]) + b"(" + (b"h" + bytes([level - 1])) * 10 + b"e"
        for level in range(1, 200)
    )
    cases = {
        "nested lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "nested tuples": b"\x80\x04)" + b"\x85" * 200_000 + b".",
        "sets": b"\x80\x04" + b"\x8f" * 3_000_000 + b".",
        "memo far away": b"\x80\x02]r\xff\xff\xff\xff.",
        "a text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
        "a long number": b"\x80\x04\x8b" + struct.pack("<i", 10**6) + b"\x01" * 10**6 + b".",
        "a long number as text": b"I" + b"9" * 10**6 + b"\n.",
        "negative size": b"\x80\x02T\xff\xff\xff\xff.",
        "one hash for all": b"\x80\x04}("
        + b"".join(
            b"\x8a\x10" + (index * (2**61 - 1)).to_bytes(16, "little") + b"N"
            for index in range(1, 2000)
        )
        + b"u.",
        "copies of copies": b"\x80\x02cbuiltins\nlist\nq\x00]("
        + b"K\x01" * 1000
        + b"eq\x01"
        + b"0h\x00h\x01\x85R" * 30_000
        + b".",
        "no end": b"\x80\x04]",
        "empty stack": b"\x80\x040.",
        "laughs": laughs + b".",
        "frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
        "behind the end": b"\x80\x04N.N.",
    }
    for name, data in cases.items():
        began = time.monotonic()
        try:
            unpickle.unpickle(data)
        except Reject as reject:
            assert reject.reason in ("damaged_pickle", "pickle_too_large"), name
        assert time.monotonic() - began < 60, name


def test_values_that_requests_share_do_not_multiply(tmp_path):
    shared = list(range(100_000))
    asked = {"input_ids": shared, "text": "x"}
    path = tmp_path / "dump.pkl"
    path.write_bytes(
        pickle.dumps({"requests": [(asked, {"text": "a</think>b", "meta_info": {}})] * 5000})
    )
    rows = read(path)
    assert len(rows) == 5000
    assert rows[-1].reason == "pickle_too_large"


def test_circles(tmp_path):
    circle = []
    circle.append(circle)
    asked = {"input_ids": circle, "sampling_params": {}}
    asked["sampling_params"]["self"] = asked
    path = tmp_path / "dump.pkl"
    path.write_bytes(pickle.dumps({"requests": [(asked, {"text": "x"}), circle, 7]}))
    assert [row.reason for row in read(path)] == ["nested_too_deeply", "wrong_type", "wrong_type"]


def test_a_pickle_that_is_no_dump(tmp_path):
    for value in ({"requests": []}, {"a": 1}, 5, []):
        path = tmp_path / "dump.pkl"
        path.write_bytes(pickle.dumps(value))
        (row,) = read(path)
        assert row.reason == "not_a_dump"
