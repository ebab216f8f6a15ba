"""Fingerprints of inputs, and results that are reused until inputs change.

    inputs = {"log": path_digest(log), "version": 1, "settings": {"seed": 0}}
    kept = CachedResult(out / "counts.json", inputs)
    kept.changes()             # None: no result yet; []: up to date; else ["settings.seed: 0 -> 1"]
    counts = kept.run(count)   # calls count() unless the result is up to date

Unfinished work is handled the same way: `resume_or_clear` deletes it if its inputs have changed.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, remove, write_json

MOST_READ = 256 * 2**20
"""Bytes of the largest file that `path_digest` reads."""

ABSENT = "absent"
"""Digest of a path that does not exist."""


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def value_digest(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def path_digest(path: Path) -> str:
    """Digest of a file, or of a directory's file names and contents.

    `ABSENT` if the path does not exist. Files above 256 MiB are represented by size and
    modification time, because reading terabytes of weights would take longer than most stages.
    """
    if not path.exists():
        return ABSENT
    if path.is_file():
        return _content_or_status(path)
    files = sorted(child for child in path.rglob("*") if child.is_file())
    return value_digest({str(file.relative_to(path)): _content_or_status(file) for file in files})


FOREIGN = re.compile(r"\..*|Thumbs\.db|desktop\.ini")
"""Names of files that desktops and network shares add to folders, and of temporary files."""


def file_digests(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Digests of the files at or below `paths`, by path relative to `root`, without `FOREIGN` ones.

    Files above 256 MiB are represented by their size: a copy has another modification time.
    """
    files: list[Path] = []
    for path in paths:
        files += [path] if path.is_file() else sorted(filter(Path.is_file, path.rglob("*")))
    names = [file.relative_to(root) for file in files]
    return {
        str(name): _content_or_size(root / name)
        for name in names
        if not any(map(FOREIGN.fullmatch, name.parts))
    }


def changed_file(root: Path, digests: Mapping[str, str]) -> Path | None:
    """The first file below `root` that differs from `file_digests`; missing ones do not count."""
    for name, digest in digests.items():
        path = root / name
        if path.is_file() and _content_or_size(path) != digest:
            return path
    return None


def sampled_digest(paths: Iterable[Path], sampled: int = 4 * 2**20) -> str:
    """Digest of the files' names, sizes, and first and last `sampled` bytes.

    For weights, which are copied but not edited: unlike `path_digest`, it does not change when
    large files are copied or touched.
    """
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(sampled))
            file.seek(max(size - sampled, 0))
            digest.update(file.read(sampled))
    return digest.hexdigest()


def store_identity(info: Mapping[str, Any]) -> list[str]:
    """Returns the content-dependent fields of an fsspec `info`, which vary by store."""
    fields = ("size", "mtime", "ETag", "etag", "md5Hash", "blob_id", "LastModified", "updated")
    return [str(info.get(field)) for field in fields]


def changes(before: Any, now: Any, name: str = "") -> list[str]:
    """Lists the differences between two input trees as `section.key: old -> new`."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        lines = []
        for key in dict.fromkeys([*before, *now]):
            path = f"{name}.{key}" if name else str(key)
            lines += changes(before.get(key), now.get(key), path)
        return lines
    if _is_digest(before) or _is_digest(now):
        return [name or "inputs"]
    return [f"{name}: {_short(before)} -> {_short(now)}"]


@dataclasses.dataclass(frozen=True)
class CachedResult:
    """A result in a JSON file, with the inputs of its computation.

    `inputs` is any JSON value. Pass a digest if the inputs are long or confidential, and `private`
    if the result is confidential: only its owner can then read the file.
    """

    path: Path
    inputs: Any
    private: bool = False

    def changes(self) -> list[str] | None:
        """Lists input changes since the result was computed; None without a result."""
        if not self.path.is_file():
            return None
        # In the form that JSON returns: tuples as lists, keys as text.
        return changes(self._read().get("inputs"), json.loads(json.dumps(self.inputs)))

    def done(self) -> bool:
        """Whether there is a result for these inputs."""
        return self.changes() == []

    def get(self) -> Any:
        """Reads the result without comparing inputs."""
        return self._read()["result"]

    def _read(self) -> dict[str, Any]:
        value = read_json(self.path)
        if not isinstance(value, dict) or "result" not in value:
            raise OutriderError(
                f"{self.path}: not a result with its inputs; delete it and rerun the command"
            )
        # Results of an earlier Outrider have no digest.
        digest = value_digest(value["result"])
        if value.get("result_sha256", digest) != digest:
            raise OutriderError(
                f"{self.path}: changed since it was written; delete it and rerun the command to"
                " compute it again"
            )
        return value

    def put(self, result: Any, **facts: Any) -> None:
        """Publishes a result with its inputs and `facts` in one file."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if self.private else 0o777)
        # In the form that JSON returns, whose keys are text.
        digest = value_digest(json.loads(json.dumps(result)))
        content = {"inputs": self.inputs, **facts, "result_sha256": digest, "result": result}
        write_json(self.path, content, self.private)

    def run(self, work: Callable[[], Any]) -> Any:
        """Returns the result; computes it with `work` if outdated or missing."""
        if not self.done():
            self.put(work())
        return self.get()


def resume_or_clear(stamp: Path, inputs: Any, unfinished: Iterable[Path]) -> bool:
    """Deletes `unfinished` paths unless the file `stamp` contains the digest of `inputs`.

    Writes the stamp; returns whether the work can be resumed. The caller deletes the stamp when
    the work is finished.
    """
    digest = value_digest(inputs)
    resumed = stamp.is_file() and read_json(stamp) == digest
    if not resumed:
        for path in unfinished:
            remove(path)
        write_json(stamp, digest)
    return resumed


def _content_or_size(path: Path) -> str:
    size = path.stat().st_size
    return file_digest(path) if size <= MOST_READ else f"{size} bytes"


def _content_or_status(path: Path) -> str:
    status = path.stat()
    if status.st_size <= MOST_READ:
        return file_digest(path)
    return f"{status.st_size} bytes of {status.st_mtime_ns}"


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(f"{ABSENT}|[0-9a-f]{{64}}", value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
