"""Golden logs (tests/data/golden/NAME/), written for the project in each producer's shape.

outcomes("openai_batch")      # every Exchange or Reject of the folder's files, read as one log
"""

from pathlib import Path

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import files_by_format, read_exchanges
from outrider.data.ingest.sources import log_files

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def outcomes(name: str, format_name: str = "auto") -> list[Exchange | Reject]:
    """Outcomes of the folder's files; checks that no row was lost."""
    files = log_files(str(GOLDEN / name))
    found = list(read_exchanges(files, format_name))
    assert all(outcome.place is not None for outcome in found)
    return found


def formats(name: str) -> list[str]:
    """The formats that the folder's files are recognized as."""
    return list(files_by_format(log_files(str(GOLDEN / name))))


def said(found: list[Exchange | Reject]) -> list[str | tuple[str | None, str | None, str]]:
    """Reasons of rejects; reasoning, content and finish_reason of exchanges."""
    return [
        outcome.reason
        if isinstance(outcome, Reject)
        else (outcome.reasoning, outcome.content, outcome.finish_reason)
        for outcome in found
    ]
