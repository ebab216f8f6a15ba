"""The calls that swap the speculator of an engine, for every way of calling its workers.

    await swap(rpc, {"directory": directory}, swap_id)     # a live server (live_speculator.py)
    swap_speculator(rpc, directory)     # a server in development mode, an engine in this process

`rpc(method, arguments)` returns each worker's answer; weight_transfer.py answers in the workers.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from outrider.common.errors import OutriderError


class Report(TypedDict):
    """What one worker drafts with, and how the last swap went."""

    directory: str
    kind: str
    digest: str
    """`bundle_digest` of the release; empty for a directory that was not checked against one."""
    read_s: float
    apply_s: float
    staged: bool
    """Whether nothing is being read in the background."""
    staging_error: str | None
    error: str | None
    """Why the last swap did not take place; None if it did."""
    broken: str | None
    """Why this worker drafts with half-loaded or unproven weights; None if it does not."""


class SpeculatorBroken(OutriderError):
    """The workers may draft with wrong weights until a swap succeeds on all of them."""


async def swap(
    rpc: Callable[[str, dict[str, Any]], Awaitable[Sequence[Any]]],
    source: Mapping[str, Any],
    swap_id: str,
) -> list[Report]:
    """Swaps the speculator on all workers; returns their reports.

    `swap_id` identifies it, for `speculator_take_back`. All workers have the new speculator, or
    all have the old one; then an `OutriderError` has the first worker's reason. A worker that could
    not go back to the old one is a `SpeculatorBroken`.
    """
    update = dict(source) | {"swap_id": swap_id, "quiet": True}
    await rpc("start_draft_weight_update", {})
    await rpc("update_weights", {"update_info": update})
    await rpc("finish_weight_update", {})
    reports: list[Report] = list(await rpc("speculator_report", {}))
    errors = [report["error"] for report in reports if report["error"] is not None]
    if errors and len(errors) < len(reports):  # the others have the new one
        reports = list(await rpc("speculator_take_back", {"swap_id": swap_id}))
    if broken := [report["broken"] for report in reports if report["broken"] is not None]:
        raise SpeculatorBroken(f"{source['directory']}: not loaded: {broken[0]}")
    if errors:
        raise OutriderError(
            f"{source['directory']}: not loaded, the speculator before it stays in use: {errors[0]}"
        )
    return reports


def swap_speculator(rpc: Callable[[str, dict[str, Any]], Sequence[Any]], directory: Path) -> None:
    """Loads the speculator of a trusted directory.

    An `OutriderError` says why not; then the speculator before it is still in use.
    """

    async def call(method: str, arguments: dict[str, Any]) -> Sequence[Any]:
        return rpc(method, arguments)

    source = {"directory": str(Path(directory).resolve())}
    asyncio.run(swap(call, source, uuid.uuid4().hex))
