"""What vLLM's selectors accept of every shipped target, on GPUs without a GPU.

The selectors are those of vLLM's CUDA platform. The device's capability is stubbed, and so are
names that a CPU build of vLLM lacks and the selectors only import.
"""

import json
import subprocess
import sys

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

found = {}  # why MLA is refused, and why a head with full attention is
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


def test_on_gpus_r1_runs_as_mla_and_nano_r1_does_not_and_heads_join_both() -> None:
    command = [sys.executable, "-c", AS_ON_GPUS, str(NANO_R1), str(R1)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr[-2000:]
    found: dict[str, list[str | None]] = json.loads(finished.stdout.splitlines()[-1])
    assert len(found) == 6
    for name, (mla, *heads) in found.items():
        if name.startswith("r1"):
            assert mla is None, name
        else:
            assert mla is not None and "No valid MLA prefill backend" in mla, name
        assert heads == ([] if name.endswith("10.0") else [None]), name


def test_a_cpu_takes_every_width_and_no_mixture() -> None:
    config = read_json(NANO_R1)
    assert mla_refusal(config) is None
    assert "CPU_MLA: [16]; CPU_ATTN: [MultipleOf(32)]" in str(mixed_cache_refusal(config, 64))
