"""The same rows in any files, compression, encoding, archive and framing are the same log."""

import dataclasses
import functools
import gzip
import io
import json
import random
import tarfile
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import value_digest
from outrider.data.exchange import Exchange, Reject
from outrider.data.files import packing
from outrider.data.files.rows import parse_row, read_rows
from outrider.data.files.sources import log_files
from outrider.data.formats import files_by_format
from tests.data.files.packers import (
    CODECS,
    CONTAINERS,
    DRIVERS,
    ENCODINGS,
    FRAMINGS,
    as_csv,
    as_tar,
    as_zip,
    encoded,
)
from tests.data.formats.test_golden import GOLDEN
from tests.data.logs import WORDS, pair, read_exchanges, screenings
from tests.fuzzing import examples

LONG = "lange Antwort — naïve façade? " * 1500
"""More than runtimes keep of a line, with characters that a cut may split."""

PAIRS = [
    pair(messages, reasoning, answer, response__id=f"chatcmpl-{number}")
    for number, (messages, reasoning, answer) in enumerate(screenings(7))
]
PAIRS.append(pair([{"role": "user", "content": WORDS}], LONG, WORDS, response__id="chatcmpl-l"))
HALVES = [
    {"request_id": f"r{number}", side: row[side]}
    for side in ("response", "request")
    for number, row in enumerate(PAIRS)
]
"""The same exchanges as separate rows."""


NO_REQUESTS = {"not_a_generation", "unknown_format"}
"""Reasons for lines without requests, and for files of them."""


def without_places(outcomes) -> list[str]:
    """Digests of the exchanges in an order that files do not change."""
    rejects = [vars(one) for one in outcomes if isinstance(one, Reject)]
    assert [reject for reject in rejects if reject["reason"] not in NO_REQUESTS] == []
    exchanges = [one for one in outcomes if isinstance(one, Exchange)]
    return sorted(value_digest(dataclasses.asdict(one) | {"place": None}) for one in exchanges)


def read_folder(folder: Path) -> list[str]:
    not_read: list[str] = []
    outcomes = without_places(list(read_exchanges(log_files(str(folder), not_read))))
    assert not_read == []
    return outcomes


@functools.cache
def plain(kind: int) -> list[str]:
    """What plain JSON lines in one file give, for pairs (0) and for joined rows (1)."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log.jsonl").write_text(FRAMINGS["lines"]((PAIRS, HALVES)[kind]))
        outcomes = read_folder(Path(folder))
    assert len(outcomes) == len(PAIRS)
    return outcomes


def stored(rng: random.Random, log: list[dict]) -> dict[str, bytes]:
    """The rows in one to four files, each stored in another way, perhaps in an archive."""
    cuts = sorted(rng.randrange(1, len(log)) for _ in range(rng.randrange(4)))
    files = {}
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(log)], strict=True)):
        if begin == end:
            continue
        text = FRAMINGS[rng.choice(list(FRAMINGS))](log[begin:end])
        content = encoded(text, rng.choice(ENCODINGS))
        content = CODECS[rng.choice(list(CODECS))](content)
        files[
            rng.choice(["", "a/", "../../"])
            + rng.choice(["x.jsonl.", "part-", "l.gz."])
            + str(number)
        ] = content
    if rng.random() < 0.4:
        container = rng.choice(list(CONTAINERS))
        return {rng.choice(["logs.bin", f"logs.{container}"]): CONTAINERS[container](files)}
    return {name.replace("../", ""): content for name, content in files.items()}


@given(st.integers(0, 2**32), st.sampled_from([0, 1]))
@examples(60)
def test_any_way_to_store_rows_gives_the_same_exchanges(seed, kind):
    rng = random.Random(seed)
    log = list((PAIRS, HALVES)[kind])
    rng.shuffle(log)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in stored(rng, log).items():
            path = Path(folder) / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        assert read_folder(Path(folder)) == plain(kind)


VLLM = (GOLDEN / "vllm_log" / "debug.log").read_bytes().splitlines()


def outcomes_of_vllm(folder: Path) -> Counter[str]:
    outcomes = read_exchanges(log_files(str(folder)))
    return Counter(
        value_digest(dataclasses.asdict(one) | {"place": None, "time": None})
        if isinstance(one, Exchange)
        else one.reason
        for one in outcomes
        if not isinstance(one, Reject) or one.reason not in NO_REQUESTS
    )


@given(st.integers(0, 2**32))
@examples(25)
def test_a_server_s_log_in_any_driver_and_rotation_is_the_same(seed):
    rng = random.Random(seed)
    cut = rng.randrange(len(VLLM))
    drive = DRIVERS[rng.choice(list(DRIVERS))]
    compress = CODECS[rng.choice(list(CODECS))]
    with tempfile.TemporaryDirectory() as plain, tempfile.TemporaryDirectory() as rotated:
        (Path(plain) / "vllm.log").write_bytes(b"\n".join(VLLM))
        (Path(rotated) / "vllm.log.1").write_bytes(compress(drive(VLLM[:cut])))
        (Path(rotated) / "vllm.log").write_bytes(drive(VLLM[cut:]))
        assert outcomes_of_vllm(Path(rotated)) == outcomes_of_vllm(Path(plain))


def test_a_table_is_read_in_any_compression_and_under_any_name(tmp_path):
    table = io.BytesIO()
    cells = [{key: json.dumps(value) for key, value in row.items()} for row in PAIRS]
    pq.write_table(pa.Table.from_pylist(cells), table)
    for name, content in {
        "a": table.getvalue(),
        "b.json": gzip.compress(table.getvalue()),
        "c": as_zip({"x": table.getvalue()}),
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(content)
        assert len(read_folder(folder)) == len(PAIRS)


def test_limits_of_archives(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(as_tar({str(number): b"{}" for number in range(3)}))
    files = log_files(str(path))
    monkeypatch.setattr(packing, "MOST_MEMBERS", 2)
    with pytest.raises(OutriderError, match=r"a\.tar: an archive of more than 2 files; unpack it"):
        files_by_format(files)
    monkeypatch.setattr(packing, "MOST_MEMBERS", 3)
    monkeypatch.setattr(packing, "LARGEST_MEMBER", 1)
    with pytest.raises(OutriderError, match=r"a\.tar: '0' has .* GB, above"):
        files_by_format(files)


def test_an_archive_in_an_archive_is_not_opened(tmp_path):
    (tmp_path / "a.zip").write_bytes(
        as_zip({"in.zip": as_zip({"x": b"{}"}), "log": FRAMINGS["lines"](PAIRS).encode()})
    )
    not_read: list[str] = []
    (files,) = files_by_format(log_files(str(tmp_path)), not_read=not_read).values()
    assert [file.name for file in files] == [f"{tmp_path}/a.zip:log"]
    assert len(not_read) == 1 and "a.zip:in.zip (a zip archive" in not_read[0]


def test_links_in_an_archive_are_not_followed(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(FRAMINGS["lines"](PAIRS))
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("log.jsonl")
        link.type = tarfile.SYMTYPE
        link.linkname = str(secret)
        archive.addfile(link)
    ((name, (file,)),) = files_by_format(log_files(str(path))).items()
    assert name == "unknown" and "archive without files" in file.unknown[0]


@pytest.mark.parametrize("container", ["tar", "tar.gz", "zip"])
def test_a_damaged_archive_is_named(tmp_path, container):
    path = tmp_path / "logs"
    content = CONTAINERS[container]({"log": FRAMINGS["lines"](PAIRS).encode() * 20})
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(OutriderError, match=r"logs: damaged or truncated (tar|zip|gzip)"):
        files_by_format(log_files(str(path)))


def test_an_encrypted_archive_is_named(tmp_path):
    path = tmp_path / "logs.zip"
    content = bytearray(as_zip({"log": b"{}"}))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(OutriderError, match=r"logs\.zip: .*encrypted"):
        files_by_format(log_files(str(path)))


@pytest.mark.parametrize(
    ("codec", "damage"),
    [
        *((codec, "changed") for codec in ("gzip", "zstd", "bzip2", "xz")),
        *((codec, "cut") for codec in ("zstd", "bzip2", "xz")),
    ],
)
def test_damaged_compression_is_named(tmp_path, codec, damage):
    lines = FRAMINGS["lines"](PAIRS).encode() * 20
    content = bytearray(CODECS[codec](lines))
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2 : len(content) // 2 + 40] = bytes(40)
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(OutriderError, match=f"log: damaged or truncated {codec}"):
        list(read_rows(log_files(str(path))[0]))


LINES = "".join(f'{{"n": {number}, "text": "{"x" * (number % 7)}"}}\n' for number in range(400))
TABLE = "n,text\n" + "".join(f'{number},"x, {number}"\n' for number in range(400))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    "text",
    [LINES, f"[{LINES.strip().replace(chr(10), ',')}]", TABLE],
    ids=["lines", "array", "csv"],
)
def test_a_gzip_without_its_end_is_read_up_to_the_cut(tmp_path, text, share):
    whole_path = tmp_path / "whole.gz"
    whole_path.write_bytes(gzip.compress(text.encode()))
    whole = [parse_row(row) for _, row in read_rows(log_files(str(whole_path))[0])]
    stored = whole_path.read_bytes()
    path = tmp_path / "cut.gz"
    path.write_bytes(stored[: round((len(stored) - 1) * share)])
    (file,) = log_files(str(path))
    *complete, last = [row for _, row in read_rows(file)]
    parsed = [parse_row(row) for row in complete]
    assert parsed == whole[: len(parsed)] and len(parsed) > 0.5 * share * len(whole) - 20
    with pytest.raises(Reject) as rejected:
        parse_row(last)
    assert rejected.value.reason == "file_cut" and file.rows == len(parsed) + 1


@pytest.mark.parametrize("log", ["vllm_log/debug.log", "sglang/level3.jsonl", "openai_pairs"])
def test_the_cut_of_a_log_is_counted_once(tmp_path, log):
    source = GOLDEN / log
    text = source.read_bytes() if source.is_file() else FRAMINGS["lines"](PAIRS).encode() * 20
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(text)[:-9])
    outcomes = list(read_exchanges(log_files(str(path))))
    assert [getattr(one, "reason", "") for one in outcomes].count("file_cut") == 1
    assert any(isinstance(outcome, Exchange) for outcome in outcomes)


def test_rows_of_utf_16_that_are_no_text_are_rejected_alone(tmp_path):
    path = tmp_path / "log.json"
    lines = '{"a": "x"}\n{"b": "\ud83d"}\n{"c": 1}\n'
    path.write_bytes(b"\xff\xfe" + lines.encode("utf-16-le", "surrogatepass") + b"\x7b")
    found = [row for _, row in read_rows(log_files(str(path))[0])]
    assert found[0] == b'{"a": "x"}' and found[2] == b'{"c": 1}'
    assert found[1] is not None and b"\xed\xa0\xbd" in found[1]


def test_names_of_members_are_distinct(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("log", FRAMINGS["lines"](PAIRS[:3]))
        archive.writestr("log", as_csv(PAIRS[3:]))
    (tmp_path / "a").write_bytes(buffer.getvalue())
    ((files),) = files_by_format(log_files(str(tmp_path))).values()
    assert len({file.name for file in files}) == 2
    assert len(read_folder(tmp_path)) == len(PAIRS)
