"""Current files of a table that keeps its former versions in the same folder.

    without_former(filesystem, paths, not_read)     # a Delta table's current files, and all others

A Delta table's folder has Parquet files of rows that were deleted or rewritten since. Its log names
the current ones (Delta's PROTOCOL.md, "Action Reconciliation"): commits from 0 add and remove
files. A table whose log was compacted into checkpoints or that marks rows as deleted in separate
files (deletion vectors), and tables of Hudi and Iceberg, are refused.
"""

import json
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

from fsspec import AbstractFileSystem

from outrider.common.errors import OutriderError

DELTA_LOG = "_delta_log"

OTHERS = {
    re.compile(r"/\.hoodie"): "a Hudi",
    # mongodump writes COLLECTION.metadata.json, but into no folder of that name.
    re.compile(r"(?:^|/)metadata/[^/]+\.metadata\.json(?:\.gz)?$"): "an Iceberg",
}
"""Paths in tables of other formats."""

EXPORT = (
    "the folder also has rows of former versions and deleted ones; export the current version, for"
    " example as JSON lines or Parquet into another folder"
)


def without_former(
    filesystem: AbstractFileSystem, paths: Sequence[str], not_read: list[str]
) -> list[str]:
    """Returns the paths but for a Delta table's own log and the files that it has removed.

    `not_read` has hidden files, and receives those.

    Raises:
        OutriderError: If only another tool knows which files of a table are current.
    """
    for path in (*paths, *not_read):
        table = next((table for part, table in OTHERS.items() if part.search(path)), None)
        if table is not None:
            raise OutriderError(f"{path}: {table} table: {EXPORT}")
    commits: dict[PurePosixPath, list[str]] = {}
    for path in sorted(paths):
        folder = PurePosixPath(path).parent
        if DELTA_LOG in folder.parts:
            root = PurePosixPath(*folder.parts[: folder.parts.index(DELTA_LOG)])
            commits.setdefault(root, []).append(path)
    for root, of_table in commits.items():
        current = _current_files(filesystem, root, of_table)
        former = [path for path in paths if _is_former(path, root, current)]
        not_read += [f"{path} (a former version's, or the log of the table)" for path in former]
        paths = [path for path in paths if path not in set(former)]
    return list(paths)


def _is_former(path: str, root: PurePosixPath, current: set[str]) -> bool:
    inside = PurePosixPath(path)
    if not inside.is_relative_to(root):
        return False
    relative = str(inside.relative_to(root))
    is_data = relative.endswith(".parquet") and relative not in current
    return is_data or DELTA_LOG in inside.parts


def _current_files(
    filesystem: AbstractFileSystem, root: PurePosixPath, log: Sequence[str]
) -> set[str]:
    """Returns the paths, relative to the table's root, that its commits have left."""
    commits = [path for path in log if path.endswith(".json")]
    numbers = [PurePosixPath(path).stem for path in commits]
    if numbers != [f"{number:020d}" for number in range(len(commits))] or not commits:
        raise OutriderError(f"{root}: a Delta table without all of its commits: {EXPORT}")
    current: set[str] = set()
    for path in commits:
        for line in filesystem.cat_file(path).splitlines():
            _apply(_action(line, path), current, root)
    return current


def _action(line: bytes, path: str) -> dict[str, Any]:
    try:
        action = json.loads(line)
    except ValueError:
        raise OutriderError(f"{path}: a line is not JSON: {EXPORT}") from None
    return action if isinstance(action, dict) else {}


def _apply(action: dict[str, Any], current: set[str], root: PurePosixPath) -> None:
    """Adds or removes the file of a commit's action."""
    added = action.get("add")
    removed = action.get("remove")
    if isinstance(added, dict):
        if added.get("deletionVector"):
            raise OutriderError(f"{root}: a Delta table with deletion vectors: {EXPORT}")
        current.add(unquote(str(added.get("path"))))
    if isinstance(removed, dict):
        current.discard(unquote(str(removed.get("path"))))
