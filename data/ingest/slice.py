"""Ingest of one slice of a log that is being written (log_tail.py).

    summary = ingest_slice(target_dir, TrafficConfig(path="windows/000003/log"), out_dir, "w3-")
    forget_rows(Path("windows/000003/log"), out_dir)
    cut(unread, 500, next_slice, carried=carried_lines(out_dir))

At the edge of a slice some requests wait for their response. They are no damage of the log, and
their lines are carried into the next slice. All others are deleted with `forget_rows`.
"""

import json
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.exchange import BEYOND_FIRST, HALVES
from outrider.data.ingest.ingest import check, put_together, read_log
from outrider.data.ingest.log_tail import halves
from outrider.data.privacy.tally import PRIVACY_FILE

REJECTS = "rejects.jsonl"


def ingest_slice(
    target_dir: Path,
    traffic: TrafficConfig,
    out_dir: Path,
    prefix: str,
    privacy: PrivacyConfig | None = None,
) -> dict[str, Any]:
    """Ingests a slice as `ingest` does a log; ids of sequences begin with `prefix`.

    Rejects without their other half do not count towards `traffic.max_reject_fraction`.
    """
    privacy = privacy or PrivacyConfig()
    read = read_log(target_dir, traffic, out_dir, privacy=privacy, prefix=prefix)
    if privacy.mode != "off":
        read.privacy.write(privacy, out_dir / PRIVACY_FILE)
    rejects = read.tally.rejects
    if waiting := sum(rejects.pop(reason, 0) for reason in HALVES):
        rejects[BEYOND_FIRST] += waiting
    check(read.tally, traffic, read.files, out_dir / REJECTS)
    return put_together(read, target_dir, out_dir)


def carried_lines(out_dir: Path) -> dict[Path, list[int]]:
    """Lines of an ingested slice that wait for their other half, by file."""
    path = out_dir / REJECTS
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return halves([json.loads(line) for line in lines])


def forget_rows(log: Path, out_dir: Path) -> None:
    """Deletes the rows of an ingested slice; lines that wait for their other half keep their place.

    The rows are as the endpoint logged them, without `privacy.mode`.
    """
    waiting = {path.name: set(lines) for path, lines in carried_lines(out_dir).items()}
    for path in log.iterdir():
        if path.name not in waiting:
            path.unlink()
            continue
        wanted = waiting[path.name]
        with publish(path) as temporary, path.open("rb") as lines:
            temporary.touch(mode=0o600)
            with temporary.open("wb") as out:
                numbered = enumerate(lines, start=1)
                out.writelines(line if number in wanted else b"\n" for number, line in numbered)
