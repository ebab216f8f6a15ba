"""A speculator published in FP8 blocks, loaded by vLLM's own drafter.

vLLM's loader fills every parameter, with the weights that replay reads. Kernels for FP8 blocks need
a GPU or AMX: vLLM's checks for them are replaced, and no kernel is called.
"""

import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, engine_environment
from outrider.serving.vllm_hooks.swap_extension import required
from outrider.speculators.checkpoints.fp8 import dequantize
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.mtp.checkpoint import checkpoint_names, load_mtp
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, save_drafter, write_tiny_target

SIDES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "head_dim": 64,
    "v_head_dim": 64,
}
"""vLLM fuses gate with up and q_a with kv_a. The first of each must end at a block's edge."""


def load_drafter(target: Path, speculator: Path, out: Path) -> None:
    """Writes the drafter's parameters after loading; run it in its own process."""
    # Latent attention as a GPU runs it, with its fused projection.
    os.environ.update(engine_environment(EngineConfig()) | {"VLLM_MLA_DISABLE": "0"})
    arguments = engine_arguments(
        TargetConfig(model=str(target)),
        EngineConfig(max_model_len=256),
        Drafting(Speculator.named(speculator), 2),
    )

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


@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
def test_vllm_loads_what_replay_reads(tmp_path: Path, scale_fmt: str | None) -> None:
    source = write_tiny_target(tmp_path / "source", **SIDES)
    target = write_fp8_copy(source, tmp_path / "target", scale_fmt)
    speculator = load_mtp(target)
    with torch.no_grad():
        for parameter in speculator.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    save_drafter(speculator, target, tmp_path / "speculator")
    out = tmp_path / "loaded.safetensors"
    # In its own process, because it changes vLLM's classes and groups; forked, because vLLM takes
    # 8 s to import.
    loading = multiprocessing.get_context("fork").Process(
        target=load_drafter, args=(target, tmp_path / "speculator", out)
    )
    loading.start()
    loading.join()
    assert loading.exitcode == 0

    layer = f"model.layers.{LAYERS}."
    with safe_open(out, framework="pt") as file:
        assert file.metadata()["missing"] == "", "vLLM needs more than was published"
        loaded = {
            name.removeprefix(layer).removeprefix("mtp_block."): file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118 (safe_open has no __iter__)
        }
    views = {
        name: view.detach()
        for name, view in checkpoint_names(load_mtp(tmp_path / "speculator").state_dict()).items()
    }

    def joined(pattern: str, *parts: str) -> torch.Tensor:
        return torch.cat([views[pattern.format(part)] for part in parts])

    expected = {
        "self_attn.fused_qkv_a_proj": joined(
            "self_attn.{}.weight", "q_a_proj", "kv_a_proj_with_mqa"
        ),
        "mlp.shared_experts.gate_up_proj": joined(
            "mlp.shared_experts.{}_proj.weight", "gate", "up"
        ),
        "self_attn.q_b_proj": views["self_attn.q_b_proj.weight"],
        "self_attn.kv_b_proj": views["self_attn.kv_b_proj.weight"],
        "self_attn.o_proj": views["self_attn.o_proj.weight"],
        "mlp.shared_experts.down_proj": views["mlp.shared_experts.down_proj.weight"],
    }
    for name, value in expected.items():
        own, scale = loaded[f"{name}.weight"], loaded[f"{name}.weight_scale_inv"]
        assert torch.equal(dequantize(own, scale, (128, 128)), value), name
    for stack, parts in (("w13", ("gate", "up")), ("w2", ("down",))):
        name = f"mlp.experts.routed_experts.{stack}_weight"
        for e, (own, scale) in enumerate(
            zip(loaded[name], loaded[f"{name}_scale_inv"], strict=True)
        ):
            value = joined(f"mlp.experts.{e}.{{}}_proj.weight", *parts)
            assert torch.equal(dequantize(own, scale, (128, 128)), value), (e, stack)
    for name in (
        "eh_proj.weight",
        "enorm.weight",
        "mlp.gate.weight",
        "mlp.gate.e_score_correction_bias",
    ):
        assert torch.equal(loaded[name].float(), views[name]), name
