"""Installs the hooks in every vLLM process, workers included.

vLLM imports this through an entry point before anything else runs.
"""

import contextlib
import os

from outrider.serving.live.live_flags import BACKEND
from outrider.serving.vllm_hooks import (
    cpu_rejection_sampler,
    cpu_vocabulary,
    idle_polling,
    model_inspection,
    process_start,
    step_recorder,
)
from outrider.serving.vllm_hooks.version import runs_on_cpu, vllm_version


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; vLLM may call it twice in a process."""
    if path := os.environ.get(step_recorder.RECORD):
        step_recorder.install(path)
    if os.environ.get(process_start.FORK) == "1":
        process_start.install()
    register_weight_transfer()
    if runs_on_cpu():
        idle_polling.install()
        model_inspection.install()
        cpu_vocabulary.install()
    if vllm_version() == cpu_rejection_sampler.FAULTY_VERSION:
        cpu_rejection_sampler.install()


def register_weight_transfer() -> None:
    """Adds the weight transfer engine that exchanges speculators; workers import it if named."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    module = "outrider.serving.vllm_hooks.weight_transfer"
    with contextlib.suppress(ValueError):  # registered before
        WeightTransferEngineFactory.register_engine(BACKEND, module, "SafetensorsTransfer")
