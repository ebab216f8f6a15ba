"""Folders of logs from an attacker: they are read without their bad rows, or refused by name.

Each folder also has a good row. No code runs, nothing is written outside of the output, no process
waits, and what is printed about a file does not obey its content.
"""

import gzip
import json
import os
import pickle
import socket
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from outrider.common.errors import OutriderError
from outrider.common.inert import printable
from outrider.data.config import TrafficConfig
from outrider.data.files import sources, tables
from outrider.data.ingest.ingest import ingest
from tests.data.logs import pair, write_log

pytestmark = [pytest.mark.attack("logs"), pytest.mark.timeout(120)]

QUESTION = [{"role": "user", "content": "Hi"}]
ROW = pair(QUESTION, "r", "a")


class Evil:
    """Makes a file where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, ("ran", "w")


def blank_lines(folder: Path) -> None:
    with gzip.open(folder / "blank.jsonl.gz", "wb", compresslevel=9) as file:
        file.write(json.dumps(ROW).encode() + b"\n" + b"\n" * 5_000_000)


def parquet_value(folder: Path) -> None:
    """A value of 32 MB that a dictionary repeats."""
    table = pa.table({"prompt": ["a" * 2**25] * 8, "completion": ["b"] * 8})
    parquet.write_table(table, folder / "big.parquet", compression="zstd")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.jsonl")


def looping_link(folder: Path) -> None:
    (folder / "loop.jsonl").symlink_to("loop.jsonl")


def link_to_a_device(folder: Path) -> None:
    (folder / "zero.jsonl").symlink_to("/dev/zero")


def link_to_the_parent(folder: Path) -> None:
    (folder / "up").symlink_to(folder)


def listening_socket(folder: Path) -> None:
    home = Path.cwd()
    os.chdir(folder)  # a socket's path has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.jsonl")
    os.chdir(home)


def control_characters(folder: Path) -> None:
    """In a model's name, which messages and summaries print, and in a file's."""
    evil = "\x1b]0;pwned\x07\x1b[2J<script>"
    row = pair(QUESTION, "r", "a", request__model=evil, response__model=evil)
    write_log(folder / "\x1b]0;pwned\x07.jsonl", [row])


def deep_json(folder: Path) -> None:
    (folder / "deep.jsonl").write_bytes(b"[" * 1_000_000 + b"\n")


def long_line(folder: Path) -> None:
    (folder / "long.jsonl").write_bytes(b'{"a": "' + b"x" * 70_000_000 + b'"}\n')


def large_numbers(folder: Path) -> None:
    text = json.dumps(pair(QUESTION, "r", "a", request__temperature=7))
    lines = [text.replace(": 7", f": {number}") for number in ("1e400", "9" * 5_000, "-1e-400")]
    (folder / "numbers.jsonl").write_text("\n".join(lines))


def nul_characters(folder: Path) -> None:
    (folder / "nul.jsonl").write_bytes(bytes(10_000) + json.dumps(ROW).encode())


def lone_surrogates(folder: Path) -> None:
    write_log(folder / "surrogate.jsonl", [pair([{"role": "user", "content": "\ud83d"}], "r", "a")])


def token_ids(folder: Path) -> None:
    rows = []
    for ids in ([-1], [2**63], [10**30], [1.5], ["1"], [[1]], [None], [True]):
        rows.append(pair(QUESTION, "r", "a", response__choices__0__token_ids=ids))
        rows.append(pair(QUESTION, "r", "a", response__prompt_token_ids=ids))
    write_log(folder / "ids.jsonl", rows)


def pickles(folder: Path) -> None:
    for name in ("a.pkl", "b.jsonl", "c.pt", "d.npy"):
        (folder / name).write_bytes(pickle.dumps(Evil()))


def extension_types(folder: Path) -> None:
    field = pa.field(
        "prompt",
        pa.string(),
        metadata={"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": ""}
        | {"pickle": pickle.dumps(Evil()).hex()},
    )
    table = pa.table([pa.array(["x"])], schema=pa.schema([field]))
    parquet.write_table(table, folder / "extension.parquet")


def chat_template(folder: Path) -> None:
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}{% for x in range(10**12) %}{% endfor %}"
    row = pair(QUESTION, "r", "a", request__chat_template=evil)
    write_log(folder / "template.jsonl", [row])


def archives(folder: Path) -> None:
    """Members whose names lead outside, and a link."""
    with tarfile.open(folder / "evil.tar.gz", "w:gz") as tar:
        for name in ("../outside.jsonl", "/tmp/outside.jsonl"):
            content = json.dumps(ROW).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, BytesIO(content))
        link = tarfile.TarInfo("link.jsonl")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/passwd"
        tar.addfile(link)
    with zipfile.ZipFile(folder / "evil.zip", "w") as archive:
        archive.writestr("../outside.jsonl", json.dumps(ROW))


def archive_bomb(folder: Path) -> None:
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.jsonl", b'{"a": "' + bytes(100_000_000))


def spreadsheet(folder: Path) -> None:
    """A workbook with an external entity, and XML whose entities multiply."""
    laughs = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    text = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "ha">{laughs}]><x>&a9;</x>'
    (folder / "laughs.xml").write_text(text)
    with zipfile.ZipFile(folder / "book.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", text)


def sqlite_script(folder: Path) -> None:
    (folder / "log.sql").write_text("ATTACH DATABASE 'ran' AS x; CREATE TABLE x.a (b);\n")
    (folder / "log.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(1_000))


FOLDERS = [
    blank_lines, parquet_value, pipe, looping_link, link_to_a_device, link_to_the_parent,
    listening_socket, control_characters, deep_json, long_line, large_numbers, nul_characters,
    lone_surrogates, token_ids, pickles, extension_types, chat_template, archives, archive_bomb,
    spreadsheet, sqlite_script,
]  # fmt: skip


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("write", FOLDERS, ids=lambda write: write.__name__)
def test_a_folder(
    text_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    write: Callable[[Path], None],
) -> None:
    work = tmp_path / "work"
    logs = work / "logs"
    logs.mkdir(parents=True)
    monkeypatch.chdir(work)
    # The limits, a tenth of what they are: tests/data/files measures them as they are.
    monkeypatch.setattr(sources, "MOST_BLANK", sources.MOST_BLANK // 10)
    monkeypatch.setattr(tables, "BATCH_BYTES", tables.BATCH_BYTES // 10)
    write_log(logs / "good.jsonl", [ROW])
    write(logs)
    before = files_below(tmp_path)
    traffic = TrafficConfig(path=str(logs), max_reject_fraction=0.95, model="nano-r1")
    problem = ""
    try:
        assert ingest(text_target, traffic, tmp_path / "out", workers=0)["exchanges"] >= 1
    except OutriderError as error:
        problem = str(error)
        assert any(path.name in problem for path in logs.iterdir())
    printed = capsys.readouterr()
    for line in printable(problem + printed.out + printed.err).split("\n"):
        assert line.replace("\t", " ").isprintable(), line
    written = {name for name in files_below(tmp_path) - before if not name.startswith("out")}
    assert not written
