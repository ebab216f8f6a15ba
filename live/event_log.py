"""Structured log of a live endpoint: one JSON object per line, without text of requests.

    log = event_log(sys.stderr, "resume")
    log("swapped", replica="canary", stall_s=0.41)

Values are numbers, names (of replicas, releases, states) and, in the field `reason`, sentences that
Outrider composes from them. Any other value is replaced by `withheld`, so a log can be sent to a
collector that may not see customers' text.
"""

import math
import re
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

WITHHELD = "withheld"

SENTENCES = ("reason",)
"""Fields with Outrider's own sentences."""

LONGEST_SENTENCE = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,127}")

Log = Callable[..., None]
"""Called with the event's name and its fields."""


def event_log(stream: TextIO, endpoint: str) -> Log:
    """A log on a stream; each line has the time (UTC), the event and the endpoint."""
    logger = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            _only_facts,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        endpoint=name_or_withheld(endpoint),
    )

    def log(event: str, **fields: Any) -> None:
        logger.info(event, **fields)

    return log


def name_or_withheld(value: str) -> str:
    """The value where it is a name, and `withheld` otherwise."""
    return value if _NAME.fullmatch(value) else WITHHELD


def _only_facts(
    logger: Any, method: str, fields: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    return {name: _fact(name, value) for name, value in fields.items()}


def _fact(name: str, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no infinity
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {name_or_withheld(str(key)): _fact("", inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_fact("", inner) for inner in value]
    if name in SENTENCES and isinstance(value, str):
        return value[:LONGEST_SENTENCE]
    return name_or_withheld(value) if isinstance(value, str) else WITHHELD
