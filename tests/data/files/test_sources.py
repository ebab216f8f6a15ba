"""Which files of a folder are a log: links, pipes, and what cannot be read."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from outrider.common.errors import OutriderError
from outrider.data.config import TrafficConfig
from outrider.data.files.sources import OPENED_AHEAD, log_files
from outrider.data.ingest.ingest import ingest
from tests.data.formats.test_golden import GOLDEN
from tests.data.logs import pair, write_log

ROWS = [pair([{"role": "user", "content": "Hi"}], "r", "a")]


@pytest.fixture
def folder(tmp_path):
    """A folder as Kubernetes leaves it, with one log that can be read."""
    folder = tmp_path / "logs"
    elsewhere = tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    write_log(folder / "b.jsonl", ROWS)
    (folder / "a.jsonl").symlink_to("b.jsonl")
    (folder / "gone.jsonl").symlink_to("deleted.jsonl")
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "linked").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe.jsonl")
    return folder


def test_only_regular_files_of_a_folder_are_read_once(text_target, folder, tmp_path, capsys):
    summary = ingest(text_target, TrafficConfig(path=str(folder)), tmp_path / "out")
    assert (summary["rows"], summary["files"]) == (1, [str(folder / "a.jsonl")])
    (line,) = capsys.readouterr().err.splitlines()
    for name, why in (
        ("gone.jsonl", "a link to nothing"),
        ("loop.jsonl", "a link to nothing"),
        ("linked", "a link to a folder"),
        ("pipe.jsonl", "not a regular file"),
    ):
        assert f"{folder / name} ({why})" in line


def test_a_file_and_links_to_it_are_one(folder):
    paths = [str(folder / name) for name in ("b.jsonl", "a.jsonl")]
    assert [file.path for file in log_files(paths)] == paths[:1]
    assert len(log_files(str(folder / "[ab].jsonl"))) == 1


@pytest.mark.parametrize(
    ("name", "why"),
    [("gone.jsonl", "link to nothing"), ("loop.jsonl", "link to nothing"), ("pipe.jsonl", "regul")],
)
@pytest.mark.parametrize("pattern", ["{}", "[{}]{}"], ids=["named", "glob"])
def test_a_path_that_is_no_file_is_an_error_that_names_it(folder, name, why, pattern):
    path = f"{folder}/{name}" if pattern == "{}" else f"{folder}/[{name[0]}]{name[1:]}"
    with pytest.raises(OutriderError, match=f"{name}.*{why}"):
        log_files(path)


def test_a_file_that_vanishes_is_named(folder):
    (file,) = log_files(str(folder))
    (folder / "b.jsonl").unlink()
    for read in (file.size, file.identity, lambda: list(file.lines())):
        with pytest.raises(OutriderError, match=r"a\.jsonl: removed or renamed while"):
            read()


LIST = """
import os, sys
from outrider.data.files.sources import OPENED_AHEAD, log_files
if os.getuid() == 0:
    os.setuid(65534)  # root may list every folder
not_read = []
print([file.name for file in log_files(sys.argv[1], not_read)], not_read)
"""


def test_a_subfolder_that_may_not_be_listed_is_named():
    with tempfile.TemporaryDirectory() as root:  # in a folder that everybody may enter
        folder = Path(root)
        folder.chmod(0o755)
        log = write_log(folder / "a.jsonl", ROWS)
        closed = folder / "closed"
        closed.mkdir(mode=0)
        command = [sys.executable, "-c", LIST, root]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert str(log) in listed and f"{closed} (Permission denied)" in listed


def test_a_folder_s_other_files_are_named_and_counted(text_target, tmp_path, capsys):
    folder = tmp_path / "logs"
    write_log(folder_file(folder, "a.jsonl"), ROWS)
    folder_file(folder, "config.json").write_text('{"model_type": "x"}')
    folder_file(folder, "app.log").write_text("started\nready\n")
    folder_file(folder, "table.csv").write_text("day,count\nmonday,3\n")
    folder_file(folder, ".part/b.jsonl").write_text("{")
    folder_file(folder, "_SUCCESS").touch()
    summary = ingest(text_target, TrafficConfig(path=str(folder)), tmp_path / "out")
    assert (summary["rows"], summary["exchanges"], summary["rejects"]) == (1, 1, {})
    assert len(summary["not_read"]) == 5
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("traffic.path: 5 files not read: without suffix 2, ")
    for text in (
        "config.json (rows with the keys model_type)",
        "app.log (text without JSON",
        "table.csv (rows with the keys day, count)",
        ".part (hidden)",
        "_SUCCESS (empty)",
    ):
        assert text in line


def folder_file(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


ROTATED = [
    "a.log.10.gz",
    "a.log.2.gz",
    "a.log.1",
    "a.log",
    "b.log-20260630",
    "b.log-20260701.gz",
    "b.log",
    "c.log.20260701-120000.gz",
    "c.log.20260701-130000",
    "c.log",
    "d.000001.jsonl",
    "d.000002.jsonl",
    "extensionless",
]


def test_rotated_files_are_read_in_the_order_of_time(tmp_path):
    for name in sorted(ROTATED):
        write_log(tmp_path / name, ROWS)
    assert [Path(file.name).name for file in log_files(str(tmp_path))] == ROTATED


class Store(MemoryFileSystem):
    """A remote store that counts opens, and lets none end before there are several."""

    protocol = "counted"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    opened: ClassVar = Counter()
    others: ClassVar = Counter()
    at_once = threading.Barrier(4)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counted://", "memory://"))

    def _open(self, path, *args, **kwargs):
        self.opened[path] += 1
        if path < "/logs/e":
            self.at_once.wait(timeout=60)  # raises if files are opened one after the other
        return super()._open(path, *args, **kwargs)

    def info(self, path, **kwargs):
        self.others[path] += 1
        return super().info(path, **kwargs)


@pytest.fixture
def store():
    fsspec.register_implementation("counted", Store, clobber=True)
    store = Store()
    for name in ("a", "b", "c", "d", "e", "f.vllm"):
        content = json.dumps(ROWS[0]).encode()
        if name == "f.vllm":
            content = (GOLDEN / "vllm_log" / "debug.log").read_bytes()
        store.store[f"/logs/{name}"] = MemoryFile(store, f"/logs/{name}", content)
    yield store
    for held in (store.store, store.opened, store.others):
        held.clear()


def test_remote_files_are_opened_twice_and_several_at_a_time(text_target, tmp_path, store):
    summary = ingest(
        text_target,
        TrafficConfig(path="counted://logs", max_reject_fraction=0.9),
        tmp_path / "out",
    )
    assert summary["formats"].keys() == {"openai_pairs", "vllm_log"}
    assert set(store.opened.values()) == {2} and len(store.opened) == 6
    # Sizes and digests come from the listing.
    assert not {path for path in store.others if path.startswith("/logs/")}


class FakeS3(MemoryFileSystem):
    """A store in memory under S3's protocol that keeps its client's options."""

    protocol = "s3"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]

    def __init__(self, *, config_kwargs: dict | None = None, **others) -> None:
        super().__init__(**others)
        self.config_kwargs = config_kwargs

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("s3://", "memory://"))


def test_s3_has_a_connection_for_each_file_opened_ahead(monkeypatch):
    """Its client keeps 10 unless told otherwise; what the user has configured stays."""
    # `fsspec.registry` is the public, unchangeable view of the module's dictionary.
    implementations = importlib.import_module("fsspec.registry")._registry
    monkeypatch.setitem(implementations, "s3", FakeS3)
    FakeS3().pipe_file("/logs/a.jsonl", json.dumps(ROWS[0]).encode())
    (file,) = log_files("s3://logs")
    assert file.filesystem.config_kwargs == {"max_pool_connections": OPENED_AHEAD}
    monkeypatch.setitem(
        fsspec.config.conf, "s3", {"config_kwargs": {"max_pool_connections": 5, "region": "x"}}
    )
    (file,) = log_files("s3://logs")
    assert file.filesystem.config_kwargs == {"max_pool_connections": 5, "region": "x"}
