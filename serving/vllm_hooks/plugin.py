"""Installs the hooks in vLLM processes that Outrider starts or configures, workers included.

vLLM calls `register` in every process of the environment before anything else runs. Without one of
the two variables below it does nothing there.
"""

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from outrider.serving.admin.live_flags import ADMIN
from outrider.serving.hooked import BACKEND, HOOKS

logger = logging.getLogger("outrider.vllm")


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; vLLM may call it twice in a process.

    A hook that fails, such as with another release of vLLM, is logged and left out.
    """
    if os.environ.get(HOOKS) != "1" and ADMIN not in os.environ:
        return
    for install in (_step_recorder, register_weight_transfer, _admin_route, _on_cpu):
        try:
            install()
        except Exception as error:
            logger.warning(
                "outrider: %s is not installed in this process: %r; install the vLLM that %s names",
                getattr(install, "__name__", install),
                error,
                "outrider/serving/vllm_hooks/version.py",
            )


def register_weight_transfer() -> None:
    """Adds the weight transfer engine that exchanges speculators; workers import it if named."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    module = "outrider.serving.vllm_hooks.weight_transfer"
    with contextlib.suppress(ValueError):  # registered before
        WeightTransferEngineFactory.register_engine(BACKEND, module, "SafetensorsTransfer")


def _step_recorder() -> None:
    from outrider.serving.vllm_hooks import step_recorder

    if path := os.environ.get(step_recorder.RECORD):
        step_recorder.install(path)


def _admin_route() -> None:
    """Adds the admin route where OUTRIDER_ADMIN has its address.

    vLLM loads endpoint plugins only by VLLM_PLUGINS, which turns off all plugins that it does not
    name, also other people's.
    """
    from vllm import plugins

    load: Callable[..., list[Any]] = plugins.load_endpoint_plugins
    if ADMIN not in os.environ or load.__module__ == __name__:
        return

    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        from outrider.serving.vllm_hooks.admin_route import AdminRoute

        return [*load(*args, **kwargs), AdminRoute()]

    plugins.load_endpoint_plugins = load_endpoint_plugins


def _on_cpu() -> None:
    from outrider.serving.vllm_hooks import (
        cpu_rejection_sampler,
        cpu_vocabulary,
        model_inspection,
    )
    from outrider.serving.vllm_hooks.version import runs_on_cpu, vllm_version

    if vllm_version() == cpu_rejection_sampler.FAULTY_VERSION:
        cpu_rejection_sampler.install()
    if runs_on_cpu():
        model_inspection.install()
        cpu_vocabulary.install()
