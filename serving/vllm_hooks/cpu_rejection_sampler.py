"""Corrects the rejection sampler of vLLM 0.32 on a CPU.

With speculation and a temperature above 0 it samples from the wrong distribution. vLLM's stand-in
for the sampler's `expand_kernel` writes float outputs (temperature, top-p) into a temporary copy,
so each draft position is scaled by uninitialized memory. Measured: 8.9 % of the sampled tokens have
a probability below 1e-4 under the target; with `expand` 0.15 %, as without speculation. Tested in
tests/serving/test_sampling.py.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FAULTY_VERSION = "0.32.0+cpu"


def install() -> None:
    """Replaces vLLM's `expand_kernel`; may be called more than once in a process."""
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    # The CPU worker registers its own kernels after the plugins have run, so its name for the
    # kernel must point to `expand` too; and the registry, if it has registered already.
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
    """Repeats each request's value for each of its draft tokens, and replaces `replace_from`."""
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).long()
    replacement = torch.as_tensor(replace_to, dtype=input_val.dtype)
    values = torch.where(input_val == replace_from, replacement, input_val)
    output.copy_(torch.repeat_interleave(values, counts))
