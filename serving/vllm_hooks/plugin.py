"""Installs the hooks in Outrider's vLLM processes, including workers.

vLLM calls `register` in every process; `register` does nothing unless
OUTRIDER_HOOKS is 1 or OUTRIDER_ADMIN is set.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outrider.serving.admin.live_flags import ADMIN
from outrider.serving.hooked import HOOKS
from outrider.serving.vllm_version import vllm_version

if TYPE_CHECKING:
    import torch


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may run twice in a process.

    A hook that cannot be installed, for example in another vLLM release, is logged and skipped.
    """
    if os.environ.get(HOOKS) != "1" and ADMIN not in os.environ:
        return
    for install in (_admin_route, _correct_cpu_engine, _drafter_hooks):
        try:
            install()
        except Exception as error:
            logging.getLogger("outrider.vllm").warning(
                "outrider: %s is not installed in this process: %r; install the vLLM that %s names",
                getattr(install, "__name__", install),
                error,
                "outrider/serving/vllm_version.py",
            )


def _admin_route() -> None:
    """Adds the admin route if OUTRIDER_ADMIN holds its address.

    On its own, vLLM loads only those endpoint plugins that VLLM_PLUGINS names, but setting this
    variable turns off all plugins that it does not name.
    """
    from vllm import plugins

    load: Callable[..., list[Any]] = plugins.load_endpoint_plugins
    if ADMIN not in os.environ or load.__module__ == __name__:
        return

    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        from outrider.serving.vllm_hooks.admin_route import AdminRoute

        return [*load(*args, **kwargs), AdminRoute()]

    plugins.load_endpoint_plugins = load_endpoint_plugins


def _correct_cpu_engine() -> None:
    """Corrects the rejection sampler and `release` of vLLM 0.32 on a CPU.

    With speculation and a temperature above 0, it samples from the wrong distribution. vLLM's
    stand-in for the sampler's `expand_kernel` writes float outputs (temperature, top-p) into a
    temporary copy, so each draft position is scaled by uninitialized memory. Measured: 8.9 % of the
    sampled tokens have a probability below 1e-4 under the target; with `expand`, 0.15 % do, as
    without speculation (tests/serving/test_sampling.py).
    """
    if vllm_version() != "0.32.0+cpu":
        return
    from vllm import _custom_ops
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    # The CPU worker usually registers its kernels after the plugins have run. So replace the
    # implementation that it will register, and the kernel itself if it is already registered.
    # vLLM's makes int64 copies of its arguments (vllm/utils/cpu_triton_utils.py, lines 399 to 401),
    # so what it writes to a float output is lost.
    cpu_triton_utils._expand_kernel_impl = expand
    if getattr(rejection_sampler.expand_kernel, "func", None) is not expand:
        register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": expand})
    # vllm/_custom_ops.py, line 3726
    _custom_ops.CPUDNNLGEMMHandler.__del__ = release  # type: ignore[method-assign]


def _drafter_hooks() -> None:
    """Adapts vLLM's proposers to the kinds that need it."""
    from outrider.speculators.kinds import KINDS

    for kind in KINDS.values():
        kind.hook_engine()
    from outrider.serving.vllm_hooks.drafts_file import DRAFTS, fit_by_step

    if DRAFTS in os.environ:
        fit_by_step()


def release(handler: Any) -> None:
    """Frees oneDNN's copy of a weight matrix without a dispatched operator.

    vLLM's `__del__` calls `item`. If garbage is collected in a fake kernel while torch.compile
    traces, `item` has no implementation; its error formats the tensor, which calls `item` again
    until the process aborts. Loading an EAGLE head leaves such garbage: 3 of 10 starts aborted.
    """
    if handler.handler_tensor is not None:
        handler.dtor(ctypes.c_int64.from_address(handler.handler_tensor.data_ptr()).value)


def expand(  # noqa: PLR0917 (the signature of vLLM's kernel)
    output: "torch.Tensor",
    input_val: "torch.Tensor",
    cu_num_tokens: "torch.Tensor",
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """Repeats each request's value per draft token; replaces `replace_from` with `replace_to`."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    replacement = torch.as_tensor(replace_to, dtype=input_val.dtype)
    values = torch.where(input_val == replace_from, replacement, input_val)
    output.copy_(torch.repeat_interleave(values, counts))
