"""Small files that unpack to much, or take long: 10 MB end within 10 s of CPU time and 1 GB.

    python -m pytest tests/data/files/test_bombs.py -m slow -s      # prints the measured values

Each file is read in a process of its own. The limits are far above what is measured
(benchmarks/results/security.md), so that a slow machine passes.
"""

import gzip
import json
import lzma
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.files import packing
from outrider.data.files.rows import count_rows
from outrider.data.files.sources import log_files, members_of

SIZE = 10 * 10**6
CPU_S = 10.0
MEMORY_MB = 1000

READ_LOG = """
import sys
from outrider.data.files.rows import parse_row, rows
from outrider.data.files.sources import log_files, members_of
from outrider.data.exchange import Reject
(file,) = log_files(sys.argv[1])
for member in members_of(file, "zip") if sys.argv[1].endswith("zip") else [file]:
    for _, row in rows(member):
        try:
            parse_row(row)
        except Reject:
            pass
"""
"""Reads and parses all rows in one process; an ingest parses them in several."""

READ_RECIPE = """
import sys
from pathlib import Path
from outrider.common.config_file import read_yaml
read_yaml(Path(sys.argv[1]))
"""

MEASURED = """
import atexit, resource
def report():
    used = resource.getrusage(resource.RUSAGE_SELF)
    print("MEASURED", used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
atexit.register(report)
"""

ROW = json.dumps({"request": {"prompt": "a" * 100}, "response": "b" * 100}).encode() + b"\n"


def repeated_gzip(row: bytes) -> bytes:
    """A gzip file of about `SIZE` bytes with this row again and again, of thousands of members."""
    member = gzip.compress(row * (2**24 // len(row)))
    return member * (SIZE // len(member))


def write_gzip(path: Path) -> None:
    path.write_bytes(repeated_gzip(ROW))


def write_blank(path: Path) -> None:
    path.write_bytes(repeated_gzip(b"\n"))


def write_twice(path: Path) -> None:
    path.write_bytes(gzip.compress(repeated_gzip(ROW)))


def write_xz(path: Path) -> None:
    member = lzma.compress(ROW * (2**26 // len(ROW)))
    path.write_bytes(member * (SIZE // len(member)))


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for number in range(3):
            archive.writestr(f"{number}.jsonl", ROW * (SIZE * 300 // 3 // len(ROW)))


def write_parquet(path: Path) -> None:
    """Values of 40 MB that stand in the dictionary of a column once, in 64 rows each."""
    import pyarrow as pa
    from pyarrow import parquet

    text = pa.array(["x" * 40_000_000]).dictionary_encode().dictionary
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), text)
    table = pa.table({"prompt": column})
    parquet.write_table(pa.concat_tables([table] * 4), path, compression="zstd", row_group_size=64)


def write_aliases(path: Path) -> None:
    """Nine levels of ten aliases, behind as much text as the limit of a recipe allows."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 10):
        levels.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    text = "\n".join(levels) + "\n"
    path.write_text("# a comment of a recipe, as they are\n" * 25_000 + text)


def write_recipe(path: Path) -> None:
    path.write_text("key:\n" + "  - [a, {b: 1}]\n" * (SIZE // 16))


BOMBS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "rows.jsonl.gz": (write_gzip, READ_LOG, "above 250 times as many"),
    "blank.jsonl.gz": (write_blank, READ_LOG, "lines are blank"),
    "twice.jsonl.gz.gz": (write_twice, READ_LOG, "above 250 times as many"),
    "rows.jsonl.xz": (write_xz, READ_LOG, "above 5000 times as many"),
    "rows.zip": (write_zip, READ_LOG, "above 250 times as many"),
    "value.parquet": (write_parquet, READ_LOG, "above 5000 times as many"),
    "aliases.yaml": (write_aliases, READ_RECIPE, "repeats another value"),
    "large.yaml": (write_recipe, READ_RECIPE, "above 1 MB"),
}
"""How each file is written and read, and its message."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_of_10_mb_costs_at_most_10_s_and_a_gigabyte(name: str, tmp_path: Path) -> None:
    write, script, message = BOMBS[name]
    path = tmp_path / name
    write(path)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED + script, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (120, 120)),
    )
    *_, measured = [line for line in done.stdout.splitlines() if line.startswith("MEASURED")]
    _, cpu_s, memory_mb = measured.split()
    last = done.stderr.strip().rpartition("\n")[2]
    used = f"{float(cpu_s):.1f} s, {float(memory_mb):.0f} MB"
    print(f"\n{name}: {path.stat().st_size:,} bytes, {used}: {last}")
    assert done.returncode == 1
    assert message in last and str(path) in last
    assert float(cpu_s) < CPU_S
    assert float(memory_mb) < MEMORY_MB


@pytest.mark.parametrize("kind", ["gz", "xz", "zip"])
def test_a_ratio_of_no_log_is_refused_and_that_of_a_log_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "ANY_RATIO", 2**20)
    monkeypatch.setitem(packing.DENSEST, "xz", 250)
    path = tmp_path / f"log.{kind}"
    content = ROW * (4 * 2**20 // len(ROW))

    def write(text: bytes) -> None:
        if kind == "zip":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
                archive.writestr("a.jsonl", text)
        else:
            path.write_bytes(gzip.compress(text) if kind == "gz" else lzma.compress(text))

    def read() -> int:
        (file,) = log_files(str(path))
        files = members_of(file, "zip") if kind == "zip" else [file]
        return sum(map(count_rows, files))

    write(content)
    with pytest.raises(OutriderError, match=rf"log\.{kind}: .* above 250 times .* leave out"):
        read()
    write(content[: 2**20])
    assert read() > 1000, "small files may have any ratio"
    repetitive = b"".join(b"%x " % (number**40) + ROW for number in range(10_000))
    write(repetitive)
    assert read() == 10_000
