"""The speculator of a live engine: exchanged on request, watched, and taken back.

Runs in the API server's process and reaches the workers through vLLM's engine client. The steps of
an exchange are in exchange.py, what the workers do in weight_transfer.py.
"""

import asyncio
import dataclasses
import hashlib
import logging
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.common.anytime import ratio_of_sums
from outrider.common.errors import OutriderError
from outrider.serving.live.replica import Cache, LiveRequest, ReplicaStatus, SwapResult, Watch
from outrider.serving.vllm_hooks.exchange import Report, exchange_steps
from outrider.serving.vllm_hooks.live_requests import RequestLog

logger = logging.getLogger("outrider.live")

_POLL_S = (0.005, 0.25)
"""First and longest time between two looks at files that are being read, in seconds."""


@dataclasses.dataclass(frozen=True)
class SwapOrder:
    """What the route is asked to load."""

    directory: str
    version: str
    digest: str
    cache: Cache
    watch: Watch | None


@dataclasses.dataclass
class _Watching:
    """The acceptance after a swap, compared with what the evidence predicts."""

    order: SwapOrder
    exchange: str
    before: str | None
    """The version before the swap."""
    tokens: list[int] = dataclasses.field(default_factory=list)
    steps: list[int] = dataclasses.field(default_factory=list)

    def finding(self, request: LiveRequest) -> str | None:
        """Why the swap does not hold, at this request; None if nothing shows that."""
        watch = self.order.watch
        if watch is None or request.version != self.order.version or not request.drafts:
            return None
        self.tokens.append(request.drafts + request.accepted)
        self.steps.append(request.drafts)
        bounds = ratio_of_sums(self.tokens, self.steps, alpha=watch.level)
        if bounds.high >= watch.min_tokens_per_step:
            return None
        return (
            f"{bounds.value:.3f} tokens a step over {len(self.steps)} requests, at most"
            f" {bounds.high:.3f} at level {watch.level:g}; the evidence predicts at least"
            f" {watch.min_tokens_per_step:.3f}"
        )

    @property
    def over(self) -> bool:
        """True after the last request that is compared."""
        return self.order.watch is None or len(self.steps) >= self.order.watch.requests


class LiveSpeculator:
    """Exchanges the speculator of one vLLM server."""

    def __init__(self, client: Any, requests: RequestLog, roots: Sequence[Path]) -> None:
        """`client` is vLLM's `AsyncLLM`; releases are accepted below `roots`."""
        self._client, self._requests, self._roots = client, requests, list(roots)
        config = client.vllm_config
        self._k = config.speculative_config.num_speculative_tokens
        self._caches = bool(config.cache_config.enable_prefix_caching)
        self._counts = config.observability_config.per_request_spec_decode_metrics != "none"
        self._lock, self._tasks = asyncio.Lock(), set[asyncio.Task[Any]]()
        self._version: str | None = None
        self._swaps = 0
        self._watching: _Watching | None = None
        self._reverted: str | None = None
        self._because: str | None = None
        requests.listener = self._finished

    async def status(self) -> ReplicaStatus:
        """The speculator in use, by what every worker reports."""
        reports = await self._rpc("speculator_report", {"digest": True})
        first = reports[0]
        if any(report["digest"] != first["digest"] for report in reports):
            raise OutriderError("the workers draft with different speculators; start it again")
        if not first["kind"]:
            raise OutriderError(first["error"] or "the speculator in use cannot be read")
        return ReplicaStatus(
            version=self._version,
            digest=first["digest"],
            draft_digest=_together([report["draft_digest"] for report in reports]),
            k=self._k,
            kind=first["kind"],
            directory=first["directory"],
            swaps=self._swaps,
            watching=self._watching is not None,
            reverted=self._reverted,
            reverted_because=self._because,
        )

    async def swap(self, order: SwapOrder) -> SwapResult:
        """Exchanges the speculator; an `OutriderError` says why not.

        It is finished even if the caller is gone.
        """
        return await asyncio.shield(self._task(self._swap(order)))

    def _task(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self._tasks.discard)
        return task

    async def _swap(self, order: SwapOrder) -> SwapResult:
        if order.watch is not None and not self._counts:
            raise OutriderError(
                "watch: requests are not counted; start the server with"
                " --per-request-spec-decode-metrics summary"
            )
        source = {
            "directory": order.directory,
            "root": str(self._root(order.directory)),
            "digest": order.digest,
        }
        async with self._lock:
            await self._stage(source)
            exchange = uuid.uuid4().hex
            began, clock = time.time(), time.perf_counter()
            reports = await self._still(order.cache, self._exchange(source, exchange))
            stall_s = time.perf_counter() - clock
            before, self._version = self._version, order.version
            self._swaps += 1
            self._requests.swapped(began, order.version)
            self._reverted = self._because = None
            self._watching = _Watching(order, exchange, before) if order.watch else None
            await self._client.update_weight_version(order.version)
            logger.info("speculator %s in use after %.3f s", order.version, stall_s)
        return SwapResult(
            version=order.version,
            read_s=max(report["read_s"] for report in reports),
            apply_s=max(report["apply_s"] for report in reports),
            stall_s=stall_s,
        )

    def _root(self, directory: str) -> Path:
        path = Path(directory)
        for root in self._roots:
            if path.is_relative_to(root) and path != root and ".." not in path.parts:
                return root
        raise OutriderError(
            f"{directory}: not below a release root of this server"
            f" ({', '.join(map(str, self._roots)) or 'it has none: OUTRIDER_RELEASE_ROOTS'})"
        )

    async def _stage(self, source: dict[str, str]) -> None:
        """Has every worker read and check the files while the engine goes on answering."""
        await self._rpc("init_weight_transfer_engine", {"init_info": source})
        pause_s, longest_s = _POLL_S
        while True:
            reports = await self._rpc("speculator_report", {})
            for report in reports:
                if error := report["staging_error"]:
                    raise OutriderError(error)
            if all(report["staged"] for report in reports):
                return
            await asyncio.sleep(pause_s)
            pause_s = min(longest_s, 1.5 * pause_s)

    async def _exchange(self, source: dict[str, str], exchange: str) -> list[Report]:
        steps = exchange_steps(source, exchange)
        answer: Any = None
        try:
            while True:
                answer = await self._rpc(*steps.send(answer))
        except StopIteration as end:
            reports: list[Report] = end.value
            return reports

    async def _still(self, cache: Cache, work: Any) -> Any:
        """Awaits `work`, with the scheduler paused and its caches cleared where that is the policy.

        Requests are kept: they continue with an empty cache, so their prompts are computed again.
        Without prefix caching nothing has to be cleared.
        """
        if cache == "keep" or not self._caches:
            return await work
        try:
            await self._client.pause_generation(mode="keep", clear_cache=True)
            return await work
        finally:
            work.close()
            await self._client.resume_generation()

    def _finished(self, request: LiveRequest) -> None:
        """Called with every finished request, in the event loop."""
        watching = self._watching
        if watching is None:
            return
        if finding := watching.finding(request):
            self._task(self._take_back(watching, finding))
        elif watching.over:
            logger.info("speculator %s holds what its evidence predicts", self._version)
            self._watching = None

    async def _take_back(self, watching: _Watching, finding: str) -> None:
        async with self._lock:
            if self._watching is not watching:  # decided before, or another swap since
                return
            self._watching = None
            began = time.time()
            undo = self._rpc("speculator_take_back", {"exchange": watching.exchange})
            reports = await self._still(watching.order.cache, undo)
            if errors := [report["error"] for report in reports if report["error"]]:
                self._because = f"{finding}; {errors[0]}"
                logger.error("speculator %s: %s", self._version, self._because)
                return
            self._swaps += 1
            self._reverted, self._because = watching.order.version, finding
            self._version = watching.before
            self._requests.swapped(began, watching.before)
            await self._client.update_weight_version(watching.before or "default")
            logger.warning("speculator %s taken back: %s", self._reverted, finding)

    async def _rpc(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        """The answers of all workers of all data-parallel engines."""
        answers = await self._client.engine_core.call_utility_all_async(
            "collective_rpc", method, None, (), arguments
        )
        return [answer for engine in answers for answer in engine]


def _together(digests: Sequence[str]) -> str:
    """One digest for all ranks: that of the only one, or of their list."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
