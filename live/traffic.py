"""The requests of a canary's test, from the router's log and the replicas' counts. No text.

    traffic = Traffic(fleet, router, {"stable": old, "canary": new}, began=clock.time())
    stable, canary = traffic.collect()      # all so far

Requests that began before `began` are left out, as are those that another release drafted a part
of. A replica that still has the speculator that it was started with reports no release: its
requests count while that is the role's. One that was started again counts from 0, and is read from
there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.live.access_log import RoutedRequest
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import Fleet
from outrider.live.router import Router
from outrider.serving.admin.replica import LiveRequest

Role = Literal["stable", "canary"]


@dataclass(frozen=True)
class Observation:
    """One request: what the router measured, and what its replica counted."""

    id: str
    session: str
    """Requests of one session are not independent. The request's id where there is no session."""
    started_at: float
    """Unix time in seconds."""
    latency_s: float
    """Seconds from arrival at the router to the last byte."""
    failed: bool
    """The replica that its share selected did not answer it in full, even if another one did."""
    completion_tokens: int = 0
    drafts: int = 0
    """Steps that verified drafts."""
    accepted: int = 0
    """Accepted draft tokens."""
    ttft_s: float = 0.0
    decode_s: float = 0.0
    """Seconds from the first token to the last."""
    counts: bool = True
    """False where a swap fell into it, or it ended early: it counts for nothing but failures."""


class Traffic:
    """Finished requests since a point in time."""

    def __init__(
        self,
        endpoint: Endpoint,
        fleet: Fleet,
        router: Router,
        releases: Mapping[Role, str],
        began: float,
    ) -> None:
        """`releases`: name of the release of each role. `began`: Unix time in seconds."""
        self._fleet, self._router, self._began = fleet, router, began
        self._wanted = {each.name: releases[each.role] for each in endpoint.replicas}
        self._after: dict[str, int] = {}
        self._offset = 0
        self._finished: list[LiveRequest] = []
        self._routed: list[RoutedRequest] = []

    def collect(self) -> tuple[list[Observation], list[Observation]]:
        """All observations so far: stable, canary."""
        for name in self._fleet.replicas:
            try:
                self._finished += self._read(name)
            except OutriderError:  # the controller looks at its status
                continue
        while True:
            routed, offset = self._router.requests(self._offset)
            self._routed += [each for each in routed if each.started_at >= self._began]
            if offset == self._offset:
                return observations(self._routed, self._finished)
            self._offset = offset

    def _read(self, name: str) -> list[LiveRequest]:
        replica, seen = self._fleet.replicas[name], self._after.get(name, 0)
        finished, after = replica.requests(seen)
        if after < seen:  # started again
            finished, after = replica.requests(0)
        status = replica.status()
        self._after[name] = after
        # Requests without a release had the speculator that the server was started with.
        started_with = self._fleet.served_by(status) if status.version is None else None
        return [
            each
            for each in finished
            if each.finished_at - each.e2e_s >= self._began
            and not each.mixed
            and (each.version or started_with) == self._wanted[name]
        ]


def observations(
    routed: Sequence[RoutedRequest], finished: Sequence[LiveRequest]
) -> tuple[list[Observation], list[Observation]]:
    """The requests of stable and of canary, from the router's log and all replicas' counts.

    A request belongs to the role that its share selected. Requests that have not arrived in both
    are left out until they have, except failures; so are other paths than generation, which
    replicas do not report.
    """
    # A request that was repeated on another replica was aborted, or failed, on the first one.
    by_end = sorted(finished, key=lambda each: not each.aborted and not each.failed)
    by_id = {_key(each.request_id): each for each in by_end}
    arms: dict[Role, list[Observation]] = {"stable": [], "canary": []}
    for request in routed:
        role = request.routed_to or request.cluster
        live = by_id.get(_key(request.request_id)) if request.request_id else None
        moved = request.cluster is not None and request.cluster != role
        failed = request.failed or moved or (live is not None and live.failed)
        if role is None or (live is None and not failed):
            continue
        request_id = request.request_id or f"at {request.started_at}"
        session, latency_s = request.session or request_id, request.duration_ms / 1000
        measured = (request_id, session, request.started_at, latency_s, failed)
        if live is None:
            arms[role].append(Observation(*measured, counts=False))
            continue
        counted = (live.completion_tokens, live.drafts, live.accepted, live.ttft_s, live.decode_s)
        arms[role].append(Observation(*measured, *counted, counts=not (live.mixed or live.aborted)))
    return arms["stable"], arms["canary"]


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _key(request_id: str) -> str:
    """The router's id within vLLM's (`chatcmpl-` and the id, or `cmpl-`, the id and `-0`)."""
    found = _UUID.search(request_id)
    return found.group() if found else request_id
