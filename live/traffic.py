"""The requests of a canary's test, from the router's log and the replicas' counts. No text.

    traffic = Traffic(endpoint, fleet, old, began)
    baseline = traffic.collect()            # all so far: stable, canary
    traffic.start_test(new, clock.time())
    stable, canary = traffic.collect()      # those of the test

Left out are requests that began before `began`, and those that another release than the role's
drafted a part of. A replica with the speculator that it was started with reports no release: its
requests count while that is the role's. Starts differ in speed: where a replica is started again,
the baseline begins again, and in the test it counts no more. A session's name is read as its hash.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.endpoint_file import Endpoint, Role
from outrider.live.fleet import Fleet
from outrider.serving.admin.replica import LiveRequest

_MOST_BYTES = 16 << 20
"""Of the log, read of what was written before."""

_FAILURES = {"UC", "UF", "UH", "UR", "LR", "UT", "SI", "UPE"}
"""Envoy's response flags of requests that the endpoint failed. DC is a client that disconnected."""


@dataclass(frozen=True)
class Observation:
    """One request: what the router measured, and what its replica counted."""

    session: str
    """Requests of one session are not independent. The request's id if it has no session."""
    started_at: float
    """Unix time in seconds."""
    latency_s: float
    """Seconds from arrival at the router to the last byte."""
    failed: bool
    """The replica that its share selected did not answer it in full, even if another one did."""
    live: LiveRequest | None = None
    """Its replica's counts; None if a swap fell into it, or it ended early: then it counts for
    nothing but failures."""


class Traffic:
    """Finished requests: those of the baseline, and then those of the test."""

    def __init__(self, endpoint: Endpoint, fleet: Fleet, old: str, began: float) -> None:
        """`old`: the release that all serve. `began`: Unix time in seconds; it may be long ago."""
        self._endpoint, self._fleet, self._began = endpoint, fleet, began
        self._wanted = {each.name: old for each in endpoint.replicas}
        self._roles = {each.host: each.role for each in endpoint.replicas}
        self._after: dict[str, int] = {}
        self._offset = 0
        with contextlib.suppress(FileNotFoundError):
            self._offset = max(0, endpoint.access_log.stat().st_size - _MOST_BYTES)
        self._testing = False
        self._lost: set[str] = set()  # replicas that were started again in the test
        self._finished: list[LiveRequest] = []
        self._routed: list[dict[str, Any]] = []

    def collect(self) -> tuple[list[Observation], list[Observation]]:
        """All observations so far: stable, canary."""
        for name in self._fleet.replicas:
            try:
                self._finished += self._read(name)
            except OutriderError:  # the controller looks at its status
                continue
        routed, self._offset = read_log(self._endpoint.access_log, self._offset)
        self._routed += routed
        self._routed = [row for row in self._routed if float(row["started_at"]) >= self._began]
        return observations(self._routed, self._finished, self._roles)

    def start_test(self, new: str, began: float) -> None:
        """From now on: requests since `began`, those of the canary's replicas with `new`."""
        self._began, self._finished, self._routed, self._testing = began, [], [], True
        self._wanted |= {each.name: new for each in self._endpoint.canary}

    def _read(self, name: str) -> list[LiveRequest]:
        replica, seen = self._fleet.replicas[name], self._after.get(name, 0)
        finished, after = replica.requests(seen)
        if after < seen:  # started again
            if self._testing:
                self._lost.add(name)
            finished, after = replica.requests(0)
            seen = 0
        if seen == 0 and finished and not self._testing:
            # Replicas keep their last requests: what only some have kept was under other load.
            self._began = max(self._began, finished[0].finished_at - finished[0].e2e_s)
        status = replica.status()
        self._after[name] = after
        # Requests without a release had the speculator that the server was started with.
        started_with = self._fleet.served_by(status) if status.version is None else None
        return [
            each
            for each in finished
            if name not in self._lost
            and each.finished_at - each.e2e_s >= self._began
            and not each.mixed
            and (each.version or started_with) == self._wanted[name]
        ]


def read_log(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Complete lines of the router's log from byte `offset`, and the offset of the next one.

    templates/envoy.yaml.j2 has the fields. An offset past the end (the log was rotated) counts
    as 0.
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
    rows = []
    for line in complete.splitlines():
        with contextlib.suppress(ValueError):  # torn by an Envoy that was killed
            rows.append(json.loads(line))
    return rows, offset + len(complete)


def observations(
    routed: Sequence[Mapping[str, Any]], finished: Sequence[LiveRequest], roles: Mapping[str, Role]
) -> tuple[list[Observation], list[Observation]]:
    """The requests of stable and of canary, from the router's log and all replicas' counts.

    `roles`: a replica's address, as Envoy writes it, to its role. A request belongs to the role
    that its share selected. Requests that have not arrived in both are left out until they have,
    except failures; so are other paths than generation, which replicas do not report.
    """
    # A request that was repeated on another replica was aborted, or failed, on the first one.
    by_end = sorted(finished, key=lambda each: not each.aborted and not each.failed)
    by_id = {_key(each.request_id): each for each in by_end}
    arms: dict[Role, list[Observation]] = {"stable": [], "canary": []}
    for row in routed:
        served_by = roles.get(row["host"] or "")
        role, started_at = row["cluster"] or served_by, float(row["started_at"])
        live = by_id.get(_key(row["request_id"])) if row["request_id"] else None
        moved = served_by is not None and served_by != role
        failed = _failed(row) or moved or (live is not None and live.failed)
        if role not in arms or (live is None and not failed):
            continue
        request_id = row["request_id"] or f"at {started_at}"
        session = hashlib.sha256((row.get("session") or request_id).encode()).hexdigest()[:16]
        if live is not None and (live.mixed or live.aborted):
            live = None
        latency_s = float(row["duration_ms"]) / 1000
        arms[role].append(Observation(session, started_at, latency_s, failed, live))
    return arms["stable"], arms["canary"]


def _failed(row: Mapping[str, Any]) -> bool:
    """Whether the endpoint failed a request: a replica's error, or a response that broke off."""
    flags = (row["flags"] or "").split(",")
    return int(row["status"] or 0) >= 500 or not _FAILURES.isdisjoint(flags)


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _key(request_id: str) -> str:
    """The router's id within vLLM's (`chatcmpl-` and the id, or `cmpl-`, the id and `-0`)."""
    found = _UUID.search(request_id)
    return found.group() if found else request_id
