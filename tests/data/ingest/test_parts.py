"""An ingest gives the same result for any number of interrupts and workers."""

import hashlib

import pytest

from outrider.common.errors import OutriderError
from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.ingest import chunks, ingest
from outrider.data.ingest.chunks import ChunkWork
from outrider.data.sequences import load_sequences
from tests.data.ingest.test_ingest import BAD, good_rows
from tests.data.logs import pair, write_log


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", 7)


@pytest.fixture
def log(tmp_path):
    rows = good_rows(40)
    for index, bad in enumerate(BAD.values()):
        rows.insert(2 * index, bad)
    rows[3]["response"]["created"] = rows[9]["response"]["created"] = None
    return write_log(tmp_path / "log.jsonl", rows)


def run(target, log, out, workers=0, **config):
    traffic = TrafficConfig(path=str(log), max_reject_fraction=0.9, **config)
    ingest.ingest(target, traffic, out, workers, with_key(log))
    return digests(out)


def with_key(log):
    """Digests of users have the same key in every folder."""
    (log.parent / "key").write_bytes(bytes(32))
    return PrivacyConfig(key_file=str(log.parent / "key"))


def digests(out):
    """SHA-256 by name of all files of an ingest."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.rglob("*")
        if path.is_file()
    }


def test_any_number_of_workers_gives_the_same_bytes(
    text_target, log, tmp_path, small_chunks, monkeypatch
):
    alone = run(text_target, log, tmp_path / "alone")
    monkeypatch.undo()  # one chunk
    assert run(text_target, log, tmp_path / "whole")["rejects.jsonl"] == alone["rejects.jsonl"]
    whole = load_sequences(tmp_path / "whole" / "sequences")
    assert whole.to_list() == load_sequences(tmp_path / "alone" / "sequences").to_list()
    # Chunks are cut in this process, so its workers need no patch.
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", 7)
    assert run(text_target, log, tmp_path / "two", workers=2) == alone


def test_an_interrupted_ingest_goes_on(text_target, log, tmp_path, small_chunks, monkeypatch):
    expected = run(text_target, log, tmp_path / "expected")
    done = []

    def interrupted_after(limit):
        made = ChunkWork._make

        def make(self, chunk):
            if len(done) == limit:
                raise KeyboardInterrupt
            done.append(chunk.number)
            return made(self, chunk)

        return make

    for limit in (2, 5, 100):
        with monkeypatch.context() as patch:
            patch.setattr(ChunkWork, "_make", interrupted_after(limit))
            if limit < 100:
                with pytest.raises(KeyboardInterrupt):
                    run(text_target, log, tmp_path / "out")
                assert not (tmp_path / "out" / "sequences").exists()
            else:
                assert run(text_target, log, tmp_path / "out") == expected
    assert done == list(range(len(done))) and len(done) > 6  # each chunk once


@pytest.mark.parametrize("change", ["log", "model", "target"])
def test_parts_of_other_inputs_are_not_used(
    text_target, log, tmp_path, small_chunks, monkeypatch, change
):
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "check", lambda *arguments: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            run(text_target, log, tmp_path / "out")
    (before,) = (tmp_path / "out").glob(".parts")
    config = {}
    if change == "log":
        log.write_bytes(log.read_bytes() + b"\n")
    elif change == "model":
        config = {"model": "nano-r1"}
    else:
        other = tmp_path / "target"
        other.mkdir()
        for path in text_target.iterdir():
            (other / path.name).write_bytes(path.read_bytes())
        (other / "generation_config.json").write_text('{"temperature": 0.5}')
        text_target = other
    made = []
    make = ChunkWork._make
    with monkeypatch.context() as patch:
        patch.setattr(
            ChunkWork, "_make", lambda self, chunk: made.append(chunk.number) or make(self, chunk)
        )
        run(text_target, log, tmp_path / "out", **config)
    assert made and not before.exists()


def test_several_models_are_an_error_that_names_them(text_target, tmp_path):
    names = [
        "deepseek-ai/DeepSeek-R1",
        "deepseek-r1",
        "/models/deepseek-r1/",
        None,
        "DeepSeek-V3",
        "DeepSeek-V3",
    ]
    rows = [
        pair(
            [{"role": "user", "content": "x"}], "r", "a", response__model=name, request__model=None
        )
        for name in names
    ]
    log = write_log(tmp_path / "log.jsonl", rows)
    with pytest.raises(OutriderError) as caught:
        run(text_target, log, tmp_path / "out")
    assert "2 models (DeepSeek-V3 2, " in str(caught.value) and "deepseek-ai/DeepSeek-R1 1" in str(
        caught.value
    )
    assert "traffic.model" in str(caught.value)
    run(text_target, log, tmp_path / "out", model="vendor/DEEPSEEK-R1")
    table = load_sequences(tmp_path / "out" / "sequences")
    assert table["model"][:] == ["deepseek-ai/DeepSeek-R1", "deepseek-r1", "/models/deepseek-r1/"]
