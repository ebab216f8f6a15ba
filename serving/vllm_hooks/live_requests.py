"""A server's most recently finished requests, with draft counts but without text.

When a request ends, vLLM's output processor (in the API server's process) has its times and, with
`--per-request-spec-decode-metrics`, the scheduler's counts of its drafts. This log wraps the two
methods through which every request ends. A client reads it through the admin route.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from outrider.serving.admin.replica import FinishedRequests, LiveRequest

KEPT = 4096
"""Number of finished requests that are kept: about 40 s at 100 requests/s."""


class _Swap(NamedTuple):
    """A swap of the speculator, with times from the monotonic clock."""

    began: float
    ended: float
    version: str | None


class RequestLog:
    """A ring buffer of finished requests."""

    def __init__(self, processor: Any, listener: Callable[[LiveRequest], None]) -> None:
        """`processor` is vLLM's `OutputProcessor`, two of whose methods are wrapped.

        `listener` is called with every finished request.
        """
        self._finished: deque[LiveRequest] = deque(maxlen=KEPT)
        self._swaps: deque[_Swap] = deque(maxlen=64)
        self._next = 0
        self._aborting = False
        self._processor = processor
        self._listener = listener
        # The first is called for each finished request, the second for aborted ones
        # (vllm/v1/engine/output_processor.py, lines 823 and 552).
        self._ended = processor._update_stats_from_finished
        self._abort = processor.abort_requests
        processor._update_stats_from_finished = self._record_end
        processor.abort_requests = self._record_aborts

    def note_swap(self, began: float, version: str | None) -> None:
        """Records a swap of the speculator from `began` (monotonic) until now."""
        self._swaps.append(_Swap(began, time.monotonic(), version))

    def after(self, index: int) -> FinishedRequests:
        """The kept requests from `index` on."""
        return FinishedRequests([one for one in self._finished if one.index >= index], self._next)

    def version(self, arrived: float, ended: float) -> tuple[str | None, bool]:
        """A request's speculator version, and whether a swap overlaps it (monotonic times)."""
        version: str | None = None
        for swap in self._swaps:
            if swap.ended <= arrived:
                version = swap.version
            elif swap.began < ended:
                return None, True
        return version, False

    def _record_end(self, state: Any, finish_reason: Any, *args: Any, **kwargs: Any) -> None:
        self._ended(state, finish_reason, *args, **kwargs)
        self._add(state, str(finish_reason))

    def _record_aborts(self, request_ids: Iterable[str], *args: Any, **kwargs: Any) -> list[str]:
        # `abort_requests` calls itself for child requests (output_processor.py, line 610).
        if self._aborting:
            return list(self._abort(request_ids, *args, **kwargs))
        before = dict(self._processor.request_states)
        self._aborting = True
        try:
            aborted = list(self._abort(request_ids, *args, **kwargs))
        finally:
            self._aborting = False
        for request_id, state in before.items():
            if request_id not in self._processor.request_states:
                self._add(state, "abort")
        return aborted

    def _add(self, state: Any, finish_reason: str) -> None:
        from vllm.v1.metrics.stats import RequestStateStats

        now = time.time()
        counts = state.spec_decode_metrics
        histogram = counts.histogram if counts is not None else []
        accepted = sum(tokens * steps for tokens, steps in enumerate(histogram))
        stats = state.stats
        if stats is None:  # --disable-log-stats (vllm/v1/engine/output_processor.py, line 189)
            stats = RequestStateStats(arrival_time=now)
        # The arrival is wall-clock time; the times of tokens and swaps are of the monotonic clock
        # (vllm/v1/metrics/stats.py, lines 265 and 268).
        arrived = stats.arrival_time
        decode_s = stats.last_token_ts - stats.first_token_ts if stats.first_token_ts else 0.0
        ended = time.monotonic()
        version, mixed = self.version(ended - (now - arrived), ended)
        request = LiveRequest(
            index=self._next,
            # A client chooses it; a lone surrogate could not be sent as JSON.
            request_id=state.external_req_id[:1000].encode(errors="replace").decode(),
            version=version,
            finished_at=now,
            completion_tokens=stats.num_generation_tokens,
            drafts=sum(histogram),
            accepted=accepted,
            ttft_s=stats.first_token_latency,
            decode_s=max(0.0, decode_s),
            e2e_s=now - arrived,
            failed=finish_reason == "error",
            aborted=finish_reason == "abort",
            mixed=mixed,
        )
        self._next += 1
        self._finished.append(request)
        self._listener(request)
