import gzip
import json
import sys

import pytest

from outrider.common.errors import OutriderError
from outrider.data.files import rows as framing
from outrider.data.files import sources
from outrider.data.files.rows import parse_row, read_rows
from outrider.data.files.sources import LogFile, log_files
from tests.data.formats.test_golden import GOLDEN

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

VALUES = [
    {"a": 1},
    {"b": 'quote " brace } bracket ] backslash \\ newline \n', "c": [[], {}, [1, {"d": "]"}]]},
    {"e": "ü\u2028"},
]


def file_of(tmp_path, content: bytes, name="log.json") -> LogFile:
    path = tmp_path / name
    path.write_bytes(content)
    (file,) = log_files(str(path))
    return file


def read(file):
    return [None if row is None else parse_row(row) for _, row in read_rows(file)]


FRAMINGS = {
    "lines": "\n".join(json.dumps(value) for value in VALUES),
    "lines, blank ones between": "\n\n".join(json.dumps(value) for value in VALUES) + "\n\n",
    "windows": "\r\n".join(json.dumps(value) for value in VALUES),
    "array": json.dumps(VALUES),
    "array and a newline": json.dumps(VALUES) + "\n",
    "array, pretty": json.dumps(VALUES, indent=2),
    "array, an element a line": "[\n" + ",\n".join(json.dumps(value) for value in VALUES) + "\n]\n",
    "array, not ascii": json.dumps(VALUES, ensure_ascii=False, indent=1),
    "objects, pretty": "\n".join(json.dumps(value, indent=2) for value in VALUES),
    "objects, pretty with tabs": "\n".join(json.dumps(value, indent="\t") for value in VALUES),
    "two arrays": json.dumps(VALUES[:1], indent=2) + json.dumps(VALUES[1:], indent=2),
}


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("name", FRAMINGS)
def test_every_way_to_write_rows(tmp_path, name, mark):
    file = file_of(tmp_path, (mark + FRAMINGS[name]).encode())
    assert read(file) == VALUES
    assert file.rows == 3


@pytest.mark.parametrize("separator", ["\n", ""])
def test_lists_of_lists_are_rows(tmp_path, separator):
    """Zipkin's API has a list of traces, and its clients write a batch a line."""
    batches = [json.dumps(VALUES[:2]), json.dumps(VALUES[2:])]
    text = separator.join(batches) if separator else f"[{', '.join(batches)}]"
    rows_of_file = [row for _, row in read_rows(file_of(tmp_path, text.encode()))]
    assert list(map(parse_row, rows_of_file)) == VALUES


def test_a_broken_line_damages_nothing_but_itself(tmp_path):
    lines = [b'{"a": {"b": [1, ', b'{"a": 1}', b'{"a": ', b'{"b": 2}']
    assert [row for _, row in read_rows(file_of(tmp_path, b"\n".join(lines)))] == lines


@pytest.mark.parametrize("limit_at", ["line", "element"])
def test_a_row_above_the_limit_is_never_held(tmp_path, monkeypatch, limit_at):
    for module in (sources, framing):
        monkeypatch.setattr(module, "LONGEST_LINE", 5_000)
    monkeypatch.setattr(sources, "CHUNK", 512)
    monkeypatch.setattr(framing, "LARGEST_VALUES", 12_000)
    values = [{"a": 1}, {"a": "x" * 10_000}, {"b": 2}]
    content = (
        "\n".join(map(json.dumps, values)) if limit_at == "line" else json.dumps(values, indent=1)
    )
    assert read(file_of(tmp_path, content.encode())) == [{"a": 1}, None, {"b": 2}]
    if limit_at == "element":
        with pytest.raises(OutriderError, match="write one object per line"):
            read(file_of(tmp_path, content.encode() * 2))


def test_compressed_files_and_their_damage(tmp_path):
    lines = "\n".join(json.dumps({"n": number, "text": "x" * 50}) for number in range(500)).encode()
    half = len(lines) // 2
    checked = {zstd.CompressionParameter.checksum_flag: 1}  # as the command writes them
    packed = {
        # Two members or frames each, as appending writers produce.
        ".gz": gzip.compress(lines[:half]) + gzip.compress(lines[half:]),
        ".zst": zstd.compress(lines[:half], options=checked)
        + zstd.compress(lines[half:], options=checked),
    }
    for suffix, content in packed.items():
        assert len(read(file_of(tmp_path, content, f"log.jsonl{suffix}"))) == 500
        changed = content[:40] + b"\0\0\0\0" + content[44:]
        cut = [content[:-5], content[: len(content) // 3]] if suffix == ".zst" else []
        for damaged in (changed, *cut):
            with pytest.raises(
                OutriderError, match=rf"log.jsonl{suffix}: damaged or truncated (gzip|zstd)"
            ):
                list(read_rows(file_of(tmp_path, damaged, f"log.jsonl{suffix}")))


def test_a_damaged_table_is_named(tmp_path):
    table = (GOLDEN / "messages" / "train-00000-of-00001.parquet").read_bytes()
    with pytest.raises(OutriderError, match=r"cut\.parquet: damaged Parquet"):
        list(read_rows(file_of(tmp_path, table[:-9], "cut.parquet")))


def test_blank_lines_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BLANK", 100)
    path = tmp_path / "x"
    path.write_bytes(b'{"a": 1}\n' * 10 + b" \r\n" * 200 + b'{"a": 2}\n')
    assert len(list(read_rows(log_files(str(path))[0]))) == 11, "ten for each row are allowed"
    path.write_bytes(b'{"a": 1}\n' + b" \r\n" * 200)
    with pytest.raises(OutriderError, match=r"x: 111 of the first 112 lines are blank; remove"):
        list(read_rows(log_files(str(path))[0]))
