"""Canary-test requests, without text, from the router log and the replicas.

    traffic = LiveTraffic(endpoint, fleet, old, began)
    baseline = traffic.collect()            # all so far: stable, canary
    traffic.start_over(new, clock.time())
    stable, canary = traffic.collect()      # those of the test

Requests that began before `began`, or with any draft from a release other than the role's, are
excluded. A replica that still has its initial speculator reports no release: its requests count if
that speculator is the role's release. Speed varies between server starts, so a restart begins a new
baseline, and a replica that restarts during the test no longer counts. Session names are hashed.
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import Endpoint, Role
from outrider.live.fleet import Fleet
from outrider.serving.admin.replica import LiveRequest

_MOST_BYTES = 16 << 20
"""Maximum number of bytes that are read from the end of the existing log."""

_FAILURES = {"UC", "UF", "UH", "UR", "LR", "UT", "SI", "UPE"}
"""Envoy's response flags of failed requests; DC, a client that disconnected, is not a failure."""


@dataclass(frozen=True)
class Observation:
    """One request: the router's measurements and its replica's counts."""

    session: str
    """Hash of the sticky header's value, which may name a session or a user; without the header,
    of the request's id."""
    started_at: float
    """Unix time in seconds."""
    latency_s: float
    """Seconds from arrival at the router to the last byte."""
    failed: bool
    """Whether the role selected by the router gave no full answer, even if the other role did."""
    live: LiveRequest | None = None
    """Its replica's counts; None if they are missing or the request overlapped a swap
    or ended early. Such a request counts only toward the failure rate."""


_TEXTS = ("cluster", "host", "flags", "request_id")
"""Fields of a `LogRow` that hold text or null."""


class LogRow(TypedDict):
    """A line of the router's log (templates/envoy.yaml.j2); null stands for an empty value."""

    started_at: str
    """Unix time in seconds."""
    cluster: str | None
    """Role that the router selected."""
    host: str | None
    """Name of the replica that answered."""
    status: int | None
    flags: str | None
    """Envoy's response flags, comma-separated."""
    duration_ms: float
    request_id: str | None
    session: NotRequired[str | None]


class LiveTraffic:
    """Finished requests: at first the baseline's, then those since it last started over."""

    def __init__(self, endpoint: Endpoint, fleet: Fleet, old: str, began: float) -> None:
        """`old`: the release in use on all replicas. `began`: Unix time in seconds."""
        self._endpoint = endpoint
        self._fleet = fleet
        self._began = began
        self._releases = {replica.name: old for replica in endpoint.replicas}
        self._roles = {replica.name: replica.role for replica in endpoint.replicas}
        self._after: dict[str, int] = {}
        self._offset = 0
        with contextlib.suppress(FileNotFoundError):
            self._offset = max(0, endpoint.access_log.stat().st_size - _MOST_BYTES)
        self._testing = False
        self._lost: set[str] = set()  # replicas that restarted during the test
        self._finished: list[LiveRequest] = []
        self._routed: list[LogRow] = []

    def collect(self) -> tuple[list[Observation], list[Observation]]:
        """Reads new requests; returns all stable and all canary observations so far."""
        for name in self._fleet.replicas:
            with contextlib.suppress(OutriderError):  # CanaryTest handles unreachable replicas
                self._finished += self._read(name)
        routed, self._offset = read_log(self._endpoint.access_log, self._offset)
        self._routed += routed
        self._routed = [row for row in self._routed if float(row["started_at"]) >= self._began]
        return observations(self._routed, self._finished, self._roles)

    def start_over(self, release: str, began: float) -> None:
        """Starts over at `began`; canary requests count only if drafted by `release`."""
        self._began = began
        self._finished = []
        self._routed = []
        self._testing = True
        self._releases |= {replica.name: release for replica in self._endpoint.canary}

    def _read(self, name: str) -> list[LiveRequest]:
        replica = self._fleet.replicas[name]
        seen = self._after.get(name, 0)
        finished, after = replica.requests(seen)
        if after < seen:  # the replica restarted
            if self._testing:
                self._lost.add(name)
            finished, after = replica.requests(0)
            seen = 0
        if seen == 0 and finished and not self._testing:
            # Replicas keep only recent requests. Start at a time all cover, to compare equal loads.
            self._began = max(self._began, finished[0].finished_at - finished[0].e2e_s)
        status = replica.status()
        self._after[name] = after
        # Requests without a release used the speculator that the server was started with.
        started_with = self._fleet.served_by(status) if status.version is None else None
        if name in self._lost:
            return []
        return [
            request
            for request in finished
            if request.finished_at - request.e2e_s >= self._began
            and not request.mixed
            and (request.version or started_with) == self._releases[name]
        ]


def read_log(path: Path, offset: int) -> tuple[list[LogRow], int]:
    """Returns the log's complete lines from byte `offset`, and the next offset.

    templates/envoy.yaml.j2 defines the fields. An offset past the end (a rotated log) counts as 0.
    """
    try:
        with path.open("rb") as log:
            if log.seek(0, 2) < offset:
                offset = 0
            log.seek(offset)
            data = log.read()
    except FileNotFoundError:
        return [], 0
    complete = data[: data.rfind(b"\n") + 1]
    rows: list[LogRow] = []
    for line in complete.splitlines():
        with contextlib.suppress(ValueError, RecursionError):  # of an Envoy that was killed
            row = json.loads(line)
            if _is_row(row):
                rows.append(row)
    return rows, offset + len(complete)


def _is_row(row: object) -> bool:
    """Whether a value has the fields of a `LogRow`."""
    if not isinstance(row, dict):
        return False
    try:
        texts = [row.get("session"), *(row[key] for key in _TEXTS)]
        numbers = [float(row["started_at"]), float(row["duration_ms"]), int(row["status"] or 0)]
    except (LookupError, TypeError, ValueError, OverflowError):
        return False
    has_texts = all(isinstance(text, str | None) for text in texts)
    return has_texts and all(math.isfinite(number) for number in numbers)


def observations(
    routed: Sequence[LogRow], finished: Sequence[LiveRequest], roles: Mapping[str, Role]
) -> tuple[list[Observation], list[Observation]]:
    """Joins router log and replica counts; returns stable and canary observations.

    `roles` maps replica names, which Envoy logs as host names, to roles. A request belongs to the
    role that the router selected. A request that did not fail counts only if it is in both sources.
    Replicas do not report requests to non-generating paths, so these count only if they fail.
    """
    # Successes go last, to override the failed or aborted attempts of a retried request.
    by_end = sorted(finished, key=lambda request: not request.aborted and not request.failed)
    by_id = {_key(request.request_id): request for request in by_end}
    arms: dict[Role, list[Observation]] = {"stable": [], "canary": []}
    for row in routed:
        served_by = roles.get(row["host"] or "")
        role = row["cluster"] or served_by
        live = by_id.get(_key(row["request_id"])) if row["request_id"] else None
        observation = _observation(row, live, moved=served_by not in (None, role))
        if role in arms and (live is not None or observation.failed):
            arms[role].append(observation)
    return arms["stable"], arms["canary"]


def _observation(row: LogRow, live: LiveRequest | None, moved: bool) -> Observation:
    """A row of the router's log; `moved`: whether the other role answered it."""
    started_at = float(row["started_at"])
    request_id = row["request_id"] or f"at {started_at}"
    session = row.get("session") or request_id
    flags = (row["flags"] or "").split(",")
    broke = int(row["status"] or 0) >= 500 or not _FAILURES.isdisjoint(flags)
    failed = broke or moved or (live is not None and live.failed)
    # Not comparable: drafted by two releases, or only in part.
    is_partial = live is not None and (live.mixed or live.aborted)
    return Observation(
        session=hashlib.sha256(session.encode(errors="replace")).hexdigest()[:16],
        started_at=started_at,
        latency_s=float(row["duration_ms"]) / 1000,
        failed=failed,
        live=None if is_partial else live,
    )


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _key(request_id: str) -> str:
    """Extracts the router's id from vLLM's (`chatcmpl-ID` or `cmpl-ID-0`)."""
    uuid = _UUID.search(request_id)
    return uuid.group() if uuid else request_id
