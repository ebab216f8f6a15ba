"""vLLM's own drafter for FP8 weights, built and loaded on a CPU that cannot run it.

Kernels for FP8 blocks need a GPU or AMX. vLLM's checks for them are replaced, and no kernel is
called.
"""

import os
from pathlib import Path

from safetensors.torch import save_file

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, engine_environment
from outrider.serving.vllm_hooks.swap_extension import required
from outrider.speculators.kinds import trainable_kind_of


def load_drafter(target: Path, speculator: Path, out: Path) -> None:
    """Writes the drafter's parameters after loading; run it in its own process."""
    # Latent attention as a GPU runs it, with its fused projection.
    os.environ.update(engine_environment(EngineConfig()) | {"VLLM_MLA_DISABLE": "0"})
    arguments = engine_arguments(
        TargetConfig(model=str(target)),
        EngineConfig(max_model_len=256),
        Drafting(Speculator.named(speculator), 2),
    )

    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsFp8
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    CPUFp8BlockScaledMMKernel.is_supported = classmethod(
        lambda cls, compute_capability=None: (True, None)
    )
    CPUExpertsFp8._supports_current_device = staticmethod(lambda: True)
    config = EngineArgs(**arguments, skip_tokenizer_init=True).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{out}.rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        with set_default_torch_dtype(torch.bfloat16):
            drafter = initialize_model(
                vllm_config=config,
                model_config=config.speculative_config.draft_model_config,
                prefix="",
            )
        kind = trainable_kind_of(speculator)
        loaded = drafter.load_weights(kind.swap_tensors(speculator))
    parameters = {
        name: parameter.detach() for name, parameter in drafter.named_parameters() if name in loaded
    }
    missing = sorted(required(drafter, kind) - loaded)
    save_file(
        {name: tensor.contiguous().clone() for name, tensor in parameters.items()},
        out,
        {"missing": " ".join(missing)},
    )
