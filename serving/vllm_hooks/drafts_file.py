"""Changes an engine's number of drafts while it is serving.

    file = DraftCountFile(logs / "drafts.json")
    with Server(target, file.engine_settings(engine), Drafting(speculator, 3,
    k_per_batch_size=rows), ...):
        file.draft(2)                   # from the next step on

With a schedule, vLLM's scheduler looks up the number of drafts by batch size in every step
(`dynamic_sd_lookup`). The drafter drafts that many tokens, and the next step verifies them. With 0
drafts it still runs once, to keep its KV cache complete. The hook writes the file's number into
the lookup table. `fit_by_step` makes the runner's check of the context limit follow it, too.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import write_json
from outrider.serving.config import EngineConfig

DRAFTS = "OUTRIDER_DRAFTS"
"""Environment variable that holds the file's path."""

SCHEDULER = f"{__name__}.following_scheduler"
"""Value of vLLM's `--scheduler-cls`."""

Drafts = int | Sequence[tuple[int, int, int]]
"""Drafts per step: one number, or rows of vLLM's schedule (first batch size, last, number)."""


class DraftCountFile:
    """The file that a server's scheduler follows."""

    def __init__(self, path: Path) -> None:
        """Removes a file left by an earlier server."""
        self._path = Path(path).resolve()
        self._path.unlink(missing_ok=True)

    def engine_settings(self, engine: EngineConfig) -> EngineConfig:
        """Returns the settings of a server that follows this file."""
        return engine.model_copy(
            update={
                "environment": engine.environment | {DRAFTS: str(self._path)},
                "extra_arguments": engine.extra_arguments | {"scheduler_cls": SCHEDULER},
            }
        )

    def draft(self, drafts: Drafts) -> None:
        """Sets the number of drafts from the next step on."""
        write_json(self._path, drafts)


def fit_by_step() -> None:
    """Makes vLLM's V1 runner ask whether a step's drafts fit into the context, not the largest K.

    While one request of a batch is within `num_speculative_tokens` of the limit, no request of the
    batch has drafts (`_input_fits_in_drafter`, vllm/v1/worker/gpu_model_runner.py, line 4288). A
    server that tries up to 24 drafts would have that 24 tokens before the limit, a server with
    the chosen number only that many: 6.7 % more steps on SmolLM2's responses with 4 of 24 drafts.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    sample = GPUModelRunner.sample_tokens
    fits = GPUModelRunner._input_fits_in_drafter
    if fits.__module__ == __name__:
        return

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.execute_model_state
        if state is not None:
            self.drafts_of_step = state.scheduler_output.num_spec_tokens_to_schedule
        return sample(self, *args, **kwargs)

    def fits_in_drafter(self: Any, metadata: Any) -> bool:
        largest = self.num_spec_tokens
        self.num_spec_tokens = self.drafts_of_step
        try:
            return fits(self, metadata)
        finally:
            self.num_spec_tokens = largest

    GPUModelRunner.sample_tokens = sample_tokens  # type: ignore[method-assign, assignment]
    GPUModelRunner._input_fits_in_drafter = fits_in_drafter  # type: ignore[method-assign, assignment]


def following_scheduler(vllm_config: Any, **arguments: Any) -> Any:
    """Returns vLLM's scheduler, changed to follow the file; for `--scheduler-cls`."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    kind = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    scheduler: Any = kind(vllm_config=vllm_config, **arguments)
    scheduler.schedule = functools.partial(
        follow_file(kind.schedule, os.environ[DRAFTS]), scheduler
    )
    return scheduler


def follow_file(schedule: Callable[..., Any], path: str) -> Callable[..., Any]:
    """Wraps `schedule` to first set the number of drafts from the file.

    Every step checks whether the file has changed, which takes 2 µs.
    """
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    file = Path(path)
    read: tuple[int, int] | None = None

    def scheduled(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal read
        # Entry n is the number of drafts for n scheduled requests. The scheduler reads the table in
        # each step (vllm/v1/core/sched/scheduler.py, line 1487); None without a schedule.
        lookup = scheduler.dynamic_sd_lookup
        if lookup is not None and file.exists():
            status = file.stat()
            if read != (version := (status.st_mtime_ns, status.st_ino)):
                drafts = json.loads(file.read_text(encoding="utf-8"))
                seats = len(lookup) - 1
                rows = [(1, seats, drafts)] if isinstance(drafts, int) else drafts
                lookup[:] = build_dynamic_sd_schedule_lookup(rows, seats, scheduler.num_spec_tokens)
                read = version
        return schedule(scheduler, *args, **kwargs)

    return scheduled
