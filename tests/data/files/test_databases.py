"""Tables of SQLite databases and of pg_dump's scripts have the rows that were written."""

import gzip
import json
import random
import sqlite3

import pytest

from outrider.common.errors import OutriderError
from outrider.data.files.rows import read_rows
from outrider.data.files.sources import log_files, members_of

TEXTS = [
    "",
    "plain",
    "tab\there",
    "line\nbreak",
    "back\\slash",
    "\\N",
    "\\.",
    'a "quote"',
    "ü😀",
    "\r\v\f\b",
]
ESCAPES = {
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
}
"""What PostgreSQL's COPY writes in text format (its manual, COPY, Text Format)."""


def tables_in(path, kind):
    """The rows of each table, as the formats see them."""
    (file,) = log_files(str(path))
    return {
        member.member.name: [json.loads(row) for _, row in read_rows(member)]
        for member in members_of(file, kind)
    }


def made_database(path, script, *rows_of):
    with sqlite3.connect(path) as database:
        database.executescript(script)
        for statement, cells in rows_of:
            database.executemany(statement, cells)
    database.close()


def test_each_table_of_a_database_has_its_rows(tmp_path):
    path = tmp_path / "calls.db"
    body = json.dumps({"messages": [{"role": "user", "content": "é"}]})
    made_database(
        path,
        'CREATE TABLE "the ""calls""" (id INTEGER PRIMARY KEY, request TEXT, at REAL, raw BLOB);'
        "CREATE TABLE empty (a); CREATE TABLE version (number);"
        "CREATE VIEW secret AS SELECT load_extension('/x') AS a;"
        "CREATE TRIGGER t AFTER INSERT ON version BEGIN SELECT 1; END;",
        (
            'INSERT INTO "the ""calls""" (request, at, raw) VALUES (?, ?, ?)',
            [(body, 1.5, b"text"), (None, None, b"\xff\x00"), *((text, 0, None) for text in TEXTS)],
        ),
        ("INSERT INTO version VALUES (?)", [(3,)]),
    )
    tables = tables_in(path, "sqlite")
    assert list(tables) == ['the "calls"', "version"]
    first, second, *others = tables['the "calls"']
    assert first == {"id": 1, "request": body, "at": 1.5, "raw": "text"}
    assert second == {"id": 2, "request": None, "at": None, "raw": None}
    assert [row["request"] for row in others] == TEXTS


def test_a_compressed_database_is_read_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / "calls.db"
    made_database(
        path,
        "CREATE TABLE calls (prompt TEXT)",
        ("INSERT INTO calls VALUES (?)", [("x" * 3000,)] * 40),
    )
    whole = path.read_bytes()
    packed = tmp_path / "calls.db.gz"
    packed.write_bytes(gzip.compress(whole))
    assert len(tables_in(packed, "sqlite")["calls"]) == 40
    cut = tmp_path / "cut.db"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OutriderError, match=r"cut\.db: damaged SQLite database .*copy it again"):
        tables_in(cut, "sqlite")


def test_a_virtual_table_is_not_asked_for_rows(tmp_path):
    path = tmp_path / "search.db"
    with sqlite3.connect(path) as database:
        if ("ENABLE_FTS5",) not in database.execute("PRAGMA compile_options").fetchall():
            pytest.skip("this SQLite has no virtual tables of texts")
        database.execute("CREATE VIRTUAL TABLE texts USING fts5(body)")
        database.execute("INSERT INTO texts VALUES ('a')")
    database.close()
    assert "texts" not in tables_in(path, "sqlite")


def dumped(tables):
    """What pg_dump writes for tables of texts, numbers and nulls."""
    lines = ["--", "-- PostgreSQL database dump", "--", "", "SET client_encoding = 'UTF8';", ""]
    for table, columns, cells in tables:
        names = ", ".join(columns)
        lines.append(f"COPY public.{table} ({names}) FROM stdin;")
        for row in cells:
            texts = ["\\N" if cell is None else "".join(map(escaped, cell)) for cell in row]
            lines.append("\t".join(texts))
        lines += ["\\.", "", ""]
    return "\n".join(lines)


def escaped(letter):
    return ESCAPES.get(letter, letter)


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_a_dump_are_those_that_were_copied(tmp_path, seed):
    rng = random.Random(seed)
    cells = [[rng.choice([*TEXTS, None, "12"]) for _ in range(3)] for _ in range(rng.randint(1, 9))]
    cells.append(["last", None, ""])
    path = tmp_path / "dump.sql"
    columns = ["id", '"startTime"', '"a ""b"", c"']
    empty = ("none", ["a"], [])
    path.write_text(dumped([empty, ('"Logs"', columns, cells)]), newline="")
    names = ["id", "startTime", 'a "b", c']
    expected = [
        {name: cell for name, cell in zip(names, row, strict=True) if cell is not None}
        for row in cells
    ]
    assert tables_in(path, "pg_dump") == {"public.Logs": expected}


def test_json_columns_of_a_dump_are_objects_and_a_cut_row_is_refused(tmp_path):
    path = tmp_path / "dump.sql"
    body = json.dumps({"content": "a\nb"})
    script = dumped([("logs", ["id", "response"], [["1", body], ["2", "{not json}"]])])
    path.write_text(script)
    assert tables_in(path, "pg_dump")["public.logs"] == [
        {"id": "1", "response": {"content": "a\nb"}},
        {"id": "2", "response": "{not json}"},
    ]
    path.write_text(script[: script.index("2\t") + 1])
    with pytest.raises(OutriderError, match=r"public\.logs: a row has 1 columns of 2.*cut"):
        tables_in(path, "pg_dump")


def test_objects_that_are_printed_over_lines_between_others_are_rows(tmp_path):
    path = tmp_path / "stdout.log"
    payloads = [{"id": number, "inner": {"a": [1, {"b": "}"}]}} for number in range(3)]
    lines = ["INFO: started", "{", "no object"]
    for payload in payloads:
        lines += [json.dumps(payload, indent=4), "INFO: 127.0.0.1 POST", '{"id": "line"}']
    path.write_text("\n".join([*lines, "{", '    "id": 9,']))
    (file,) = log_files(str(path))
    read = [(number, bytes(row)) for number, row in read_rows(file)]
    objects = [json.loads(row) for _, row in read if row.startswith(b"{") and row.endswith(b"}")]
    single = {"id": "line"}
    assert objects == [row for payload in payloads for row in (payload, single)]
    # Nothing is lost: the lines of an object without an end are single ones.
    assert [row for _, row in read[:3]] == [b"INFO: started", b"{", b"no object"]
    assert [row for _, row in read[-2:]] == [b"{", b'    "id": 9,']
    assert read[3][0] == 4
