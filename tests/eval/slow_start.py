"""Planted fault: an engine that sleeps in every step, as a worker extension."""

import time
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner

SLEEP = 0.5
"""Share of the time of the target's pass."""
SLOW_START_EXTENSION = "tests.eval.slow_start.SlowStartExtension"


class SlowStartExtension:
    """Adds no methods."""


_execute = GPUModelRunner.execute_model


def _slow_execute(self: GPUModelRunner, *args: Any, **kwargs: Any) -> Any:
    began = time.monotonic()
    found = _execute(self, *args, **kwargs)
    time.sleep(SLEEP * (time.monotonic() - began))
    return found


GPUModelRunner.execute_model = _slow_execute
