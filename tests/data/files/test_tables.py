"""CSV and TSV tables, as trace stores and databases export them."""

import csv
import gzip
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outrider.common.errors import OutriderError
from outrider.data.files import packing, sources, tables
from outrider.data.files.rows import framing, read_rows
from outrider.data.files.sources import log_files
from tests.data.files.packers import as_csv

ROWS = [
    {"id": "o1", "input": {"messages": [{"content": 'a "quote", \\n and\nlines\t;'}]}, "n": "1.5"},
    {"id": "o2", "input": [1, {"a": None}], "n": "ü"},
]


def read(tmp_path, text: str):
    path = tmp_path / "x"
    path.write_text(text, encoding="utf-8", newline="")
    return [row for _, row in read_rows(log_files(str(path))[0])]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_cells_that_hold_json_are_decoded(tmp_path, delimiter, quoting, mark):
    assert read(tmp_path, mark + as_csv(ROWS, delimiter, quoting=quoting)) == ROWS


def test_quotes_escaped_by_backslashes(tmp_path):
    text = 'id,input\n1,"{\\"a\\": \\"b, c\\"}"\n'
    assert read(tmp_path, text) == [{"id": "1", "input": {"a": "b, c"}}]


def test_empty_cells_are_missing_and_cut_json_stays_text(tmp_path):
    text = 'id,input,output\n1,,"{""a"": "\n2,"[1]",\n'
    assert read(tmp_path, text) == [{"id": "1", "output": '{"a":'}, {"id": "2", "input": [1]}]


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("mark", ["\\N", "-", '"-"'])
def test_marks_of_no_value_are_missing(tmp_path, delimiter, mark):
    cells = (["id", "n", "note"], ["1", mark, "a - b"], ["2", "-1", mark])
    text = "".join(delimiter.join(row) + "\n" for row in cells)
    assert read(tmp_path, text) == [{"id": "1", "note": "a - b"}, {"id": "2", "n": "-1"}]


@pytest.mark.parametrize("delimiter", [",", "|", "\t"])
def test_redshift_escapes_line_feeds_quotes_and_delimiters(tmp_path, delimiter):
    """UNLOAD with ADDQUOTES and ESCAPE: a backslash before each."""
    row = {"id": "1", "messages": [{"content": 'a "b" | c, \\ d'}], "answer": '\n\nThe "end" |,\n'}
    marks = str.maketrans({mark: f"\\{mark}" for mark in '\\"\n|,'})
    cells = [json.dumps(row["messages"]), row["answer"]]
    quoted = [f'"{cell.translate(marks)}"' for cell in ("1", *cells)]
    text = delimiter.join(f'"{name}"' for name in row) + "\n" + delimiter.join(quoted) + "\n"
    assert read(tmp_path, text) == [row]


def test_a_row_with_too_many_cells_is_no_object(tmp_path):
    lines = ["id,input"] + [f"{number},x" for number in range(5)] + ["6,x, and y"]
    assert read(tmp_path, "\n".join(lines))[-1] == b"6,x, and y"


def test_a_row_above_the_limit_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("outrider.data.files.tables.LONGEST_LINE", 10)
    with pytest.raises(OutriderError, match=r"x: damaged CSV at line 3 \(a row of more"):
        read(tmp_path, "id,input\n1,2\n3," + "y" * 20 + "\n")


@pytest.mark.parametrize(
    "text",
    [
        "INFO 07-01 12:00:00 [api.py:1] Starting, with flags\nINFO 07-01 12:00:01 [a.py:2] x, y\n",
        "Loading weights, please wait\ndone\n",
        json.dumps({"a": 1}) + "\n" + json.dumps({"b": [1, 2]}) + "\n",
        "one column\n1\n2\n",
        "a,a\n1,2\n",
        "Traceback (most recent call last):\n",
    ],
)
def test_other_text_is_no_table(text):
    assert framing(text.encode()) == "lines"


def test_a_dictionary_s_large_value_is_decoded_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_BYTES", 2**20)
    path = tmp_path / "x.parquet"
    value = "a" * 2**19
    pq.write_table(pa.table({"text": [value] * 64}), path, compression="zstd")
    sizes = []
    parquet = pq.ParquetFile(path)
    for batch in tables._parquet(parquet, path.stat().st_size, "x"):
        sizes.append(batch.nbytes)
    assert sum(sizes) >= 64 * 2**19 and max(sizes) <= 2**20 + 2**10
    assert [row["text"] == value for _, row in read_rows(log_files(str(path))[0])] == [True] * 64


def test_a_table_of_a_few_bytes_that_would_fill_the_memory_is_named(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a" * 2**21] * 8}), path, compression="zstd")
    monkeypatch.setattr(tables, "BATCH_BYTES", 2**20)
    with pytest.raises(OutriderError, match=r"x.parquet: row group 1: 8 rows of 2 MB in a file of"):
        list(read_rows(log_files(str(path))[0]))
    monkeypatch.setattr(tables, "BATCH_BYTES", 2**28)
    monkeypatch.setattr(tables, "LONGEST_LINE", 2**17)
    with pytest.raises(OutriderError, match=r"row group 1: .*values of more than"):
        list(read_rows(log_files(str(path))[0]))


DAMAGED = """
import io, sys
from outrider.common.errors import OutriderError
from outrider.data.files.tables import table_rows
content = open(sys.argv[1], "rb").read()
refused = 0
for place in range(int(sys.argv[2]), len(content) - 8):
    for value in (0, 1, 0x15, 0x7f, 0xff):
        damaged = bytearray(content)
        damaged[place] = value
        try:
            list(table_rows(io.BufferedReader(io.BytesIO(damaged)), "parquet", "x"))
        except OutriderError:
            refused += 1
print(refused)
"""


def test_a_damaged_footer_does_not_end_the_process(tmp_path):
    """pyarrow aborts it where a column's metadata contradicts the schema."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": ["a", None], "tags": [["b"], []]}), path)
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    command = [sys.executable, "-c", DAMAGED, str(path), str(footer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100


def test_blank_rows_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MOST_BLANK", 100)
    few = "id,input\n1,2\n" + "\n" * 100 + "3,4\n"
    assert read(tmp_path, few) == [{"id": "1", "input": "2"}, {"id": "3", "input": "4"}]
    with pytest.raises(OutriderError, match=r"x: 111 of the first 112 lines are blank"):
        read(tmp_path, "id,input\n1,2\n" + "\n" * 200)


@pytest.mark.parametrize(
    "content",
    [
        {"text": 'a "quoted"\nline\\nabla', "rows": [1]},
        {"text": "only a line\n"},
    ],
)
def test_backslashes_that_a_database_doubled_are_single_again(tmp_path, content):
    """`mysql --batch`, PostgreSQL's COPY and ClickHouse escape backslashes, tabs and newlines."""
    path = tmp_path / "a.tsv"
    cell = json.dumps(content).replace("\\", "\\\\")
    path.write_text(f"id\trequest\tnote\n1\t{cell}\ttwo\\nlines\\tand \\\\ more\n2\t{cell}\t\\N\n")
    (file,) = log_files(str(path))
    first, second = [row for _, row in read_rows(file)]
    assert first == {"id": "1", "request": content, "note": "two\nlines\tand \\ more"}
    assert second == {"id": "2", "request": content}


def test_json_in_tabs_that_was_not_escaped_stays_as_it_is(tmp_path):
    path = tmp_path / "a.tsv"
    content = {"text": 'a "quoted"\nline\\nabla'}
    path.write_text(f"id\trequest\n1\t{json.dumps(content)}\n")
    (file,) = log_files(str(path))
    assert [row for _, row in read_rows(file)] == [{"id": "1", "request": content}]


@pytest.mark.parametrize(
    "row",
    [
        "1," + "x" * 5000,  # in one line
        "1," + '"\n",' * 1500,  # in many lines, of short cells
        '1,"' + "x" * 3000 + "\n" * 3000,  # in a cell that does not end
    ],
)
def test_a_row_of_a_csv_takes_no_more_memory_than_a_row_of_json(
    tmp_path, monkeypatch, row: str
) -> None:
    """Its lines are read up to the limit: a few MB of gzip can hold a line of many GB."""
    monkeypatch.setattr(tables, "LONGEST_LINE", 4000)
    read_at_once: list[int] = []

    class Watched(tables._BoundedRows):
        def __next__(self) -> str:
            line = super().__next__()
            read_at_once.append(len(line))
            return line

    monkeypatch.setattr(tables, "_BoundedRows", Watched)
    whole = "request,response\n" + "1,b\n" * 2000
    assert len(read(tmp_path, whole)) == 2000  # the limit is that of a row
    with pytest.raises(OutriderError, match="damaged CSV"):
        read(tmp_path, whole + row)
    assert max(read_at_once) <= 4000


@pytest.mark.parametrize("content", [b"PAR1", b"ARROW1"])
def test_a_compressed_table_takes_a_limited_part_of_the_disk(
    tmp_path, monkeypatch, content: bytes
) -> None:
    monkeypatch.setattr(packing, "LARGEST_MEMBER", 3 * 2**20)
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(content + bytes(2**22)))
    (file,) = log_files(str(path))
    with pytest.raises(OutriderError, match="compressed again and has more than"):
        list(read_rows(file))
