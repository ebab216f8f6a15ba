"""Fingerprints: what counts as a change, and when a result is computed again."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from outrider.common import fingerprint
from outrider.common.errors import OutriderError
from outrider.common.fingerprint import (
    ABSENT,
    CachedResult,
    changed_file,
    changes,
    file_digests,
    path_digest,
    resume_or_clear,
)


@pytest.mark.parametrize(
    ("before", "now", "found"),
    [
        ({"a": {"b": 3, "c": 0}}, {"a": {"b": 5, "c": 0}}, ["a.b: 3 -> 5"]),
        ({"a": {"b": "a" * 64}}, {"a": {"b": "b" * 64}}, ["a.b"]),
        ({"a": {}}, {"a": {"new": 1}}, ["a.new: None -> 1"]),
        ({"a": {"b": 3}}, {"a": {"b": 3}}, []),
        ("a" * 64, "b" * 64, ["inputs"]),
    ],
)
def test_changes_name_the_leaf_and_both_values(before: Any, now: Any, found: list[str]) -> None:
    assert changes(before, now) == found


def test_path_digest_follows_content_and_names_but_not_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    first = path_digest(tmp_path)
    (tmp_path / "a").write_text("x")
    os.utime(tmp_path / "a", (1, 1))
    assert path_digest(tmp_path) == first
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = path_digest(tmp_path)
    (tmp_path / "b").write_text("y")
    assert len({first, renamed, path_digest(tmp_path), path_digest(tmp_path / "none")}) == 4
    assert path_digest(tmp_path / "none") == ABSENT


def test_a_kept_result_is_computed_again_only_when_its_inputs_change(tmp_path: Path) -> None:
    calls = []

    def work() -> int:
        calls.append(None)
        return len(calls)

    path = tmp_path / "deep" / "result.json"
    inputs = {"seed": 0, "pair": (1, 2)}
    assert CachedResult(path, inputs).changes() is None and not CachedResult(path, inputs).done()
    assert [CachedResult(path, inputs).run(work), CachedResult(path, inputs).run(work)] == [1, 1]
    other = CachedResult(path, inputs | {"seed": 1})
    assert other.changes() == ["seed: 0 -> 1"]
    assert other.run(work) == other.get() == 2
    assert CachedResult(path, inputs).changes() == ["seed: 1 -> 0"]
    private = tmp_path / "steps" / "result.json"
    CachedResult(private, 1, private=True).put("text")
    assert [stat.S_IMODE(p.stat().st_mode) for p in (private.parent, private)] == [0o700, 0o600]


def test_unfinished_work_is_resumed_with_the_same_inputs_and_deleted_with_others(
    tmp_path: Path,
) -> None:
    stamp = tmp_path / "started.json"
    parts = tmp_path / "parts"
    log = tmp_path / "log"
    for seed, resumed in ((0, False), (0, True), (1, False)):
        parts.mkdir(exist_ok=True)
        log.touch()
        assert resume_or_clear(stamp, {"seed": seed}, [parts, log]) == resumed
        assert parts.exists() == log.exists() == resumed


def test_a_changed_file_is_named_and_foreign_and_missing_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table").mkdir()
    weights = tmp_path / "table" / "weights"
    weights.write_text("12345")
    (tmp_path / ".DS_Store").touch()
    digests = file_digests(tmp_path, [tmp_path / "table", tmp_path / ".DS_Store"])
    assert list(digests) == ["table/weights"]
    for name in ("table/.DS_Store", "table/Thumbs.db", "table/mine.txt"):
        (tmp_path / name).write_text("foreign")
    assert changed_file(tmp_path, digests) is None
    weights.write_text("12346")
    assert changed_file(tmp_path, digests) == weights
    monkeypatch.setattr(fingerprint, "MOST_READ", 4)
    large = file_digests(tmp_path, [weights])
    os.utime(weights, (1, 1))
    assert changed_file(tmp_path, large) is None, "a copy has another time"
    weights.write_text("123")
    assert changed_file(tmp_path, large) == weights
    weights.unlink()
    assert changed_file(tmp_path, large) is None


def test_a_result_that_was_changed_is_refused(tmp_path: Path) -> None:
    kept = CachedResult(tmp_path / "counts.json", {"seed": 0})
    kept.put({10: [1, 2], 9: (3, 4)})
    assert kept.get() == {"10": [1, 2], "9": [3, 4]}
    text = kept.path.read_text()
    kept.path.write_text(text.replace("3", "5"))
    for read in (kept.get, kept.done):
        with pytest.raises(OutriderError, match=r"counts\.json: changed since it was written; del"):
            read()
