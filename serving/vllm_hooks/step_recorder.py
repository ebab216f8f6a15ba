"""Times the steps of a serving engine, and changes its number of drafts while it serves.

A server whose environment names a file (`StepFile`) appends a line of JSON to it for every step. In
a server that was started with a schedule of drafts by batch size, the file's owner also chooses the
number of drafts: one number, a schedule, or several in turn, `RUN` steps each. So every number of
drafts meets the same engine, requests, load and machine noise. serving/step_times.py computes times
from the steps.

vLLM's scheduler looks the number of drafts up by batch size in every step (`dynamic_sd_lookup`);
the drafter then runs for so many drafts, and the next step verifies so many. With 0 drafts the
drafter still runs once, to keep its KV cache complete.

A step is timed from one call of the scheduler to the next. That includes what front end and clients
take from the same cores meanwhile.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from outrider.serving.config import ServingConfig

RECORD = "OUTRIDER_RECORD_STEPS"
"""Environment variable that holds the file's path."""

SCHEDULER = f"{__name__}.recording_scheduler"
"""Value of vLLM's `--scheduler-cls`."""

RUN = 8
"""Consecutive steps with the same number of drafts."""

Drafts = int | Sequence[tuple[int, int, int]]
"""Drafts per step: one number, or (first batch size, last, number) as in vLLM's schedule."""


class Step(NamedTuple):
    """One step of the engine."""

    seconds: float
    """Until the next step began."""
    requests: int
    drafts: int
    """Made in this step, per request."""
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
        engine = serving.engine
        return serving.with_engine(
            environment=engine.environment | {RECORD: str(self._path)},
            extra_arguments=engine.extra_arguments | {"scheduler_cls": SCHEDULER},
        )

    def draft(self, *turns: Drafts) -> None:
        """Makes so many drafts from the next step on; several numbers take turns.

        Without this a server rotates through 1, 2, ... K. Only for servers that were started with a
        schedule.
        """
        temporary = self._path.with_suffix(".changing")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(turns), encoding="utf-8")
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


def recording_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """vLLM's own scheduler, which appends its steps to the file; a value of `--scheduler-cls`."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    scheduler: Any = kind(vllm_config=vllm_config, **arguments)
    scheduler.schedule = functools.partial(_recorded(kind.schedule, os.environ[RECORD]), scheduler)
    return scheduler


def _recorded(schedule: Callable[..., Any], path: str) -> Callable[..., Any]:
    begun: dict[str, Any] = {}
    count = 0
    turns = _Turns(path)

    def recorded(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count, begun
        now, before, lookup = time.perf_counter(), begun, scheduler.dynamic_sd_lookup
        if lookup is not None:
            lookups = turns.lookups(len(lookup) - 1, scheduler.num_spec_tokens)
            lookup[:] = lookups[(count // RUN) % len(lookups)]
        output = schedule(scheduler, *args, **kwargs)
        ids = frozenset(output.num_scheduled_tokens)
        if before:
            step = Step(now - before["at"], **before["what"], lasting=ids == before["ids"])
            _opened(path).write(json.dumps(step) + "\n")
        new = output.scheduled_new_reqs
        what = {
            "requests": len(ids),
            "drafts": scheduler.num_spec_tokens if lookup is None else lookup[len(ids)],
            "tokens": output.total_num_scheduled_tokens,
            "new": len(new),
            "prompt_tokens": sum(output.num_scheduled_tokens[request.req_id] for request in new),
        }
        begun = {"at": now, "ids": ids, "what": what} if ids else {}
        count += bool(ids)
        return output

    return recorded


class _Turns:
    """The numbers of drafts that take turns, as the file's owner set them last."""

    def __init__(self, path: str) -> None:
        self._file = _drafts_file(Path(path))
        self._version: tuple[int, int] | None = None
        self._lookups: list[list[int]] = []

    def lookups(self, seats: int, most: int) -> list[list[int]]:
        """A lookup by batch size 0..seats for each turn.

        Whether the file has changed is checked in every step, for 2 µs.
        """
        try:
            found = self._file.stat()
        except FileNotFoundError:
            version, turns = (0, 0), None
        else:
            version, turns = (found.st_mtime_ns, found.st_ino), self._file
        if version != self._version:
            read = json.loads(turns.read_text(encoding="utf-8")) if turns else range(1, most + 1)
            self._lookups = [_lookup(drafts, seats, most) for drafts in read]
            self._version = version
        return self._lookups


def _lookup(drafts: Drafts, seats: int, most: int) -> list[int]:
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    rows = [(1, seats, drafts)] if isinstance(drafts, int) else list(drafts)
    lookup: list[int] = build_dynamic_sd_schedule_lookup(rows, seats, most)
    return lookup


def _drafts_file(path: Path) -> Path:
    return path.with_suffix(".drafts")


@functools.cache
def _opened(path: str) -> TextIO:
    """The file, opened at the first step in the process that has a scheduler.

    Opening it in every step would be timed. Lines are written whole.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", buffering=1)
