import gzip
import itertools
import os
import random
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outrider.data.ingest import log_tail
from outrider.data.ingest.log_tail import cut_window, find_unread, unread_rows


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    monkeypatch.setattr(log_tail, "SETTLED_S", 0.0)


class Logging:
    """A process that logs numbered lines, rotates its file and truncates it."""

    def __init__(self, folder, seed):
        self.folder = folder
        self.rng = random.Random(seed)
        self.numbers = itertools.count()
        self.written = []
        self.rotated = itertools.count()
        self.folder.mkdir()

    def log(self):
        lines = [f'{{"line": {next(self.numbers)}}}' for _ in range(self.rng.randrange(30))]
        name = self.rng.choice(["a.jsonl", "b.jsonl"])
        with (self.folder / name).open("a") as file:
            file.writelines(line + "\n" for line in lines)
        self.written += lines

    def rotate(self):
        """Renames a file, as logrotate does, and perhaps compresses it, or copies and truncates."""
        path = self.folder / self.rng.choice(["a.jsonl", "b.jsonl"])
        if not path.exists():
            return
        aside = self.folder / f"{path.stem}.{next(self.rotated)}.jsonl"
        content = path.read_bytes()
        match self.rng.randrange(3):
            case 0:
                path.rename(aside)
            case 1:
                aside.with_suffix(".jsonl.gz").write_bytes(gzip.compress(content))
                path.unlink()
            case 2:
                aside.write_bytes(content)
                os.truncate(path, 0)


def read_slice(folder):
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("seed", range(8))
def test_every_line_is_read_once_however_the_log_is_rotated(tmp_path, seed):
    logging = Logging(tmp_path / "log", seed)
    rng = random.Random(seed)
    position = {}
    read = []
    logging.log()
    for number in range(40):
        rng.choice([logging.log, logging.log, logging.rotate])()
        unread = find_unread(str(logging.folder), position)
        assert unread_rows(unread) == len(logging.written) - len(read)
        row_limit = rng.randrange(1, 40)
        if unread_rows(unread) < row_limit:
            continue
        position |= cut_window(unread, row_limit, tmp_path / str(number))
        rows = read_slice(tmp_path / str(number))
        assert len(rows) == row_limit
        read += rows
    if unread := find_unread(str(logging.folder), position):
        cut_window(unread, unread_rows(unread), tmp_path / "rest")
        read += read_slice(tmp_path / "rest")
    assert sorted(read) == sorted(logging.written)


def test_a_line_without_its_end_is_left_for_later(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"line": 0}\n{"li')
    position = cut_window(find_unread(str(log), {}), 1, tmp_path / "first")
    assert find_unread(str(log), position) == []
    with log.open("a") as file:
        file.write('ne": 1}\n')
    cut_window(find_unread(str(log), position), 1, tmp_path / "second")
    assert read_slice(tmp_path / "second") == ['{"line": 1}']
    for path in (tmp_path / "first", *(tmp_path / "first").iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def test_a_table_is_read_whole_once_it_is_settled(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": list(range(30))}), tmp_path / "rows.parquet")
    monkeypatch.setattr(log_tail, "SETTLED_S", 3600.0)
    assert find_unread(str(tmp_path), {}) == []
    long_ago = time.time() - 7200
    os.utime(tmp_path / "rows.parquet", (long_ago, long_ago))
    unread = find_unread(str(tmp_path), {})
    assert unread_rows(unread) == 30
    position = cut_window(unread, 10, tmp_path / "slice")
    assert pq.read_table(next((tmp_path / "slice").iterdir())).num_rows == 30
    assert find_unread(str(tmp_path / "rows.parquet"), position) == []
