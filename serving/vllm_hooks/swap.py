"""The calls that swap the speculator of an engine, for every way of calling its workers.

    reports = swap_speculator(rpc, directory)     # rpc(method, arguments): each worker's answer

`swap_steps` is a generator of calls, so that the synchronous callers here (a server's
development route, an engine in this process) and the asynchronous one (admin_route.py) share the
order. weight_transfer.py answers in the workers.
"""

import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from outrider.common.errors import OutriderError

Call = tuple[str, dict[str, Any]]
"""Name of a worker's method, and its arguments."""


class Report(TypedDict):
    """What one worker drafts with, and how the last swap went."""

    directory: str
    kind: str
    digest: str
    """`bundle_digest` of the release; empty for a directory that was not checked against one."""
    draft_digest: str
    """Of the weights in memory; empty if it was not asked for."""
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


def swap_steps(
    source: Mapping[str, Any], swap_id: str
) -> Generator[Call, Sequence[Any], list[Report]]:
    """Yields calls, is sent the workers' answers, and returns the reports after a swap.

    `swap_id` identifies it, for `speculator_take_back`. All workers have the new speculator, or
    all have the old one; then an `OutriderError` has the first worker's reason. A worker that could
    not go back to the old one is a `SpeculatorBroken`.
    """
    update = dict(source) | {"swap_id": swap_id, "quiet": True}
    yield "start_draft_weight_update", {}
    yield "update_weights", {"update_info": update}
    yield "finish_weight_update", {}
    reports = list((yield "speculator_report", {}))
    errors = [report["error"] for report in reports if report["error"] is not None]
    if errors and len(errors) < len(reports):  # the others have the new one
        reports = list((yield "speculator_take_back", {"swap_id": swap_id}))
    if broken := [report["broken"] for report in reports if report["broken"] is not None]:
        raise SpeculatorBroken(f"{source['directory']}: not loaded: {broken[0]}")
    if errors:
        raise OutriderError(
            f"{source['directory']}: not loaded, the speculator before it stays in use: {errors[0]}"
        )
    return reports


def swap_speculator(
    rpc: Callable[[str, dict[str, Any]], Sequence[Any]], directory: Path
) -> list[Report]:
    """Loads the speculator of a trusted directory; `rpc` calls a method of every worker.

    An `OutriderError` says why not; then the speculator before it is still in use.
    """
    steps = swap_steps({"directory": str(Path(directory).resolve())}, uuid.uuid4().hex)
    answer: Any = None
    try:
        while True:
            answer = rpc(*steps.send(answer))
    except StopIteration as end:
        reports: list[Report] = end.value
        return reports
