"""Flex attention over the prefix against the dense one, forward and backward.

On a GPU at R1's head widths in bf16, against the dense attention in float32. torch has no backward
of flex attention on a CPU: there its forward is compared, and the dense backward with float64.

Shapes: N anchors, P tokens, A heads, D dims of a query or key, V dims of a value.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.pipeline.gpu_check.check import CheckFailed, Figures

if TYPE_CHECKING:
    from torch import Tensor

LENGTHS = (1700, 300, 2000, 96)
"""Packed sequences; anchors are the last two thirds of each."""
LARGEST = {"bf16": 2e-2, "float32": 1e-4}
"""Largest relative difference (norms). bf16 rounds inputs and outputs to 2^-8."""


def on_gpu(folder: Path) -> Figures:
    """R1's widths, 16 of its heads."""
    import torch

    figures: Figures = {}
    case = _case(LENGTHS, heads=16, wide=192, value=128, device="cuda")
    exact = _run(case, "dense", torch.float32)
    for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16)):
        torch.cuda.reset_peak_memory_stats()
        began = time.monotonic()
        found = _run(case, "flex", dtype)
        torch.cuda.synchronize()
        figures[f"{name}_first_seconds"] = time.monotonic() - began
        began = time.monotonic()
        _run(case, "flex", dtype)
        torch.cuda.synchronize()
        figures[f"{name}_seconds"] = time.monotonic() - began
        figures[f"{name}_peak_bytes"] = torch.cuda.max_memory_allocated()
        figures |= _differences(found, exact, name, LARGEST[name])
    return figures


def on_cpu(folder: Path) -> Figures:
    """Flex forward against dense; dense backward in float32 against float64."""
    import torch

    case = _case((300, 40, 131), heads=2, wide=24, value=16, device="cpu")
    dense, exact = _run(case, "dense", torch.float32), _run(case, "dense", torch.float64)
    with torch.no_grad():
        flex = _run(case, "flex", torch.float32, backward=False)
    forward = {name: exact[name] for name in flex}
    return {
        **_differences(flex, forward, "flex", 1e-4),
        **_differences(dense, exact, "dense", 1e-4),
    }


def _case(
    lengths: tuple[int, ...], heads: int, wide: int, value: int, device: str
) -> dict[str, Any]:
    """Seeded inputs in float64, and where the anchors are."""
    import torch

    from outrider.speculators.layers.prefix_attention import Span

    places: list[int] = []
    spans, tokens = [], 0
    for length in lengths:
        mine = range(tokens + length // 3, tokens + length - 2)
        spans.append(Span(tokens, tokens + length, len(places), len(places) + len(mine)))
        places += mine
        tokens += length
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> "Tensor":
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


def _run(case: dict[str, Any], kind: str, dtype: Any, backward: bool = True) -> dict[str, "Tensor"]:
    """Output, log-sum-exp and gradients of a weighted sum of both."""
    from outrider.speculators.layers.prefix_attention import Attend, DensePrefix, FlexPrefix

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


def _differences(
    found: "dict[str, Tensor]", exact: "dict[str, Tensor]", prefix: str, largest: float
) -> Figures:
    figures = {}
    for name, values in found.items():
        expected = exact[name].double()
        difference = float((values.double() - expected).norm() / expected.norm())
        if not difference <= largest:
            raise CheckFailed(f"{prefix} {name}: differs by {difference:.2e}, allowed {largest:g}")
        figures[f"{prefix}_{name}_difference"] = difference
    return figures
