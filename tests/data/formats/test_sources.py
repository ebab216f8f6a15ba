"""Which files of a folder are a log: links, pipes, and what cannot be read."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.config import TrafficConfig
from outrider.data.formats.sources import log_files
from outrider.data.ingest.ingest import ingest
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
from outrider.data.formats.sources import log_files
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
