"""Swaps a live engine's speculator; reverts if acceptance is too low.

Runs in the API server's process, where it checks the files once, and calls the workers through
vLLM's engine client. See serving/admin/swap.py for the steps and swap_extension.py for the workers.
"""

import asyncio
import dataclasses
import logging
import time
import uuid
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.common.anytime import ratio_of_groups
from outrider.common.errors import OutriderError
from outrider.common.threads import in_daemon_thread
from outrider.serving.admin.replica import (
    FinishedRequests,
    LiveRequest,
    ReplicaStatus,
    SwapOrder,
    SwapResult,
    Watch,
)
from outrider.serving.admin.swap import (
    Candidate,
    SpeculatorBroken,
    SwapReport,
    read_candidate,
    read_served,
    swap,
)
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.vllm_hooks.live_requests import RequestLog
from outrider.serving.vllm_hooks.start_arguments import list_differing_arguments

logger = logging.getLogger("outrider.live")


def intact_digest(directory: Path) -> str:
    """`bundle_digest` of a directory; empty if it is no bundle or its files were changed.

    Computed once, when a server starts: 11.6 GB for R1, 10 s.
    """
    try:
        return bundle_digest(directory)
    except OutriderError:
        return ""


READ_S, SWAP_S, ANSWER_S = 400.0, 120.0, 30.0
"""Time limits in seconds for reading and checking the files (the engine keeps answering requests),
for pausing and swapping, and for resuming or reporting; in total below the client's 600 s."""


@dataclasses.dataclass
class _Watching:
    """Compares the acceptance after a swap with what the bundle's evidence predicts."""

    watch: Watch
    version: str
    swap_id: str
    before: str | None
    """The version before the swap."""
    tokens: list[int] = dataclasses.field(default_factory=list)
    steps: list[int] = dataclasses.field(default_factory=list)
    failed: bool = False
    """True once a finding has triggered the revert."""

    def finding(self, request: LiveRequest) -> str | None:
        """Adds a request; returns a reason to undo the swap, or None."""
        if request.version != self.version or not request.drafts:
            return None
        self.tokens.append(request.drafts + request.accepted)
        self.steps.append(request.drafts)
        bounds = ratio_of_groups([(self.tokens, self.steps)], [], self.watch.level)
        if bounds.high >= self.watch.min_tokens_per_step:
            return None
        return (
            f"{bounds.value:.3f} tokens per step over {len(self.steps)} requests, at most"
            f" {bounds.high:.3f} at level {self.watch.level:g}; the evidence predicts at least"
            f" {self.watch.min_tokens_per_step:.3f}"
        )


class LiveSpeculator:
    """Swaps the speculator of one vLLM server."""

    def __init__(self, client: Any, roots: Sequence[Path], arguments: Namespace) -> None:
        """`client` is vLLM's `AsyncLLM`; releases must be inside one of the `roots`.

        `arguments` are those of the server's command, as vLLM parsed them.

        Raises an error if the speculator in use cannot be read.
        """
        self._client = client
        self._roots = list(roots)
        self._arguments = arguments
        config = client.vllm_config
        target = Path(config.model_config.model)
        self._target = target if target.is_dir() else None
        self._started_with = read_served(Path(config.speculative_config.model))
        self._started_digest = intact_digest(self._started_with.directory)
        speculative = config.speculative_config
        self._k = speculative.num_speculative_tokens
        keys = self._started_with.kind.default_settings
        self._settings = {key: getattr(speculative, key) for key in keys}
        # A history has no keys and values in the cache.
        has_weights = self._started_with.kind.has_weights
        self._caches = has_weights and bool(config.cache_config.enable_prefix_caching)
        self._counts = config.observability_config.per_request_spec_decode_metrics != "none"
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()
        self._version: str | None = None
        self._watching: _Watching | None = None
        self._reverted: str | None = None
        self._because: str | None = None
        self._broken: str | None = None
        """Why workers may draft with wrong weights; None again after a swap succeeds on all."""
        self._requests = RequestLog(client.output_processor, self._finished)

    async def status(self) -> ReplicaStatus:
        """Returns the speculator in use, from the reports of all workers."""
        reports: Sequence[SwapReport] = []
        try:
            reports = await self._reports()
        except Exception as error:
            if self._broken is None:
                raise OutriderError(f"the engine does not answer: {error!r}") from error
        broken = [self._broken, *(report["broken"] for report in reports)]
        if len({report["digest"] for report in reports}) > 1:
            if self._lock.locked():
                raise OutriderError("a swap is in progress; ask again")
            broken.append("the workers draft with different speculators; start the replica again")
        why = next((reason for reason in broken if reason is not None), None)
        return ReplicaStatus(
            version=self._version,
            digest=self._digest(reports[0]) if reports else "",
            k=self._k,
            kind=self._started_with.kind.name,
            directory=reports[0]["directory"] if reports else "",
            watching=self._watching is not None and why is None,
            reverted=self._reverted,
            reverted_because=self._because,
            broken=why,
        )

    async def finished(self, after: int) -> FinishedRequests:
        """The kept requests from index `after` on."""
        return self._requests.after(after)

    async def swap(self, order: SwapOrder) -> SwapResult:
        """Swaps the speculator; raises an `OutriderError` with the reason if refused.

        The swap completes even if the caller disconnects.
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
        async with self._lock:
            expected = order.expected
            digest = None if expected is None else self._digest((await self._reports())[0])
            if digest != expected:
                raise OutriderError(
                    f"{order.directory}: not loaded, because this server drafts with"
                    f" {digest or 'the speculator of its start'}, not with"
                    f" {expected or 'that of its start'}: another controller swapped it, or it was"
                    " started again; run one controller for each endpoint"
                )
            began = time.monotonic()
            new, differing_arguments = await self._checked(order)
            read = time.monotonic()
            swap_id = uuid.uuid4().hex
            await self._still(f"load {order.version}", swap(self._rpc, new, swap_id))
            stall_s = time.monotonic() - read
            before = self._version
            self._version = order.version
            self._requests.note_swap(read, order.version)
            self._reverted = self._because = self._broken = None
            self._watching = None
            if order.watch is not None:
                self._watching = _Watching(order.watch, order.version, swap_id, before)
            logger.info("speculator %s in use after %.3f s", order.version, stall_s)
            if differing_arguments:
                logger.warning(
                    "release %s was measured with other values of %s than in this server's command",
                    order.version,
                    ", ".join(differing_arguments),
                )
        return SwapResult(read - began, stall_s, differing_arguments)

    async def _checked(self, order: SwapOrder) -> tuple[Candidate, list[str]]:
        """Reads and checks the release in `order` while the engine keeps answering.

        Also returns the names of the arguments that differ from the release's.
        """
        directory = Path(order.directory)
        root = next((root for root in self._roots if root in directory.parents), None)
        if root is None:
            raise OutriderError(
                f"{directory}: not below a release root of this server"
                f" ({', '.join(map(str, self._roots)) or 'it has none: OUTRIDER_RELEASE_ROOTS'})"
            )
        current = self._started_with
        target = self._target

        def read() -> tuple[Candidate, list[str]]:
            new = read_candidate(
                directory=directory,
                current=current,
                target_dir=target,
                root=root,
                digest=order.digest,
                k=self._k,
                settings=self._settings,
            )
            return new, list_differing_arguments(self._arguments, directory)

        reading = in_daemon_thread(read)
        try:
            async with asyncio.timeout(READ_S):
                return await asyncio.shield(asyncio.wrap_future(reading))
        except TimeoutError:
            raise OutriderError(
                f"{directory}: not read within {READ_S:g} s, so the previous speculator stays in"
                " use; check the file system"
            ) from None

    async def _still(self, what: str, work: Any) -> None:
        """Awaits `work`, with the scheduler paused and the prefix cache cleared.

        Cached prefixes hold the old drafter's keys and values. Requests are kept and continue with
        an empty cache, so their prompts are recomputed. Without prefix caching, nothing is paused.
        If this raises a `SpeculatorBroken`, the workers may draft with wrong weights.
        """
        try:
            try:
                async with asyncio.timeout(SWAP_S):
                    if self._caches:
                        # "keep" freezes requests; other modes abort or finish them. It returns
                        # once the device is idle (vllm/v1/engine/core.py, lines 917 and 934).
                        await self._client.pause_generation(mode="keep", clear_cache=True)
                    reports: Sequence[SwapReport] = await work
            finally:
                work.close()
                if self._caches:
                    async with asyncio.timeout(ANSWER_S):
                        await self._client.resume_generation()
            if broken := [report["broken"] for report in reports if report["broken"] is not None]:
                raise SpeculatorBroken(f"{what}: {broken[0]}")
        except SpeculatorBroken as error:
            self._break(str(error))
            raise
        except OutriderError:  # all workers draft as before
            raise
        except Exception as error:  # an engine error, perhaps halfway through the work
            reason = str(error) or f"no answer in time ({type(error).__name__})"
            self._break(f"{what}: {reason}; start the replica again")
            raise SpeculatorBroken(self._broken) from error

    def _break(self, reason: str) -> None:
        self._broken, self._watching = reason, None
        self._requests.note_swap(0.0, None)
        logger.error("speculator broken: %s", reason)

    def _finished(self, request: LiveRequest) -> None:
        """Called with every finished request, in the event loop."""
        watching = self._watching
        if watching is None or watching.failed:
            return
        if finding := watching.finding(request):
            watching.failed = True
            self._task(self._take_back(watching, finding))
        elif len(watching.steps) >= watching.watch.requests:
            logger.info("speculator %s drafts as well as its evidence predicts", self._version)
            self._watching = None

    async def _take_back(self, watching: _Watching, finding: str) -> None:
        async with self._lock:
            if self._watching is not watching:  # another swap has replaced it
                return
            began = time.monotonic()
            undo = self._rpc("speculator_take_back", {"swap_id": watching.swap_id})
            try:
                await self._still(f"take back, because {finding}", undo)
            except SpeculatorBroken:  # `status` reports it
                return
            self._watching = None  # only now, since no watch in `status` means that the swap passed
            self._reverted = watching.version
            self._because = finding
            self._version = watching.before
            self._requests.note_swap(began, watching.before)
            logger.warning("speculator %s taken back: %s", self._reverted, finding)

    def _digest(self, report: SwapReport) -> str:
        """Digest of the speculator that a worker drafts with; it reports none for its start."""
        return report["digest"] or self._started_digest

    async def _reports(self) -> Sequence[SwapReport]:
        async with asyncio.timeout(ANSWER_S):
            return await self._rpc("speculator_report", {})

    async def _rpc(self, method: str, arguments: dict[str, Any]) -> list[SwapReport]:
        """Calls a method on all workers and returns their answers."""
        # `collective_rpc_async` calls one engine only (vllm/v1/engine/core_client.py, line 1391).
        answers = await self._client.engine_core.call_utility_all_async(
            "collective_rpc", method, None, (), arguments
        )
        return [answer for engine in answers for answer in engine]
