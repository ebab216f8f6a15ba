"""Which states of the target a head reads, in every spelling, in vLLM V1 and V2 and in SGLang.

The engines' rules are called (vLLM 0.32) or written down here (SGLang, `captured_by_sglang`).
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import get_eagle3_aux_layers_from_config
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.serving.speculator import served_directory
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.shape import (
    auxiliary_layers,
    completed_config,
    default_layers,
    plain_eagle_config,
)
from outrider.speculators.kinds.protocol import Origin
from tests.eagle3_head import write_eagle3_head
from tests.tiny_decoders import write_tiny_decoder

IDS = "eagle_aux_hidden_state_layer_ids"
EAGLE3 = Eagle3()
COUNT = 61
"""Layers of DeepSeek-R1."""


def target_of(architecture: str, count: int = COUNT) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "num_hidden_layers": count,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "vocab_size": 1000,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
    }


LLAMA = target_of("LlamaForCausalLM")
DEEPSEEK = target_of("DeepseekV3ForCausalLM")


def captured_by_vllm(config: dict[str, Any], count: int = COUNT) -> list[tuple[int, ...]]:
    """The layers of model runners V1 and V2."""
    speculative = SimpleNamespace(
        draft_model_config=SimpleNamespace(hf_config=SimpleNamespace(**config))
    )
    runner = SimpleNamespace(speculative_config=speculative)
    both = [
        GPUModelRunner._get_eagle3_aux_layers_from_config(runner),  # type: ignore[arg-type]
        get_eagle3_aux_layers_from_config(speculative),  # type: ignore[arg-type]
    ]
    return [tuple(sorted({*(layers or default_layers(count))})) for layers in both]


def captured_by_sglang(config: dict[str, Any], target: dict[str, Any]) -> tuple[int, ...]:
    """`set_eagle3_layers_to_capture` of llama.py and qwen3.py, and of deepseek_v2.py (#25454)."""
    ids = (config.get("eagle_config") or {}).get(IDS)
    if not ids:
        return default_layers(target["num_hidden_layers"])
    if target["architectures"] != ["DeepseekV3ForCausalLM"] or ids[0] == 1:
        ids = [index + 1 for index in ids]
    return tuple(sorted(ids))


def ascending(least: int, size: int) -> st.SearchStrategy[list[int]]:
    """`size` layers or more, from `least` to the number of layers."""
    return st.sets(st.integers(least, COUNT), min_size=size, max_size=5).map(sorted)


@given(layers=ascending(1, 2), target=st.sampled_from([LLAMA, DEEPSEEK]))
def test_all_engines_capture_the_layers_of_a_new_head(
    layers: list[int], target: dict[str, Any]
) -> None:
    config = plain_eagle_config(target, HeadConfig(layers=tuple(layers), layer_type="llama"), 64)
    assert auxiliary_layers(config, COUNT, "config.json") == tuple(layers)
    assert captured_by_vllm(config) == [tuple(layers)] * 2
    assert captured_by_sglang(config, target) == tuple(layers)
    assert config["num_aux_hidden_states"] == len(layers)


PUBLISHED = [
    # SpecForge: configs/deepseek-v3-671b-eagle3.json and configs/qwen3-235B-A22B-eagle3.json
    (DEEPSEEK, {"eagle_config": {IDS: [1, 29, 57], "use_aux_hidden_state": True}}, (2, 30, 58)),
    (
        target_of("Qwen3MoeForCausalLM", 94),
        {"eagle_config": {IDS: [1, 46, 90]}},
        (2, 47, 91),
    ),
    # Model-Optimizer: default_eagle_aux_layer_ids(32); without ids, default_config.py has []
    (target_of("LlamaForCausalLM", 32), {"eagle_config": {IDS: [1, 15, 28]}}, (2, 16, 29)),
    (target_of("LlamaForCausalLM", 32), {"eagle_config": {IDS: []}}, (2, 16, 29)),
    (target_of("LlamaForCausalLM", 32), {"eagle_config": {IDS: None}}, (2, 16, 29)),
    (target_of("LlamaForCausalLM", 32), {"eagle_config": None, IDS: None}, (2, 16, 29)),
    # vLLM's and speculators' key, also where the converter has copied SpecForge's ids to it
    (target_of("LlamaForCausalLM", 32), {IDS: [2, 16, 29]}, (2, 16, 29)),
    (target_of("Qwen3MoeForCausalLM", 94), {IDS: [1, 46, 90]}, (1, 46, 90)),
    # sglang#25454: 2 first means inputs; sglang#32334: 36 of 36 layers can only be an input
    (DEEPSEEK, {"eagle_config": {IDS: [2, 30, 58]}}, (2, 30, 58)),
    (target_of("LlamaForCausalLM", 36), {"eagle_config": {IDS: [24, 30, 36]}}, (24, 30, 36)),
    # Read by model runner V2 only
    (target_of("LlamaForCausalLM", 32), {"eagle_config": {"layer_ids": [3, 9]}}, (3, 9)),
]


@pytest.mark.parametrize(("target", "keys", "layers"), PUBLISHED)
def test_published_spellings_are_read_and_served_alike(
    target: dict[str, Any], keys: dict[str, Any], layers: tuple[int, ...]
) -> None:
    count = target["num_hidden_layers"]
    read = auxiliary_layers(keys, count, "config.json") or default_layers(count)
    assert read == layers
    served = completed_config(keys, target, "config.json")
    assert captured_by_vllm(served, count) == [layers] * 2
    assert captured_by_sglang(served, target) == layers
    if auxiliary_layers(keys, count, "") is not None and len(layers) != 3:
        assert served["num_aux_hidden_states"] == len(layers)
    assert completed_config(served, target, "config.json") == served


@given(ids=ascending(3, 2).filter(lambda ids: ids[-1] < COUNT))
def test_ids_that_can_mean_either_are_refused_with_both(ids: list[int]) -> None:
    with pytest.raises(OutriderError) as refusal:
        auxiliary_layers({"eagle_config": {IDS: ids}}, COUNT, "head/config.json")
    message = str(refusal.value)
    assert f"before layers {ids}" in message and "head/config.json" in message
    assert f"before layers {[index + 1 for index in ids]}" in message
    assert auxiliary_layers({"eagle_config": {IDS: ids}, IDS: ids}, COUNT, "") == tuple(ids)


def test_keys_that_disagree_are_refused_with_both() -> None:
    keys = {"eagle_config": {IDS: [1, 15, 28], "layer_ids": [1, 15, 28]}}
    with pytest.raises(OutriderError, match=r"\[2, 16, 29\].*layer_ids = \[1, 15, 28\]"):
        auxiliary_layers(keys, 32, "config.json")


@given(layers=ascending(1, 2), target=st.sampled_from([LLAMA, DEEPSEEK]), nested=st.booleans())
def test_a_base_with_vllms_key_is_exported_for_sglang_too(
    layers: list[int], target: dict[str, Any], nested: bool
) -> None:
    """Heads without nested ids, or with a copy of vLLM's, which SGLang counts otherwise."""
    keys: dict[str, Any] = {IDS: layers} | ({"eagle_config": {IDS: layers}} if nested else {})
    served = completed_config(keys, target, "config.json")
    assert captured_by_vllm(served) == [tuple(layers)] * 2
    assert captured_by_sglang(served, target) == tuple(layers)


def test_a_null_use_aux_hidden_state_is_served_as_true() -> None:
    """Model-Optimizer's template has null; vLLM would take it for false and leave fc out."""
    keys = {IDS: [2, 16, 29], "eagle_config": {IDS: [1, 15, 28], "use_aux_hidden_state": None}}
    served = completed_config(keys, target_of("LlamaForCausalLM", 32), "config.json")
    assert served["eagle_config"]["use_aux_hidden_state"] is True


@pytest.mark.parametrize("stated", [0, 3, 4])
def test_the_number_of_states_is_that_of_the_layers(stated: int) -> None:
    """vLLM builds fc for `num_aux_hidden_states` states (llama_eagle3.py)."""
    keys = {IDS: [2, 9, 16, 29], "num_aux_hidden_states": stated}
    served = completed_config(keys, target_of("LlamaForCausalLM", 32), "config.json")
    assert served["num_aux_hidden_states"] == 4
    keys = {"eagle_config": {IDS: []}, "num_aux_hidden_states": 0}
    served = completed_config(keys, target_of("LlamaForCausalLM", 32), "config.json")
    assert served["num_aux_hidden_states"] == 3


def test_a_base_is_trained_served_and_exported_with_the_same_layers(tmp_path: Path) -> None:
    """SpecForge's ids [1, 3, 4] of 8 layers: the residual streams before layers 2, 4 and 5."""
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target", num_hidden_layers=8)
    base = write_eagle3_head(target, tmp_path / "base", eagle_config={IDS: [1, 3, 4]})
    layers = (2, 4, 5)
    target_config = read_json(target / "config.json")
    assert EAGLE3.features(read_json(base / "config.json"), target_config).names == tuple(
        f"layer_{index}" for index in layers
    )
    served = served_directory(base, target, tmp_path / "cache")
    assert served == served_directory(base, target, tmp_path / "cache") != base
    assert (served / "model.safetensors").samefile(base / "model.safetensors")
    origin = Origin(target, base)
    head = EAGLE3.start(origin, torch.float32, "cpu", 0)
    EAGLE3.write(EAGLE3.trained_tensors(head, head.state_dict()), origin, tmp_path / "custom")
    for directory in (served, tmp_path / "custom"):
        config = read_json(directory / "config.json")
        assert captured_by_vllm(config, 8) == [layers] * 2
        assert captured_by_sglang(config, target_config) == layers
        EAGLE3.check(directory, _layout(target))
        assert served_directory(directory, target, tmp_path / "cache") == directory
    assert EAGLE3.swappable(served, tmp_path / "custom")
    # Read as written, V1 would take layers 1, 3 and 4, and V2 its default.
    assert not EAGLE3.swappable(base, tmp_path / "custom")
    assert captured_by_vllm(read_json(base / "config.json"), 8) == [(1, 3, 4), (2, 4, 5)]


def test_a_base_that_can_mean_either_is_refused_before_training(tmp_path: Path) -> None:
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target", num_hidden_layers=8)
    base = write_eagle3_head(target, tmp_path / "base", eagle_config={IDS: [3, 4, 5]})
    for refused in (
        lambda: EAGLE3.check(base, _layout(target)),
        lambda: EAGLE3.check_target(target, base, config_only=True),
    ):
        with pytest.raises(OutriderError, match=r"layers \[4, 5, 6\].*V1 reads.*\[3, 4, 5\]"):
            refused()
    # The message's own fix.
    config = read_json(base / "config.json") | {IDS: [4, 5, 6]}
    (base / "config.json").write_text(json.dumps(config))
    EAGLE3.check(base, _layout(target))
    EAGLE3.check_target(target, base, config_only=False)


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"eagle_config": {IDS: [1, 4, 9]}}, r"\[1, 4, 9\], but the target has 8 layers"),
        ({"target_hidden_size": 128, "hidden_size": 64}, "hidden_size is 64, but the target's is"),
        ({"model_type": "kimi_k2"}, r"model_type = kimi_k2, .* set model_type to \"llama\""),
    ],
)
def test_a_base_for_another_target_is_refused_by_its_config_json(
    keys: dict[str, Any], refused: str, tmp_path: Path
) -> None:
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target", num_hidden_layers=8)
    base = write_eagle3_head(target, tmp_path / "base")
    config = read_json(base / "config.json")
    (base / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if name != IDS} | keys)
    )
    with pytest.raises(OutriderError, match=refused):
        EAGLE3.check_target(target, base, config_only=True)


def _layout(target: Path) -> Any:
    from outrider.speculators.checkpoints.layout import read_layout

    return read_layout(target)
