"""What vLLM's selectors accept of every shipped target, on GPUs without a GPU.

The selectors are those of vLLM's CUDA platform. The device's capability is stubbed, and so are
names that a CPU build of vLLM lacks and the selectors only import.
"""

import json
import subprocess
import sys

import pytest

from outrider.common.files import read_json
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.serving.attention import mixed_cache_refusal, mla_refusal

NANO_R1 = SHIPPED / "nano_r1" / "target" / "config.json"
R1 = SHIPPED / "r1" / "config.json"

AS_ON_GPUS = """
import json, sys, types
from pathlib import Path

for name in ("vllm._C_stable_libtorch", "vllm._C"):
    sys.modules[name] = types.ModuleType(name)
import vllm.platforms
import vllm.v1.attention.backends.fa_utils as kernels
import vllm.v1.worker.utils
from vllm.platforms import cuda
from vllm.platforms.interface import DeviceCapability

for name in ("compile_flash_attn_varlen_func_from_specs", "flash_attn_varlen_func"):
    if not hasattr(kernels, name):
        setattr(kernels, name, None)
from vllm.v1.attention.backends.mla.prefill import flash_attn

flash_attn.is_flash_attn_varlen_func_available = lambda: True
gpu = cuda.CudaPlatformBase
vllm.platforms.current_platform = gpu()
from outrider.serving.attention import mixed_cache_refusal, mla_refusal

found = {}
for capability in ((8, 0), (9, 0), (10, 0)):
    gpu.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*capability))
    for name, path in zip(("nano_r1", "r1"), sys.argv[1:]):
        config = json.loads(Path(path).read_text())
        answers = [mla_refusal(config)]
        if capability < (10, 0):  # Blackwell's selector asks torch for the device
            answers.append(mixed_cache_refusal(config, 128))
        found[f"{name} {capability[0]}.{capability[1]}"] = answers
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def on_gpus() -> dict[str, list[str | None]]:
    """By target and capability: why MLA is refused, why a head with full attention is."""
    command = [sys.executable, "-c", AS_ON_GPUS, str(NANO_R1), str(R1)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: dict[str, list[str | None]] = json.loads(finished.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0"])
def test_r1_runs_as_mla_and_nano_r1_does_not(
    on_gpus: dict[str, list[str | None]], capability: str
) -> None:
    assert on_gpus[f"r1 {capability}"][0] is None
    refusal = on_gpus[f"nano_r1 {capability}"][0]
    assert refusal is not None and "No valid MLA prefill backend" in refusal


@pytest.mark.parametrize("capability", ["8.0", "9.0"])
@pytest.mark.parametrize("target", ["nano_r1", "r1"])
def test_a_head_with_full_attention_joins_an_mla_target(
    on_gpus: dict[str, list[str | None]], target: str, capability: str
) -> None:
    assert on_gpus[f"{target} {capability}"][1] is None


def test_a_cpu_takes_every_width_and_no_mixture() -> None:
    config = read_json(NANO_R1)
    assert mla_refusal(config) is None
    assert "CPU_MLA: [16]; CPU_ATTN: [MultipleOf(32)]" in str(mixed_cache_refusal(config, 64))
