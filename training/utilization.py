"""Model FLOPs utilization (MFU): the share of the hardware's peak that a step used.

flops = size.step_flops(depth, anchors)     # DrafterSize: by PaLM's rule
utilization(flops, seconds, torch.device("cuda"), "bf16", processes=8)     # None: peak unknown
"""

import torch

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
"""Dense bf16 peaks from the vendor's data sheets, by part of the device's name; first match."""


def utilization(
    flops: float, seconds: float, device: torch.device, compute: str, processes: int
) -> float | None:
    """Share of the GPUs' bf16 peak; None on a CPU, for unknown GPUs, and in float32."""
    if device.type != "cuda" or compute != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    peak = next((tflops for part, tflops in BF16_TFLOPS.items() if part in name), None)
    return None if peak is None else flops / seconds / (peak * 1e12 * processes)
