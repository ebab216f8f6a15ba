"""Traffic of invented résumé screenings, up to its parts, for captures with a real engine."""

from pathlib import Path

from outrider.data.config import SplitConfig, TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.split.split import split
from tests.data.logs import pair, screenings, write_log


def split_screenings(target: Path, folder: Path, count: int) -> Path:
    """Ingests and splits `count` exchanges, a session each, into `folder`, which it returns."""
    rows = [
        pair(
            messages,
            reasoning,
            answer,
            request__metadata__session_id=f"s{index}",
            response__created=1000 + index,
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(count))
    ]
    log = write_log(folder / "log.jsonl.gz", rows)
    ingest(target, TrafficConfig(path=str(log)), folder)
    split(folder / "sequences", SplitConfig(), folder)
    return folder
