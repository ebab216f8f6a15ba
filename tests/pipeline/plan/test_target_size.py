"""Sizes of R1's distilled models against their published numbers, and the recipes for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.pipeline.plan.target_size import target_size
from outrider.pipeline.plan.training_cost import price
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.serving.config import EngineConfig
from tests.distill_configs import DISTILLS
from tests.r1_config import R1


@pytest.mark.parametrize("name", DISTILLS)
def test_parameters_and_cache_are_the_published_ones(name: str) -> None:
    config, parameters, kv_bytes = DISTILLS[name]
    found = target_size(config)
    assert found.parameters == found.used == pytest.approx(parameters, rel=0.002)
    assert found.weight_bytes == 2 * found.parameters
    assert found.kv_bytes_per_token == kv_bytes


def test_r1_uses_37_of_671_billion_parameters_in_fp8_and_a_latent_cache() -> None:
    found = target_size(R1)
    assert found.parameters == pytest.approx(671e9, rel=0.001)
    assert found.used == pytest.approx(37e9, rel=0.02)
    assert found.weight_bytes == pytest.approx(673e9, rel=0.01)
    assert found.kv_bytes_per_token == 2 * 61 * (512 + 64)
    assert found.smallest_tensor_parallel(EngineConfig(), 150 * 10**9) == 8


FP8 = {"dynamic": False, "num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("section", "share"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 1 / 2),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": FP8}, 1 / 2),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"},
            9 / 32,
        ),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, 1),
        (
            {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": FP8},
            1 / 2,
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": None}, 1),
    ],
)
def test_the_cache_has_the_type_that_the_checkpoint_names_unless_the_command_does(
    section: dict[str, Any], share: float
) -> None:
    config, _, kv_bytes = DISTILLS["Llama-8B"]
    size = target_size(config | {"quantization_config": section})
    assert size.kv_bytes_per_token == share * kv_bytes
    plain = target_size(config)
    for named, factor in (("auto", share), ("fp8", 1 / 2), ("fp8_e5m2", 1 / 2), ("bfloat16", 1)):
        engine = EngineConfig(kv_cache_gb=1, extra_arguments={"kv_cache_dtype": named})
        tokens = size.cache_tokens(engine, 80 * 10**9)
        assert tokens == int(2**30 / (kv_bytes * factor))
        assert plain.engine_bytes(engine, 1) - 2e9 - plain.weight_bytes == pytest.approx(
            engine.max_model_len * kv_bytes * (1 if named == "auto" else factor)
        )


@pytest.mark.parametrize(
    ("name", "gpu_gb", "ranks"),
    [
        ("Llama-8B", 24, 1),
        ("0528-Qwen3-8B", 24, 1),
        ("Qwen-32B", 80, 1),
        ("Qwen-32B", 24, 4),
        ("Llama-70B", 80, 4),
    ],
)
def test_a_dry_run_prices_a_distill_and_names_its_gpus(
    name: str, gpu_gb: int, ranks: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DISTILLS[name][0]))
    words = (f"target.model={tmp_path}", "traffic.path=nano_r1/social_chat")
    recipe = load_recipe("r1_distill/template", words).recipe
    found = price(RunDirectory(tmp_path / "run"), recipe, gpu_gb * 10**9)
    assert found["target"]["smallest_tensor_parallel"] == ranks
    # A head of an 8B fits 24 GB; a 70B's needs a GPU of 80 GB.
    assert found["memory"][0]["fits"] == (gpu_gb == 80 or "8B" in name)
