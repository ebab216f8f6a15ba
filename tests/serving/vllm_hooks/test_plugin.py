"""The replacement of vLLM's faulty CPU kernel, against a literal loop."""

import pytest
import torch

from outrider.serving.vllm_hooks.cpu_rejection_sampler import expand
from outrider.serving.vllm_hooks.plugin import register
from outrider.serving.vllm_hooks.version import runs_on_cpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_each_request_s_value_is_repeated_for_each_of_its_drafts(dtype: torch.dtype) -> None:
    drafts = [3, 0, 1, 2]
    values = torch.tensor([2, 5, 0, 7]).to(dtype)
    expected = [
        1 if value == 0 else value
        for value, n in zip(values.tolist(), drafts, strict=True)
        for _ in range(n)
    ]
    output = torch.full((sum(drafts),), -1).to(dtype)
    expand(output, values, torch.tensor(drafts).cumsum(0).to(torch.int32), 0, 1)
    assert output.tolist() == expected


@pytest.mark.skipif(not runs_on_cpu(), reason="the fault is the CPU build's")
def test_the_worker_registers_its_kernels_after_the_plugins_and_still_gets_ours() -> None:
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.sample import rejection_sampler

    register()
    CpuPlatform.register_triton_kernel_overrides()
    assert rejection_sampler.expand_kernel.func is expand
