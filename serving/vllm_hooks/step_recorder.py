"""The engine's steps, timed inside a server that serves; where it is asked for, while every number of drafts takes its turn.

A server whose environment names a file (`StepFile`) writes a line of JSON there for every step. One that was started with a schedule of
drafts by batch size also asks for 1, 2, ... K drafts in turn, `RUN` steps each, so that every number meets the same requests, load and
moments of a shared machine. `serving/step_times.py` makes times of them.

The time is from one call of the scheduler to the next: the step itself, and what front end and clients take from the same cores meanwhile.
"""

import functools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from outrider.serving.config import ServingConfig

RECORD = "OUTRIDER_RECORD_STEPS"
"""Environment variable: the file."""

RUN = 8
"""Steps with the same number of drafts, one after the other."""


class Step(NamedTuple):
    """One step of the engine."""

    seconds: float
    """Until the next one began."""
    requests: int
    drafts: int
    """Asked for, of each request."""
    tokens: int
    """That the target computes: of a decoding request its last token and its drafts."""
    new: int
    """Requests whose prompt is computed in it."""
    prompt_tokens: int
    """Of those, in this step."""
    lasting: bool
    """Whether the next step was of the same requests: then the engine did not rest in between."""

    @property
    def settled(self) -> bool:
        """Whether it only decodes, and verifies as many drafts as it makes."""
        return not self.new and self.tokens == self.requests * (self.drafts + 1)


class StepFile:
    """Where a server writes its steps down, read as they come."""

    def __init__(self, path: Path) -> None:
        """The file is new: what an earlier server wrote there is removed."""
        self._path, self._offset = Path(path).resolve(), 0
        self._path.unlink(missing_ok=True)

    def recorded(self, serving: ServingConfig) -> ServingConfig:
        """The same settings of a server that writes its steps here."""
        return serving.with_engine(
            environment=serving.engine.environment | {RECORD: str(self._path)}
        )

    def new(self) -> list[Step]:
        """The steps since the last time, up to the last whole line. The newest step is written when the next one begins."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        self._offset += len(whole) + bool(whole)
        return [Step(*json.loads(line)) for line in whole.splitlines()]


def install(path: str) -> None:
    """Makes vLLM's scheduler record; for the process that has it, by `serving/vllm_hooks/plugin.py`."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if not hasattr(Scheduler.schedule, "recorder"):
        Scheduler.schedule = _recorded(Scheduler.schedule, path)


def _recorded(schedule: Callable[..., Any], path: str) -> Callable[..., Any]:
    begun: dict[str, Any] = {}
    count = 0

    def recorded(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal count, begun
        now, before = time.perf_counter(), begun
        drafts = scheduler.num_spec_tokens
        if scheduler.dynamic_sd_lookup is not None:
            drafts = 1 + (count // RUN) % scheduler.num_spec_tokens
            scheduler.dynamic_sd_lookup[:] = [drafts] * len(scheduler.dynamic_sd_lookup)
        output = schedule(scheduler, *args, **kwargs)
        ids = frozenset(output.num_scheduled_tokens)
        if before:
            step = Step(now - before["at"], **before["what"], lasting=ids == before["ids"])
            _opened(path).write(json.dumps(step) + "\n")
        new = output.scheduled_new_reqs
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

    recorded.recorder = True
    return recorded


@functools.cache
def _opened(path: str) -> TextIO:
    """Opened with the first step, in the process that has a scheduler, and not again in every step that is timed; each line is whole."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", buffering=1)
