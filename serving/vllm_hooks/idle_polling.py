"""On a CPU, vLLM's processes poll for 50 ms after their last work instead of 1 s.

They poll queues in shared memory and yield the core in between. Where each session has its share of
the cores (Linux's sched_autogroup), a process yields to those of its own session only. Next to
another server or to the load generator, a process that polls takes half of a core. After the
polling it waits for a notification, as vLLM's does after 1 s.
"""

import time
from typing import TYPE_CHECKING

from outrider.serving.vllm_hooks.version import runs_on_cpu

if TYPE_CHECKING:
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

POLLING_S = 0.05
"""Longer than from one step to the next: a request that is being answered waits for no
notification."""
VLLM_POLLING_S = 1.0


def settle_s() -> float:
    """Time after which the processes of an engine that answers nothing leave the cores alone."""
    return 2 * POLLING_S if runs_on_cpu() else 1.2 * VLLM_POLLING_S


def record_read(self: "SpinCondition") -> None:
    """In place of vLLM's, which notes when a message was read.

    The first messages are polled for as long as by vLLM: a notification before both sides are
    connected is lost, which costs 5 s.
    """
    now = time.monotonic()
    first_read = vars(self).setdefault("first_read", now)
    connected = now > first_read + self.busy_loop_s
    self.last_read = now - self.busy_loop_s + POLLING_S if connected else now


def install() -> None:
    """Changes queues in this process from now on; may be called more than once."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    SpinCondition.record_read = record_read  # type: ignore[method-assign]
