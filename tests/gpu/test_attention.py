"""Flex attention over the prefix against the dense one, forward and backward.

On a GPU at R1's head widths in bf16, against the dense attention in float32. torch has no backward
of flex attention on a CPU: there its forward is compared, and the dense backward with float64.

Shapes: N anchors, P tokens, A heads, D dims of a query or key, V dims of a value.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.speculators.layers.prefix_attention import Attend, DensePrefix, FlexPrefix, Span

LENGTHS = (1700, 300, 2000, 96)
"""Packed sequences; anchors are the last two thirds of each."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "largest"),
    [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)],  # bf16 rounds inputs and outputs to 2^-8
    ids=["bf16", "float32"],
)
def test_flex_at_r1_s_head_widths(
    gpu: None,
    dtype: torch.dtype,
    largest: float,
    record_property: Callable[[str, object], None],
) -> None:
    case = drawn_case(LENGTHS, heads=16, wide=192, value=128, device="cuda")
    exact = run(case, "dense", torch.float32)
    torch.cuda.reset_peak_memory_stats()
    for name in ("first_seconds", "seconds"):
        began = time.monotonic()
        found = run(case, "flex", dtype)
        torch.cuda.synchronize()
        record_property(name, time.monotonic() - began)
    record_property("peak_bytes", torch.cuda.max_memory_allocated())
    for name, difference in differences(found, exact).items():
        record_property(name, difference)
        assert difference <= largest, name


def test_flex_and_dense_on_a_cpu() -> None:
    case = drawn_case((300, 40, 131), heads=2, wide=24, value=16, device="cpu")
    dense, exact = run(case, "dense", torch.float32), run(case, "dense", torch.float64)
    with torch.no_grad():
        flex = run(case, "flex", torch.float32, backward=False)
    assert max(differences(dense, exact).values()) <= 1e-4
    assert max(differences(flex, {name: exact[name] for name in flex}).values()) <= 1e-4


def drawn_case(
    lengths: tuple[int, ...], heads: int, wide: int, value: int, device: str
) -> dict[str, Any]:
    """Seeded inputs in float64, and where the anchors are."""
    places: list[int] = []
    spans, tokens = [], 0
    for length in lengths:
        mine = range(tokens + length // 3, tokens + length - 2)
        spans.append(Span(tokens, tokens + length, len(places), len(places) + len(mine)))
        places += mine
        tokens += length
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)

    return {
        "place_N": torch.tensor(places, device=device),
        "spans": spans,
        "tokens": tokens,
        "inputs": (
            drawn(heads, len(places), wide),
            drawn(heads, tokens, wide),
            drawn(heads, tokens, value),
        ),
        "weights": (drawn(heads, len(places), value), drawn(heads, len(places))),
        "scale": wide**-0.5,
    }


def run(
    case: dict[str, Any], kind: str, dtype: torch.dtype, backward: bool = True
) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of a weighted sum of both."""
    place_N, spans = case["place_N"], case["spans"]
    attend: Attend = (
        DensePrefix(place_N, spans)
        if kind == "dense"
        else FlexPrefix(place_N, spans, case["tokens"])
    )
    inputs = [each.to(dtype).requires_grad_(backward) for each in case["inputs"]]
    query, key, value = inputs
    out_ANV, lse_AN = attend(query, key, value, case["scale"])
    found = {"out": out_ANV.detach(), "lse": lse_AN.detach()}
    if backward:
        weight_ANV, weight_AN = case["weights"]
        loss = (out_ANV.double() * weight_ANV).sum() + (lse_AN.double() * weight_AN).sum()
        loss.backward()
        names = ("gradient_q", "gradient_key", "gradient_value")
        found |= {name: each.grad for name, each in zip(names, inputs, strict=True)}
    return found


def differences(found: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """Relative differences of norms."""
    return {
        name: float((values.double() - exact[name].double()).norm() / exact[name].double().norm())
        for name, values in found.items()
    }
