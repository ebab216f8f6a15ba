"""Bytes of quantized targets against the tensors that each producer stores, and published sizes."""

from typing import Any

import pytest

from outrider.pipeline.plan.target_size import target_size
from outrider.pipeline.plan.weight_bits import ONLINE, READERS, UNQUANTIZED, WeightBits
from tests.distill_configs import DISTILLS
from tests.published_configs import PUBLISHED
from tests.r1_config import R1

ROWS, COLUMNS = 13824, 5120
"""Outputs and inputs of an MLP's up projection."""
WEIGHTS = ROWS * COLUMNS

# Bytes of the tensors that store the matrix, from the producers' own packing.
OF_4_BITS = WEIGHTS // 2  # int32 holds eight weights
SCALES_OF_128 = ROWS * (COLUMNS // 128) * 2  # bf16 or fp16
ZEROS_OF_128 = ROWS * (COLUMNS // 128) // 2  # packed like the weights
ROW_SCALES = ROWS * 2


def weights(**settings: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": settings}}}


STORED = {
    # AutoAWQ: qweight, scales, qzeros.
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128},
            OF_4_BITS + SCALES_OF_128 + ZEROS_OF_128),
    # GPTQModel: the same and g_idx, which vLLM drops without act-order.
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False},
             OF_4_BITS + SCALES_OF_128 + ZEROS_OF_128),
    "gptq-rows": ({"quant_method": "gptq", "bits": 4, "group_size": -1},
                  OF_4_BITS + ROW_SCALES + ROWS // 2),
    "gptq-8": ({"quant_method": "gptq", "bits": 8, "group_size": 128},
               WEIGHTS + SCALES_OF_128 + 2 * ZEROS_OF_128),
    "auto-round": ({"quant_method": "auto-round", "bits": 2, "group_size": 128},
                   WEIGHTS // 4 + SCALES_OF_128 + ZEROS_OF_128 // 2),
    # llm-compressor: weight_packed, weight_scale and, if asymmetric, weight_zero_point.
    "w4a16": ({"quant_method": "compressed-tensors", "format": "pack-quantized",
               **weights(num_bits=4, type="int", strategy="group", group_size=128,
                         symmetric=True)},
              OF_4_BITS + SCALES_OF_128),
    "w4a16-asym": ({"quant_method": "compressed-tensors", "format": "pack-quantized",
                    **weights(num_bits=4, strategy="group", group_size=128, symmetric=False)},
                   OF_4_BITS + SCALES_OF_128 + ZEROS_OF_128),
    "w8a8": ({"quant_method": "compressed-tensors", "format": "int-quantized",
              **weights(num_bits=8, type="int", strategy="channel")}, WEIGHTS + ROW_SCALES),
    "fp8-dynamic": ({"quant_method": "compressed-tensors", "format": "float-quantized",
                     **weights(num_bits=8, type="float", strategy="channel")},
                    WEIGHTS + ROW_SCALES),
    "ct-nvfp4": ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
                  **weights(num_bits=4, type="float", strategy="tensor_group", group_size=16)},
                 OF_4_BITS + WEIGHTS // 16),
    "ct-mxfp4": ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
                  **weights(num_bits=4, type="float", strategy="group", group_size=32)},
                 OF_4_BITS + WEIGHTS // 32),
    # DeepSeek: weight and weight_scale_inv, float32 for 128 x 128.
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": [128, 128]},
                   WEIGHTS + 4 * (ROWS // 128) * (COLUMNS // 128)),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, WEIGHTS),
    # Model-Optimizer: weight (two in a byte), weight_scale (e4m3).
    "nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
              OF_4_BITS + WEIGHTS // 16),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
                     WEIGHTS + 4 * (ROWS // 128) * (COLUMNS // 128)),
    "modelopt-awq": ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64},
                     OF_4_BITS + 2 * SCALES_OF_128),
    # bitsandbytes: weight (uint8) and absmax (float32) of 64, or double quantization.
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, OF_4_BITS + WEIGHTS // 64 * 4),
    "nf4-double": ({"quant_method": "bitsandbytes", "load_in_4bit": True,
                    "bnb_4bit_use_double_quant": True},
                   OF_4_BITS + WEIGHTS // 64 + WEIGHTS // (64 * 256) * 4),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, WEIGHTS + 4 * ROWS),
    "quark-mxfp4": ({"quant_method": "quark", "global_quant_config": {"weight": {
        "dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}}},
        OF_4_BITS + WEIGHTS // 32),
    "quark-fp8": ({"quant_method": "quark", "global_quant_config": {"weight": {
        "dtype": "fp8_e4m3", "qscheme": "per_channel"}}}, WEIGHTS + ROW_SCALES),
    "another": ({"quant_method": "unheard-of"}, 2 * WEIGHTS),
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_a_matrix_takes_the_bytes_of_its_stored_tensors(name: str) -> None:
    section, expected = STORED[name]
    bits = WeightBits.of({"quantization_config": section})
    stored = bits("model.layers.0.mlp.up_proj", COLUMNS) * WEIGHTS / 8
    assert stored == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("section", "quantized", "unquantized"),
    [
        (
            {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["self_attn", "mlp.gate"]},
            ["layers.0.mlp.up_proj"],
            ["layers.0.self_attn.q_proj", "lm_head"],
        ),
        ({"quant_method": "gptq", "bits": 4, "lm_head": True}, ["lm_head"], []),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"-:.*down_proj": {}}},
            ["layers.0.mlp.up_proj"],
            ["layers.0.mlp.down_proj"],
        ),
        (
            STORED["w4a16"][0] | {"ignore": ["lm_head", r"re:.*self_attn\.kv_.*"]},
            ["layers.0.self_attn.o_proj"],
            ["lm_head", "layers.0.self_attn.kv_b_proj"],
        ),
        (
            STORED["w4a16"][0] | {"ignore": ["layers.3.mlp.experts.0.gate_proj"]},
            ["layers.4.mlp.experts.gate_up_proj"],
            ["layers.3.mlp.experts.gate_up_proj"],
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": [r"re:.*experts.*"],
                        "weights": {"num_bits": 4, "group_size": 32},
                    }
                },
            },
            ["layers.3.mlp.experts.down_proj"],
            ["layers.3.self_attn.o_proj"],
        ),
        (
            STORED["nvfp4"][0] | {"ignore": ["lm_head", "layers.61*", "layers.*.self_attn*"]},
            ["layers.1.mlp.up_proj"],
            ["lm_head", "layers.61.mlp.up_proj", "layers.5.self_attn.o_proj"],
        ),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"layers.0.mlp.up_proj": {"quant_algo": "NVFP4"}},
            },
            ["layers.0.mlp.up_proj"],
            ["layers.1.mlp.up_proj"],
        ),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["layers.0.mlp.experts"]},
            ["layers.1.mlp.experts.down_proj"],
            ["layers.0.mlp.experts.down_proj", "layers.1.self_attn.o_proj"],
        ),
    ],
)
def test_modules_that_the_checkpoint_leaves_out_have_16_bits(
    section: dict[str, Any], quantized: list[str], unquantized: list[str]
) -> None:
    bits = WeightBits.of({"quantization_config": section})
    assert all(bits(name, COLUMNS) < UNQUANTIZED for name in quantized)
    assert all(bits(name, COLUMNS) == UNQUANTIZED for name in unquantized)


def test_r1_in_nvfp4_stores_the_published_number_of_values() -> None:
    """396.8e9 values in nvidia/DeepSeek-R1-NVFP4 (llmrun.dev/model/nvidia-deepseek-r1-nvfp4).

    A byte has two weights and a scale is a byte, so quantized weights count 9/16. Attention, head
    and the MTP layer (13.5e9, of which transformers builds nothing) are in bf16.
    """
    skipped = ["lm_head", "model.layers.61*", "model.layers.*.self_attn*"]
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    size = target_size(R1 | {"quantization_config": section | {"ignore": skipped}})
    plain = (size.weight_bytes - 9 / 16 * size.parameters) / (2 - 9 / 16)
    values = size.weight_bytes - plain + 13.5e9
    assert values == pytest.approx(396.8e9, rel=0.002)
    # Three GPUs of 192 GB hold it, whatever tensor parallelism is allowed; in bf16 it took 1.34 TB.
    assert size.weight_bytes == pytest.approx(396e9, rel=0.01)


def test_sizes_of_published_4_bit_targets() -> None:
    """What the files hold: bf16 embedding and head, 4.16 bits a weight for the rest."""
    qwen = target_size(PUBLISHED["Qwen3-32B-AWQ"][0]).weight_bytes
    assert qwen == pytest.approx(19.3e9, rel=0.005)
    # 2 x 128,256 x 8,192 values in bf16 and 68.5e9 weights of 4 + 16/128 + 4/128 bits.
    section = {"quant_method": "awq", "bits": 4, "group_size": 128}
    llama = DISTILLS["Llama-70B"][0] | {"quantization_config": section}
    assert target_size(llama).weight_bytes == pytest.approx(39.8e9, rel=0.005)
    # cognitivecomputations/DeepSeek-R1-AWQ: about 350 GB.
    assert target_size(PUBLISHED["R1-AWQ"][0]).weight_bytes == pytest.approx(350e9, rel=0.02)


def test_quantization_at_load_counts_for_unquantized_checkpoints() -> None:
    config = DISTILLS["Llama-8B"][0]
    plain = target_size(config).weight_bytes
    assert target_size(config, "fp8").weight_bytes == pytest.approx(plain * 0.565, rel=0.01)
    quantized = config | {"quantization_config": STORED["awq"][0]}
    assert target_size(quantized, "awq") == target_size(quantized)


def test_every_method_of_vllm_is_known() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    uncounted = {"humming", "torchao", "online", "fp_quant", "deepseek_v4_fp8"}
    others = {"modelopt_mxfp8", "modelopt_mixed"}  # as which vLLM serves quant_method modelopt
    assert set(QUANTIZATION_METHODS) - uncounted - others <= READERS.keys() | ONLINE.keys()
