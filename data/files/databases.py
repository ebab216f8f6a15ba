"""Tables of an SQLite database, or of a dump of PostgreSQL, as files of JSON lines.

    members = tables_of(content, "sqlite", "calls.db")       # one for each table with rows
    members = tables_of(content, "pg_dump", "dump.sql")      # COPY blocks of a script

A database is an archive of tables: each is recognized by itself, and those that no format
recognizes are set aside like the other files of a folder. The rows are written into one temporary
file without a name.
"""

import contextlib
import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, BinaryIO
from urllib.parse import quote

from outrider.common.errors import OutriderError
from outrider.common.process_tree import temporary_folder
from outrider.data.files.packing import HEAD, LARGEST_MEMBER, ArchiveMember

Row = dict[str, Any]

_COPY = re.compile(rb"COPY (\S+) \((.+)\) FROM stdin;\r?\n")
"""The line before the rows of a table (pg_dump, `dumpTableData_copy`)."""

_NAME = re.compile(r'"((?:[^"]|"")+)"|([^\s,]+)')
"""A column's name; one with capitals is quoted, and its quotes are doubled."""

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3})|(.))")
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
"""Escapes of COPY's text format (PostgreSQL's manual, "COPY", "File Formats")."""

LONGEST_ROW = 2**26
"""Maximum size of a dump's row in bytes, as in other files."""

_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    " AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY rowid"
)
"""A virtual table is read by a module that its database chooses."""


def tables_of(content: BinaryIO, kind: str, name: str) -> list[ArchiveMember]:
    """Returns a database's tables with rows; `kind` is `sqlite` or `pg_dump`.

    Raises:
        OutriderError: If the database is damaged, or a table is too large to be written out.
    """
    spool = tempfile.TemporaryFile()  # noqa: SIM115 (the members are read from it)
    members: list[ArchiveMember] = []
    tables = _tables_of_sqlite(content, name) if kind == "sqlite" else _copied_tables(content, name)
    for table, rows in tables:
        start = spool.tell()
        _write(spool, rows, f"{name}:{table}")
        if spool.tell() > start:
            members.append(ArchiveMember(table, spool, start, spool.tell() - start))
    spool.flush()
    return members


def _write(spool: IO[bytes], rows: Iterable[Row], name: str) -> None:
    start = spool.tell()
    for row in rows:
        spool.write(json.dumps(row).encode() + b"\n")
        if spool.tell() - start > LARGEST_MEMBER:
            raise OutriderError(
                f"{name}: a table of more than {LARGEST_MEMBER / 1e9:g} GB; export it as JSON lines"
                " or Parquet"
            )


def _tables_of_sqlite(content: BinaryIO, name: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """Yields the tables of a database; no view, trigger or module of it runs."""
    with temporary_folder() as folder:
        copy = folder / "database"
        with copy.open("wb") as file:
            shutil.copyfileobj(content, file, HEAD)
        try:
            # Immutable: SQLite looks for no journal, and takes no lock.
            address = f"file:{quote(str(copy))}?mode=ro&immutable=1"
            with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA cell_size_check = ON")
                # Bytes that are no UTF-8 are rejected with their row, not here.
                database.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
                for (table,) in database.execute(_TABLES).fetchall():
                    yield table, _sqlite_rows(database, table)
        except sqlite3.Error as error:
            raise OutriderError(
                f"{name}: damaged SQLite database ({error}); copy it again, for example with"
                " `sqlite3 FILE '.backup COPY'`"
            ) from None


def _sqlite_rows(database: sqlite3.Connection, table: str) -> Iterator[Row]:
    quoted = table.replace('"', '""')
    cursor = database.execute(f'SELECT * FROM "{quoted}"')
    columns = [column[0] for column in cursor.description]
    for cells in cursor:
        yield {column: _text_of(cell) for column, cell in zip(columns, cells, strict=True)}


def _text_of(cell: Any) -> Any:
    """Returns a cell; text that a program has stored as bytes, and null for other bytes."""
    if not isinstance(cell, bytes):
        return cell
    try:
        return cell.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _copied_tables(content: BinaryIO, name: str) -> Iterator[tuple[str, Iterator[Row]]]:
    """Yields the tables of a script whose rows are between COPY and a line of `\\.`."""
    while line := content.readline(LONGEST_ROW):
        copy = _COPY.fullmatch(line)
        if copy is not None:
            table, columns = (part.decode("utf-8", "surrogateescape") for part in copy.groups())
            names = [quoted.replace('""', '"') or plain for quoted, plain in _NAME.findall(columns)]
            yield table.replace('"', ""), _copied_rows(content, names, f"{name}:{table}")


def _copied_rows(content: BinaryIO, names: list[str], table: str) -> Iterator[Row]:
    while (line := content.readline(LONGEST_ROW)) and line.rstrip(b"\r\n") != b"\\.":
        text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        cells = text.split("\t")
        if len(cells) != len(names):
            raise OutriderError(
                f"{table}: a row has {len(cells)} columns of {len(names)}; the dump was cut or"
                " changed, or the row has more than 64 MB: dump the table again"
            )
        yield {
            column: _value_of(_ESCAPE.sub(_unescaped, cell))
            for column, cell in zip(names, cells, strict=True)
            if cell != "\\N"
        }


def _unescaped(match: re.Match[str]) -> str:
    hexadecimal, octal, letter = match.groups()
    if letter is not None:
        return _ESCAPED.get(letter, letter)
    return chr(int(hexadecimal, 16) if hexadecimal else int(octal, 8))


def _value_of(cell: str) -> Any:
    """Returns the object or list that a cell holds, otherwise its text.

    The script does not say which columns are JSON.
    """
    if cell[:1] + cell[-1:] not in ("{}", "[]"):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError):
        return cell
