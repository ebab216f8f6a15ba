"""Observations: what a replica counted and what the router measured for one request.

    stable, canary = observations(routed, finished)

Shapes: N requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """One request, without its text."""

    session: str
    """Requests of one session are not independent. The request's id where there is no session."""
    version: str | None
    """Release that drafted all of it; None: not known, or more than one."""
    finished_at: float
    """Unix time in seconds."""
    completion_tokens: int
    drafts: int
    """Steps that verified drafts."""
    accepted: int
    """Accepted draft tokens."""
    ttft_s: float
    decode_s: float
    """Seconds from the first token to the last."""
    latency_s: float
    """Seconds from arrival at the router to the last byte."""
    failed: bool
    """The replica that its share selected did not answer it in full, even if another one did."""
    load: float = 1.0
    """Mean number of requests on its replica while it ran, itself included."""
