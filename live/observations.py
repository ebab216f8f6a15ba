"""Observations: what a replica counted and what the router measured for one request.

    stable, canary = observations(router.requests(0)[0], replica.requests(0)[0])

Shapes: N requests.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.live.access_log import RoutedRequest
from outrider.serving.admin.replica import LiveRequest


@dataclass(frozen=True)
class Observation:
    """One request, without its text."""

    session: str
    """Requests of one session are not independent. The request's id where there is no session."""
    version: str | None
    """Release that drafted all of it; None: not known, or the one the replica was started with."""
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
    prompt_tokens: int = 1
    load: float = 1.0
    """Mean number of requests on its replica while it ran, itself included."""
    mixed: bool = False
    """A swap fell into it, or it ended early: it counts for nothing but failures."""


def observations(
    routed: Sequence[RoutedRequest], finished: Sequence[LiveRequest]
) -> tuple[list[Observation], list[Observation]]:
    """The requests of stable and of canary, from the router's log and all replicas' rings.

    A request belongs to the role that its share selected. Requests that have not arrived in both
    are left out until they have, except failures; so are other paths than generation, which
    replicas do not report.
    """
    # A request that was repeated on another replica was aborted, or failed, on the first one.
    by_end = sorted(finished, key=lambda each: not each.aborted and not each.failed)
    by_id = {_key(each.request_id): each for each in by_end}
    loads = _loads(routed)
    arms: dict[str, list[Observation]] = {"stable": [], "canary": []}
    for request, load in zip(routed, loads, strict=True):
        role = request.routed_to or request.cluster
        live = by_id.get(_key(request.request_id)) if request.request_id else None
        moved = request.cluster is not None and request.cluster != role
        failed = request.failed or moved or (live is not None and live.failed)
        if role is None or (live is None and not failed):
            continue
        arms[role].append(
            Observation(
                session=request.session or request.request_id or f"at {request.started_at}",
                version=live.version if live else None,
                finished_at=request.started_at + request.duration_ms / 1000,
                completion_tokens=live.completion_tokens if live else 0,
                drafts=live.drafts if live else 0,
                accepted=live.accepted if live else 0,
                ttft_s=live.ttft_s if live else 0.0,
                decode_s=live.decode_s if live else 0.0,
                latency_s=request.duration_ms / 1000,
                failed=failed,
                prompt_tokens=live.prompt_tokens if live else 1,
                load=load,
                mixed=live is None or live.mixed or live.aborted,
            )
        )
    return arms["stable"], arms["canary"]


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _key(request_id: str) -> str:
    """The router's id within vLLM's (`chatcmpl-` and the id, or `cmpl-`, the id and `-0`)."""
    found = _UUID.search(request_id)
    return found.group() if found else request_id


def _loads(routed: Sequence[RoutedRequest]) -> list[float]:
    """Mean number of requests on the same replica during each one, from those that have ended."""
    loads = np.ones(len(routed))
    hosts: dict[str | None, list[int]] = {}
    for index, request in enumerate(routed):
        hosts.setdefault(request.host, []).append(index)
    for host, indices in hosts.items():
        if host is None:
            continue
        start_N = np.array([routed[index].started_at for index in indices])
        end_N = start_N + np.array([routed[index].duration_ms / 1000 for index in indices])
        loads[indices] = mean_concurrency(start_N, end_N)
    return [float(each) for each in loads]


def mean_concurrency(
    start_N: NDArray[np.float64], end_N: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Mean number of intervals, its own included, that overlap each interval."""
    times = np.concatenate([start_N, end_N])
    order = np.argsort(times, kind="stable")
    change = np.concatenate([np.ones(len(start_N)), -np.ones(len(end_N))])[order]
    times = times[order]
    area = np.concatenate([[0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(times))])
    length_N = end_N - start_N
    total_N = np.interp(end_N, times, area) - np.interp(start_N, times, area)
    safe_N = np.where(length_N > 0, length_N, 1.0)
    return np.where(length_N > 0, np.maximum(total_N / safe_N, 1.0), 1.0)
