"""Flex attention over the prefix against the dense one in float32, forward and backward.

Shapes: N anchors, P tokens, A heads, D dims of a query or key, V dims of a value.
"""

import time

import pytest
import torch
from torch import Tensor

from outrider.speculators.layers.prefix_attention import Attend, DensePrefix, FlexPrefix
from tests.speculators.layers.test_prefix_attention import (
    WORKLOADS,
    row,
    rows_of_traffic,
)

HEADS = 16


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)],  # bf16 rounds inputs and outputs to 2^-8
    ids=["bf16", "float32"],
)
@pytest.mark.parametrize(("d", "v"), [(192, 128), (128, 128), (64, 64)])  # 192 and 128: R1
def test_flex_at_the_targets_head_widths(gpu, dtype, largest, d, v, record_property):
    """Twins: test_prefix_attention.py::test_flex_is_the_dense_attention, test_all_kernels_fit."""
    place_N, spans, tokens = row((1700, 300, 2000, 96), every=1)
    generator = torch.Generator().manual_seed(0)
    shapes = [(len(place_N), d), (tokens, d), (tokens, v), (len(place_N), v), (len(place_N), 1)]
    drawn = [torch.randn(HEADS, *shape, generator=generator).cuda() for shape in shapes]
    place_N = place_N.cuda()
    exact = run(DensePrefix(place_N, spans), drawn, torch.float32)
    torch.cuda.reset_peak_memory_stats()
    for name in ("first_seconds", "seconds"):
        began = time.monotonic()
        found = run(FlexPrefix(place_N, spans, tokens), drawn, dtype)
        torch.cuda.synchronize()
        record_property(name, time.monotonic() - began)
    record_property("peak_bytes", torch.cuda.max_memory_allocated())
    for name, values in found.items():
        expected = exact[name].double()
        difference = float((values.double() - expected).norm() / expected.norm())
        record_property(name, difference)
        assert difference <= largest, name


@pytest.mark.gpu
def test_sixty_shapes_of_rows_in_one_process(gpu, record_property):
    """Twin: test_prefix_attention.py::test_rows_of_shipped_traffic_are_compiled."""
    rows = [
        row_
        for workload in WORKLOADS
        for tokens, count in ((2048, 10), (300, 5))
        for row_ in rows_of_traffic(workload, count, tokens)
    ]
    assert len(rows) == 60
    torch._dynamo.utils.counters.clear()
    for dtype in (torch.float32, torch.bfloat16):
        for place_N, spans, tokens in rows:
            shapes = [(len(place_N), 64), (tokens, 64), (tokens, 64), (len(place_N), 64)]
            shapes.append((len(place_N), 1))
            drawn = [torch.randn(2, *shape, device="cuda") for shape in shapes]
            found = run(FlexPrefix(place_N.cuda(), spans, tokens), drawn, dtype)
            assert all(values.isfinite().all() for values in found.values())
    record_property("graphs", torch._dynamo.utils.counters["stats"]["unique_graphs"])


def run(attend: Attend, drawn: list[Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of a weighted sum of both.

    `drawn` are query, key and value, and the weights of outputs and log-sum-exps.
    """
    inputs = [each.to(dtype).requires_grad_() for each in drawn[:3]]
    out_ANV, lse_AN = attend(*inputs, drawn[0].shape[-1] ** -0.5)
    weight_ANV, weight_AN1 = drawn[3:]
    loss = (out_ANV.double() * weight_ANV).sum() + (lse_AN.double() * weight_AN1[..., 0]).sum()
    loss.backward()
    gradients = zip(("gradient_q", "gradient_key", "gradient_value"), inputs, strict=True)
    return {"out": out_ANV.detach(), "lse": lse_AN.detach()} | {n: x.grad for n, x in gradients}
