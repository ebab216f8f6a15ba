"""What a stage's work depends on, as digests, and what changed since it was done.

before, now = {"recipe.training": {"epochs": 3}}, {"recipe.training": {"epochs": 5}}
changes(before, now)      # ["recipe.training.epochs: 3 -> 5"]
"""

from pathlib import Path
from typing import Any

from outrider.common.files import file_digest, value_digest

CONTENT_LIMIT = 256 * 2**20
"""Bytes up to which a file is known by its content; above it by size and time of change, or a start would read terabytes."""


def path_identity(path: Path) -> str:
    """Digest of a file, or of every file below a directory; `absent` when there is nothing."""
    if not path.exists():
        return "absent"
    if path.is_file():
        return _file_identity(path)
    files = sorted(child for child in path.rglob("*") if child.is_file())
    return value_digest({str(child.relative_to(path)): _file_identity(child) for child in files})


def source_identity(source: str) -> str:
    """Digest of a log: a local path or glob by its files, a URL by what its store says of it."""
    if "://" not in source:
        if Path(source).exists():
            return path_identity(Path(source))
        files = sorted(Path("/").glob(source.lstrip("/")))
        return (
            value_digest({str(file): path_identity(file) for file in files}) if files else "absent"
        )
    import fsspec

    from outrider.data.ingest.stores import answering

    with answering(f"traffic.path = {source!r}"):
        filesystem, path = fsspec.url_to_fs(source)
        found = filesystem.find(path, detail=True) or {
            p: filesystem.info(p) for p in filesystem.glob(path)
        }
    return value_digest({name: _remote_identity(info) for name, info in found.items()})


def changes(before: Any, now: Any, name: str = "") -> list[str]:
    """The leaves at which two trees of inputs differ, in words."""
    if before == now:
        return []
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [
            line
            for key in keys
            for line in changes(
                before.get(key), now.get(key), f"{name}.{key}" if name else str(key)
            )
        ]
    if _is_digest(before) or _is_digest(now):
        return [name]
    return [f"{name}: {_short(before)} -> {_short(now)}"]


def _file_identity(path: Path) -> str:
    status = path.stat()
    if status.st_size <= CONTENT_LIMIT:
        return file_digest(path)
    return f"{status.st_size} bytes of {status.st_mtime_ns}"


def _remote_identity(info: dict[str, Any]) -> list[str]:
    return [
        str(info.get(key))
        for key in ("size", "ETag", "etag", "md5Hash", "mtime", "LastModified", "updated")
    ]


def _is_digest(value: Any) -> bool:
    return value == "absent" or (
        isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
