"""The journal survives a kill at every byte and a full disk."""

import errno
import os
from unittest.mock import Mock

import pytest

from outrider.common.errors import OutriderError
from outrider.live.journal import Journal, read_journal
from outrider.live.state import State


def events(path):
    return [(entry.n, entry.event, entry.facts) for entry in read_journal(path)]


def test_a_line_torn_at_any_byte_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "journal.jsonl"
    with Journal(path, State()) as journal:
        journal.append("one")
        whole = path.read_bytes()
        journal.append("two", word="ä")
    second = path.read_bytes()[len(whole) :]
    for torn in [second[:length] for length in range(len(second))] + [bytes(100)]:
        path.write_bytes(whole + torn)
        assert [event for _, event, _ in events(path)] == ["one"]
        assert path.read_bytes() == whole + torn, "reading changes nothing"
        with Journal(path, State()) as journal:
            journal.append("three")
        assert [event for _, event, _ in events(path)] == ["one", "three"]
    path.write_bytes(whole[:9] + b"\n" + second)
    with pytest.raises(OutriderError, match="line 1 is broken, and it is not the last"):
        read_journal(path)


def test_an_entry_is_synced_before_append_returns(tmp_path, monkeypatch):
    synced: list[int] = []
    journal = Journal(tmp_path / "journal.jsonl", State())
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), fsync(file))
    )
    journal.append("one")
    assert synced == [journal.path.stat().st_size]
    for number, error, message in (
        (errno.EIO, OSError, "failed"),
        (errno.ENOSPC, OutriderError, "journal.jsonl: no space left on the disk.*--recover"),
    ):
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, "failed")))
        with pytest.raises(error, match=message):
            journal.append("two")
        assert [event for _, event, _ in events(journal.path)] == ["one"]
    assert [entry.event for entry in journal.entries] == ["one"]


def test_a_folder_that_others_may_use_is_refused(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o755)
    with pytest.raises(OutriderError, match=r"state: other users may .*run chmod 700 /"):
        Journal(folder / "journal.jsonl", State())
    folder.chmod(0o700)
    Journal(folder / "journal.jsonl", State()).__exit__()


def test_two_processes_append_to_one_journal(tmp_path):
    path = tmp_path / "state" / "journal.jsonl"
    heard = []
    with (
        Journal(path, State(), lambda: 12.5, lambda state: heard.append(state.share)) as one,
        Journal(path, State()) as another,
    ):
        assert one.append("share", percent=5.0).share == 5.0
        assert one.entries == read_journal(path)
        assert one.entries[0].at == 12.5 and heard == [None, 5.0]
        another.append("share", percent=25.0)
        assert one.read().share == 25.0
        one.append("note")
        assert [entry.n for entry in one.entries] == [1, 2, 3]
        path.write_bytes(path.read_bytes() + b'{"at')  # a third one was killed
        another.append("note")
        assert another.entries[-1].n == 4
    assert [n for n, *_ in events(path)] == [1, 2, 3, 4]
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
