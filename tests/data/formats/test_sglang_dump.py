"""Dumps are read; whatever a pickle asks for beyond that is named and never run."""

import collections
import json
import os
import pickle
import struct
from pathlib import Path

import pytest

from outrider.data.exchange import Reject
from outrider.data.formats import unpickle
from outrider.data.formats.sources import log_files
from tests.data.logs import read_exchanges

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
    "old class": b"(S'true'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "__newobj__ of what is no name": b"ccopyreg\n__newobj__\n(K\x01tR.",
}


@pytest.mark.parametrize("name", MALICIOUS)
def test_nothing_is_ever_run(name, monkeypatch):
    monkeypatch.setattr(os, "system", ran)
    RAN.clear()
    (line,) = unpickle.lines_of(MALICIOUS[name])
    reason, detail = json.loads(line)["reject"]
    assert reason == "unsafe_pickle" and not RAN
    assert detail.startswith("references ")
    if name in ("posix.system", "builtins.eval"):
        assert detail == f"references {name}"


def test_what_only_a_damaged_pickle_holds_is_a_reject():
    for data in (
        b"\x80\x02\x82\x01.",
        b"\x80\x05\x97.",
        b"\x80\x02]K\x01\x85R.",
        b"\x80\x04]",
        b"",
    ):
        (line,) = unpickle.lines_of(data)
        assert json.loads(line)["reject"][0] == "damaged_pickle"
    (line,) = unpickle.lines_of(pickle.dumps([1]) * 2)
    assert json.loads(line)["reject"][1].startswith("data after its end")


def test_hostile_pickles_end_within_the_limits_of_their_process(tmp_path, monkeypatch):
    program = tmp_path / "unpickle.py"
    source = Path(unpickle.__file__).read_text()
    program.write_text(
        source.replace("MEMORY = 4 * 2**30", "MEMORY = 2**28").replace(
            "SECONDS = 120", "SECONDS = 1"
        )
    )
    monkeypatch.setattr(unpickle, "__file__", str(program))
    one_hash = b"".join(
        b"\x8a\x10" + (index * (2**61 - 1)).to_bytes(16, "little") + b"N"
        for index in range(1, 50_000)
    )
    cases = {
        "a text longer than the file": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"x.",
        "a deep list": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
        "one hash for all keys": b"\x80\x04}(" + one_hash + b"u.",
        "sets": b"\x80\x04" + b"\x8f" * 3_000_000 + b".",
    }
    for name, data in cases.items():
        path = tmp_path / "dump.pkl"
        path.write_bytes(data)
        (file,) = log_files(str(path))
        rows = list(read_exchanges([file], "sglang_dump"))
        assert rows and file.rows == len(rows), name
        assert all(isinstance(row, Reject) for row in rows), name


def test_values_that_requests_share_do_not_multiply(tmp_path):
    shared = list(range(100_000))
    asked = {"input_ids": shared, "text": "x"}
    path = tmp_path / "dump.pkl"
    path.write_bytes(
        pickle.dumps({"requests": [(asked, {"text": "a</think>b", "meta_info": {}})] * 20})
    )
    rows = list(read_exchanges(log_files(str(path))))
    assert len(rows) == 20
    assert rows[-1].reason == "pickle_too_large"
