"""Fingerprints of what a run reads from outside its directory: logs.

log_digest("s3://bucket/logs/*.jsonl.gz")
"""

from pathlib import Path

from outrider.common.fingerprint import ABSENT, path_digest, store_identity, value_digest


def log_digest(source: str) -> str:
    """Digest of a log: of a local path or glob by content, of a URL by what its store reports."""
    if "://" in source:
        return _remote_digest(source)
    if Path(source).exists():
        return path_digest(Path(source))
    files = sorted(Path("/").glob(source.lstrip("/")))
    return value_digest({str(file): path_digest(file) for file in files}) if files else ABSENT


def _remote_digest(url: str) -> str:
    import fsspec

    from outrider.data.ingest.stores import answering

    with answering(f"traffic.path = {url!r}"):
        filesystem, path = fsspec.url_to_fs(url)
        found = filesystem.find(path, detail=True)
        if not found:
            found = {match: filesystem.info(match) for match in filesystem.glob(path)}
    return value_digest({name: store_identity(info) for name, info in found.items()})
