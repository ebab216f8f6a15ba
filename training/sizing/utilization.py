"""How much of what the hardware could do a step did: model FLOPs utilization (MFU).

    flops = step_flops(arch, depth, lengths, anchors)             # counted from the shapes
    utilization(flops, seconds, torch.device("cuda"), "bf16", processes=8)     # share of the peak; None where it is not known

FLOPs are those of the matrix products, two for each multiply-add: forward once, backward twice where weights are trained; the
head, which is frozen, once forward for the target, and forward and backward for each draft. Nothing is counted for what is
computed again, nor for padding, which is not computed at all (PaLM, arXiv:2204.02311, appendix B).
"""

from collections.abc import Sequence

import torch

from outrider.speculators.layers.deepseek_layer import DeepseekArch

BF16_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "H800": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
}
"""Dense bf16 peaks from the vendor's data sheets, by a part of the device's name; the first that fits."""


def step_flops(
    arch: DeepseekArch, depth: int, lengths: Sequence[int], anchors: Sequence[int]
) -> float:
    """FLOPs of one step over sequences of these lengths with these numbers of anchors: depth 0 runs for every token (its keys are
    read), what follows its attention and all later depths for anchors alone."""
    tokens, chains = sum(lengths), sum(anchors)
    # Of an anchor's length / 2 keys on average, the scores (D) and the values (V).
    pairs = sum(
        count * (length - count / 2) for length, count in zip(lengths, anchors, strict=True)
    )
    layer = (
        tokens * _projections(arch)
        + (depth - 1) * chains * _projections(arch)
        + depth * chains * _after_attention(arch)
        + depth * pairs * arch.heads * (arch.nope_dim + arch.rope_dim + arch.value_dim)
    )
    head = arch.hidden * arch.vocab
    return 2.0 * (3 * layer + chains * head * (1 + 2 * depth))


def utilization(
    flops: float, seconds: float, device: torch.device, compute: str, processes: int
) -> float | None:
    """Share of the GPUs' bf16 peak; None on a CPU, for a GPU that is not in the table, and in float32."""
    if device.type != "cuda" or compute != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    peak = next((tflops for part, tflops in BF16_TFLOPS.items() if part in name), None)
    return None if peak is None else flops / seconds / (peak * 1e12 * processes)


def _projections(arch: DeepseekArch) -> int:
    """Multiply-adds for a token's input, queries, keys and values."""
    query = arch.heads * (arch.nope_dim + arch.rope_dim)
    queries = arch.hidden * query if arch.q_rank is None else arch.q_rank * (arch.hidden + query)
    latent = arch.hidden * (arch.kv_rank + arch.rope_dim)
    return (
        2 * arch.hidden**2
        + queries
        + latent
        + arch.kv_rank * arch.heads * (arch.nope_dim + arch.value_dim)
    )


def _after_attention(arch: DeepseekArch) -> int:
    """Multiply-adds for a token from the attended values on: output projection, router, the experts it is sent to, the shared."""
    output = arch.heads * arch.value_dim * arch.hidden
    if arch.layers < arch.dense_layers:
        return output + 3 * arch.hidden * arch.dense_intermediate
    experts = arch.experts_per_token + arch.shared_experts
    return (
        output + arch.hidden * arch.experts + 3 * arch.hidden * arch.expert_intermediate * experts
    )
