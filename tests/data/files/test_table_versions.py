"""Files of a Delta table: the current ones are those that its commits have left."""

import json
import random

import pytest
from fsspec.implementations.local import LocalFileSystem

from outrider.common.errors import OutriderError
from outrider.data.files.table_versions import without_former


def write_commits(root, commits):
    log = root / "_delta_log"
    log.mkdir(parents=True)
    for number, actions in enumerate(commits):
        lines = "\n".join(map(json.dumps, actions))
        (log / f"{number:020d}.json").write_text(lines + "\n")


def paths_of(root):
    return sorted(str(path) for path in root.rglob("*") if path.is_file())


def touched(path):
    path.parent.mkdir()
    path.touch()


def test_the_description_of_a_collection_by_mongodump_is_no_iceberg_table(tmp_path):
    for name in ("calls.bson", "calls.metadata.json"):
        (tmp_path / name).touch()
    assert current_names(tmp_path) == {"calls.bson", "calls.metadata.json"}


def current_names(root):
    """Names of the data files that are read."""
    not_read = []
    current = without_former(LocalFileSystem(), paths_of(root), not_read)
    assert len(current) + len(not_read) == len(paths_of(root))
    return {path.removeprefix(f"{root}/") for path in current}


@pytest.mark.parametrize("seed", range(20))
def test_the_files_are_those_of_a_replay_of_the_commits(tmp_path, seed):
    rng = random.Random(seed)
    root = tmp_path / "calls"
    present = set()
    commits = []
    for number in range(rng.randint(1, 8)):
        removed = rng.sample(sorted(present), rng.randint(0, len(present)))
        added = [f"day=0{rng.randint(1, 3)}/part {number}-{file}.parquet" for file in range(2)]
        present = present - set(removed) | set(added)
        actions = [{"remove": {"path": path.replace(" ", "%20")}} for path in removed]
        actions += [{"add": {"path": path.replace(" ", "%20")}} for path in added]
        commits.append([{"commitInfo": {}}, *actions])
        for path in added:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).touch()
    write_commits(root, commits)
    assert current_names(root) == present


def test_files_beside_a_table_are_read(tmp_path):
    write_commits(tmp_path / "calls", [[{"add": {"path": "a.parquet"}}]])
    (tmp_path / "calls" / "a.parquet").touch()
    (tmp_path / "other.parquet").touch()
    assert current_names(tmp_path) == {"calls/a.parquet", "other.parquet"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: (root / "_delta_log" / f"{0:020d}.json").unlink(), "all of its commits"),
        (
            lambda root: (root / "_delta_log" / f"{1:020d}.json").write_text(
                json.dumps({"add": {"path": "a.parquet", "deletionVector": {"cardinality": 1}}})
            ),
            "deletion vectors",
        ),
        (lambda root: touched(root / "metadata" / "v1.metadata.json"), "an Iceberg table"),
        (lambda root: (root / "_delta_log" / f"{1:020d}.json").write_text("{"), "not JSON"),
    ],
)
def test_a_table_whose_current_files_are_not_certain_is_refused(tmp_path, change, reason):
    write_commits(tmp_path, [[{"add": {"path": "a.parquet"}}], []])
    (tmp_path / "a.parquet").touch()
    change(tmp_path)
    with pytest.raises(OutriderError, match=f"{reason}.*export the current version"):
        current_names(tmp_path)
