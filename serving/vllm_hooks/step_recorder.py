"""Times the steps of a serving engine; on request, with every number of drafts in turn.

A server whose environment names a file (`StepFile`) appends a line of JSON to it for every step. A
server that was started with a schedule of drafts by batch size also rotates through 1, 2, ... K
drafts, `RUN` steps each, until the file's owner fixes the number. So every number of drafts meets
the same requests, load and machine noise. serving/step_times.py computes times from the steps.

A step is timed from one call of the scheduler to the next. That includes what front end and clients
take from the same cores meanwhile.
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from outrider.serving.config import ServingConfig

RECORD = "OUTRIDER_RECORD_STEPS"
"""Environment variable that holds the file's path."""

RUN = 8
"""Consecutive steps with the same number of drafts."""


class Step(NamedTuple):
    """One step of the engine."""

    seconds: float
    """Until the next step began."""
    requests: int
    drafts: int
    """Requested, per request."""
    tokens: int
    """Computed by the target; for a decoding request its last token and its drafts."""
    new: int
    """Requests whose prompt is computed in this step."""
    prompt_tokens: int
    """Prompt tokens computed in this step."""
    lasting: bool
    """Whether the next step had the same requests, so that the engine did not idle in between."""

    @property
    def settled(self) -> bool:
        """Whether the step only decodes, and verifies as many drafts as it makes."""
        return not self.new and self.tokens == self.requests * (self.drafts + 1)


class StepFile:
    """The file to which a server appends its steps, read incrementally."""

    def __init__(self, path: Path) -> None:
        """Removes what an earlier server wrote to `path`."""
        self._path, self._offset = Path(path).resolve(), 0
        self._path.unlink(missing_ok=True)
        _drafts_file(self._path).unlink(missing_ok=True)

    def recorded(self, serving: ServingConfig) -> ServingConfig:
        """`serving` for a server that appends its steps to this file."""
        return serving.with_engine(
            environment=serving.engine.environment | {RECORD: str(self._path)}
        )

    def fix_drafts(self, drafts: int) -> None:
        """Ends the rotation: from the next request on, every step makes `drafts` drafts."""
        temporary = self._path.with_suffix(".fixing")
        temporary.write_text(str(drafts), encoding="utf-8")
        temporary.replace(_drafts_file(self._path))

    def new(self) -> list[Step]:
        """The steps since the last call, up to the last whole line.

        The newest step is written when the next one begins.
        """
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + bool(whole)
        return [Step(*json.loads(line)) for line in whole.splitlines()]


def install(path: str) -> None:
    """Patches vLLM's scheduler in this process; serving/vllm_hooks/plugin.py calls it."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if not hasattr(Scheduler.schedule, "recorder"):
        setattr(Scheduler, "schedule", _recorded(Scheduler.schedule, path))  # noqa: B010


def _recorded(schedule: Callable[..., Any], path: str) -> Callable[..., Any]:
    begun: dict[str, Any] = {}
    count = 0
    fixed: int | None = None

    def recorded(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count, begun, fixed
        now, before = time.perf_counter(), begun
        drafts = scheduler.num_spec_tokens
        if scheduler.dynamic_sd_lookup is not None:
            drafts = fixed or 1 + (count // RUN) % scheduler.num_spec_tokens
            scheduler.dynamic_sd_lookup[:] = [drafts] * len(scheduler.dynamic_sd_lookup)
        output = schedule(scheduler, *args, **kwargs)
        ids = frozenset(output.num_scheduled_tokens)
        if before:
            step = Step(now - before["at"], **before["what"], lasting=ids == before["ids"])
            _opened(path).write(json.dumps(step) + "\n")
        new = output.scheduled_new_reqs
        if new and scheduler.dynamic_sd_lookup is not None and fixed is None:
            fixed = _fixed_drafts(path)
        what = {
            "requests": len(ids),
            "drafts": drafts,
            "tokens": output.total_num_scheduled_tokens,
            "new": len(new),
            "prompt_tokens": sum(output.num_scheduled_tokens[request.req_id] for request in new),
        }
        begun = {"at": now, "ids": ids, "what": what} if ids else {}
        count += bool(ids)
        return output

    recorded.recorder = True  # type: ignore[attr-defined]  # so that it is installed once
    return recorded


def _drafts_file(path: Path) -> Path:
    return path.with_suffix(".drafts")


def _fixed_drafts(path: str) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return int(_drafts_file(Path(path)).read_text(encoding="utf-8"))
    return None


@functools.cache
def _opened(path: str) -> TextIO:
    """The file, opened at the first step in the process that has a scheduler.

    Opening it in every step would be timed. Lines are written whole.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", buffering=1)
