"""What Outrider adds to every vLLM process, its workers too: vLLM imports this by an entry point before anything runs.

vLLM 0.32 on a CPU samples wrongly under speculation when the temperature is above 0: its stand-in for the rejection
sampler's `expand_kernel` writes float outputs (temperature, top-p) into a temporary copy, so that each draft position
is scaled by uninitialised memory. Measured: 8.9 % of the sampled tokens below probability 1e-4 under the target, 0.15 %
with the function below, as without speculation. tests/serving/test_sampling.py would notice its return.
"""

import os
from typing import TYPE_CHECKING

from outrider.serving.engine import vllm_version
from outrider.serving.vllm_hooks import process_start
from outrider.serving.vllm_hooks.step_recorder import RECORD, install

if TYPE_CHECKING:
    import torch

FAULTY_VERSION = "0.32.0+cpu"


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; vLLM may call it more than once in a process."""
    if path := os.environ.get(RECORD):
        install(path)
    if os.environ.get(process_start.FORK) == "1":
        process_start.install()
    if vllm_version() != FAULTY_VERSION:
        return
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    # The CPU worker registers its stand-ins after the plugins have run, and would win over ours: so its own name for the
    # stand-in must mean ours, and, where it has registered already, the registry too.
    cpu_triton_utils._expand_kernel_impl = expand
    if getattr(rejection_sampler.expand_kernel, "func", None) is not expand:
        register_kernels({"vllm.v1.sample.rejection_sampler.expand_kernel": expand})


def expand(
    output: "torch.Tensor",
    input_val: "torch.Tensor",
    cu_num_tokens: "torch.Tensor",
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """output = each request's value repeated for each of its draft tokens, `replace_from` turned into `replace_to`."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    values = torch.where(
        input_val == replace_from, torch.as_tensor(replace_to, dtype=input_val.dtype), input_val
    )
    output.copy_(torch.repeat_interleave(values, counts))
