"""The checks in order of risk. Each module has `on_gpu(folder)` and its twin `on_cpu(folder)`.

Both return figures by name and raise a `CheckFailed` (or any other error) where the check fails.
"""

from outrider.pipeline.gpu_check.check import Check

_HERE = "outrider.pipeline.gpu_check.checks"

CHECKS = (
    Check(
        "capture", "captured states give the engine's log-probabilities", f"{_HERE}.capture", 240
    ),
    Check("parity", "engine and trainer draft the same tokens", f"{_HERE}.parity", 240),
    Check(
        "attention", "flex attention is the dense one, with gradients", f"{_HERE}.attention", 120
    ),
    Check("swaps", "compiled engine: drafters are exchanged in place", f"{_HERE}.swaps", 300),
    Check("fp8", "FP8 blocks at multiples of 128", f"{_HERE}.fp8_blocks", 240),
    Check("synthetic", "speed at a synthetic acceptance is predicted", f"{_HERE}.synthetic", 300),
    Check("training", "training tokens/s and MFU", f"{_HERE}.training_speed", 300),
)
"""Their limits add up to 30 minutes."""
