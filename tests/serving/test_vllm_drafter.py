"""vLLM's own drafter, without an engine: what it loads from FP8 blocks, and what it drafts.

vLLM's loader fills every parameter, with the weights that replay reads. Kernels for FP8 blocks need
a GPU or AMX: vLLM's checks for them are replaced, and no kernel is called. The drafts are compared
with the unroll at every depth.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.serving.config import EngineConfig
from outrider.speculators.checkpoints.fp8 import dequantize
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp, mtp_checkpoint_tensors
from tests.fp8_target import write_fp8_copy
from tests.serving.vllm_drafter import draft, forked, loaded_drafter
from tests.tiny import HIDDEN, LAYERS, VOCAB, save_drafter, tiny_glm, write_tiny_target
from tools.unrolled import unroll

DEPTH, TOKENS = 4, 14


@pytest.mark.slow
def test_vllm_s_glm_layer_drafts_what_the_unroll_drafts(tmp_path: Path) -> None:
    target = tmp_path / "target"
    directory = tmp_path / "speculator"
    write_tiny_target(target, config=tiny_glm())
    speculator = load_mtp(target)
    with torch.no_grad():
        for weight in speculator.parameters():
            weight.mul_(1.1)
    save_drafter(speculator, target, directory)
    speculator = load_mtp(directory)
    ends = load_target_ends(target)
    torch.manual_seed(0)
    token_T = torch.randint(VOCAB, (TOKENS,))
    hidden_TH = torch.randn(TOKENS, HIDDEN)
    out = tmp_path / "states"
    embedding_VH = ends.embedding_VH.float()
    forked(draft, target, directory, token_T.tolist(), embedding_VH, hidden_TH, DEPTH, out)
    with torch.no_grad():
        states = unroll(
            speculator,
            ends,
            token_ids_BT=token_T[None],
            inputs_BTX=hidden_TH[None],
            sequence_BT=torch.zeros(1, TOKENS, dtype=torch.long),
            position_BT=torch.arange(TOKENS)[None],
            depth=DEPTH,
        )
    found = load_file(out)
    assert len(found) == sum(TOKENS - 2 - s for s in range(DEPTH))
    for name, u_H in found.items():
        depth, anchor = map(int, name.split(".")[1:])
        torch.testing.assert_close(states[depth][0, anchor], u_H, atol=1e-4, rtol=1e-4)


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
    """Writes the drafter's parameters after loading; call it with `forked`."""
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsFp8

    CPUFp8BlockScaledMMKernel.is_supported = classmethod(
        lambda cls, compute_capability=None: (True, None)
    )
    CPUExpertsFp8._supports_current_device = staticmethod(lambda: True)
    # Latent attention as a GPU runs it, with its fused projection.
    engine = EngineConfig(max_model_len=256, environment={"VLLM_MLA_DISABLE": "0"})
    with loaded_drafter(target, speculator, engine, out) as (_, drafter, loaded):
        parameters = {
            name: parameter.clone()
            for name, parameter in drafter.named_parameters()
            if name in loaded
        }
    save_file(parameters, out)


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
    forked(load_drafter, target, tmp_path / "speculator", out)

    layer = f"model.layers.{LAYERS}."
    loaded = {
        name.removeprefix(layer).removeprefix("mtp_block."): tensor
        for name, tensor in load_file(out).items()
    }
    views = {
        name: view.detach()
        for name, view in mtp_checkpoint_tensors(
            load_mtp(tmp_path / "speculator").state_dict()
        ).items()
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
        own = loaded[f"{name}.weight"]
        scale = loaded[f"{name}.weight_scale_inv"]
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
