"""Refused targets: reason and next step for all of vLLM's registry, and the drafters they ship."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from vllm.config.speculative import SpeculativeConfig
from vllm.model_executor.models import registry

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.architectures import ARCHITECTURES, architecture_of
from outrider.speculators.checkpoints.refusals import (
    CLASSES,
    EXAMPLES,
    ONE_LAYER_UNLESS_SET,
    OWN_DRAFTERS,
    WITHOUT_STATES,
    own_drafter,
)

GENERATORS = sorted(
    (
        registry._TEXT_GENERATION_MODELS.keys()
        | registry._MULTIMODAL_MODELS.keys()
        | registry._TRANSFORMERS_SUPPORTED_MODELS.keys()
        | registry._PREVIOUSLY_SUPPORTED_MODELS.keys()
    )
    - ARCHITECTURES.keys()
)
NAMED_BY_VLLM = sorted(
    set(re.findall(r'"(\w+)"', inspect.getsource(SpeculativeConfig.hf_config_override)))
)
"""Model types, architectures and keys in vLLM's mapping of targets to their drafters."""


def message(config: dict[str, Any]) -> str:
    with pytest.raises(OutriderError) as refused:
        architecture_of(config, "config.json")
    return str(refused.value)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_model_of_vllm_is_refused_with_a_reason_and_a_next_step(name: str) -> None:
    text = message({"architectures": [name], "model_type": "another"})
    assert text.startswith(f"config.json: architectures = {name}: not a supported target: ")
    assert "supported target: " in text or "no target of this family" in text
    assert text.endswith("`outrider eval RECIPE --server URL` measures any vLLM endpoint")
    assert len(text) < 500 and "\n" not in text


@pytest.mark.parametrize(
    ("config", "reason", "nearest"),
    [
        ("GptOssForCausalLM", "have not been compared with vLLM's", None),
        ("MiniMaxM2ForCausalLM", "have not been compared with vLLM's", None),
        ("Phi3ForCausalLM", "have not been compared with vLLM's", None),
        ("Qwen2MoeForCausalLM", "have not been compared", "Qwen2ForCausalLM"),
        ("DeepseekV2ForCausalLM", "have not been compared", "DeepseekV3ForCausalLM"),
        ("Glm4MoeLiteForCausalLM", "have not been compared", "Glm4MoeForCausalLM"),
        ("Llama4ForCausalLM", "have not been compared", "LlamaForCausalLM"),
        ("LLaMAForCausalLM", "have not been compared", "LlamaForCausalLM"),
        ("LlavaForConditionalGeneration", "does not describe a text part", None),
        ("KimiLinearForCausalLM", "have not been compared", "DeepseekV3ForCausalLM"),
        ("MinistralForCausalLM", "have not been compared", None),
        ({"a": "Qwen3NextForCausalLM", "linear_num_key_heads": 16}, "recurrent state", "Qwen3"),
        ({"a": "Qwen3NextForCausalLM", "num_experts": 512}, "have not", "Qwen3MoeForCausalLM"),
        ({"a": "NemotronHForCausalLM", "hybrid_override_pattern": "M-M*"}, "recurrent", None),
        ({"a": "Lfm2ForCausalLM", "layer_types": ["conv", "full_attention"]}, "recurrent", None),
        ({"a": "DeepseekV32ForCausalLM", "index_topk": 2048}, "the indexer", "DeepseekV3"),
        ({"a": "GlmMoeDsaForCausalLM", "index_topk": 2048}, "the indexer", "Glm4MoeForCausalLM"),
        ({"a": "GPT2LMHeadModel", "layer_norm_epsilon": 1e-5}, "LayerNorm", None),
        ({"a": "Gemma2ForCausalLM", "final_logit_softcapping": 30.0}, "scaled", None),
        ({"a": "GraniteForCausalLM", "logits_scaling": 8.0}, r"scaled \(logits_scaling\)", None),
        ({"a": "WhisperForConditionalGeneration", "encoder_layers": 32}, "an encoder", None),
        ({"a": "LlamaForSequenceClassification"}, "generates none", "LlamaForCausalLM"),
    ],
)
def test_the_reason_follows_from_config_json(
    config: str | dict[str, Any], reason: str, nearest: str | None
) -> None:
    config = {"a": config} if isinstance(config, str) else dict(config)
    text = message({"architectures": [config.pop("a")], **config})
    assert re.search(reason, text)
    expected = "no target of this family" if nearest is None else f"supported target: {nearest}"
    assert expected in text


@pytest.mark.parametrize(
    ("config", "part", "nearest"),
    [
        # Published shapes: Kimi-K2.5, Mistral-Small-3.2, Qwen3.5, Gemma 3, Llama-4, Qwen3-Omni.
        (
            {
                "architectures": ["KimiK25ForConditionalGeneration"],
                "text_config": {"architectures": ["DeepseekV3ForCausalLM"]},
            },
            r"DeepseekV3ForCausalLM \(supported as a checkpoint by itself\)",
            "DeepseekV3ForCausalLM",
        ),
        (
            {
                "architectures": ["Mistral3ForConditionalGeneration"],
                "text_config": {"model_type": "mistral"},
            },
            r"MistralForCausalLM \(supported",
            "MistralForCausalLM",
        ),
        (
            {
                "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                "text_config": {"model_type": "qwen3_5_moe_text", "num_experts": 256},
            },
            "qwen3_5_moe_text;",
            "Qwen3MoeForCausalLM",
        ),
        (
            {
                "architectures": ["Gemma3ForConditionalGeneration"],
                "text_config": {"model_type": "gemma3_text"},
            },
            "gemma3_text;",
            None,
        ),
        (
            {
                "architectures": ["Llama4ForConditionalGeneration"],
                "text_config": {"model_type": "llama4_text", "num_local_experts": 16},
            },
            "llama4_text;",
            "LlamaForCausalLM",
        ),
        (
            {
                "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
                "thinker_config": {"text_config": {"model_type": "qwen3_omni_moe_text"}},
            },
            "qwen3_omni_moe_text;",
            "Qwen3",
        ),
        (
            {
                "architectures": ["InternVLChatModel"],
                "llm_config": {"architectures": ["Qwen3ForCausalLM"]},
            },
            r"Qwen3ForCausalLM \(supported",
            "Qwen3ForCausalLM",
        ),
    ],
)
def test_the_text_part_of_a_multimodal_target_is_named(
    config: dict[str, Any], part: str, nearest: str | None
) -> None:
    text = message(config)
    assert re.search(f"its text part is {part}", text)
    assert nearest is None or f"nearest supported target: {nearest}" in text


def drafter_of_vllm(config: dict[str, Any]) -> str | None:
    """Architecture of the drafter that vLLM reads from this target's checkpoint."""
    from transformers import PretrainedConfig

    given = PretrainedConfig(**config)
    given.model_type = config["model_type"]
    for name in ("text_config", "mtp_config"):
        if isinstance(config[name], dict):
            value = PretrainedConfig(**config[name]) if name == "text_config" else config[name]
            setattr(given, name, value)
    given.text_config.model_type = "nemotron_h"  # as in Nemotron's omni models
    given.text_config.architectures = ["Another"]
    given.layer_types = ["full_attention"]
    found = SpeculativeConfig.hf_config_override(given).architectures[0]
    return found if "MTP" in found else None


@pytest.mark.parametrize("name", NAMED_BY_VLLM)
def test_drafters_are_those_that_vllm_reads_from_the_target(name: str) -> None:
    """Each name of vLLM's mapping, as architecture or as `model_type`."""
    if name in registry._SPECULATIVE_DECODING_MODELS or name.endswith(("mtp", "_assistant")):
        return  # drafters, not targets
    config: dict[str, Any] = {"model_type": name, "architectures": ["Another"]}
    if name[0].isupper():
        config = {"model_type": "another", "architectures": [name]}
    text = {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 1, "num_attention_heads": 1}
    text |= {"hc_count": 1, "mtp_num_experts": 8, "mtp_num_experts_per_tok": 1}
    config |= text | {"num_mtp_modules": 1, "text_config": dict(text)}
    config["mtp_config"] = {"num_nextn_predict_layers": 1}
    expected = "mtp" if drafter_of_vllm(config) else "None"
    if name == "deepseek_v41":  # vLLM refuses method="mtp" for it
        expected = "dspark"
    assert expected in str(own_drafter(config))


def test_a_checkpoint_without_the_layer_ships_no_drafter() -> None:
    assert OWN_DRAFTERS >= ONE_LAYER_UNLESS_SET
    for name in OWN_DRAFTERS:
        config = {"model_type": name, "architectures": [name]}
        assert own_drafter({**config, "num_nextn_predict_layers": 0}) is None
        assert (own_drafter(config) is not None) == (name in ONE_LAYER_UNLESS_SET)
    text = message({"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1})
    assert """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'""" in text
    assert own_drafter({"model_type": "deepseek_v41"}) == '{"method": "dspark"}'


def test_layers_of_mtp_that_vllm_does_not_serve_are_named() -> None:
    config = {"architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2"}
    assert "no MTP for it, in spite of num_mtp_modules = 3" in message(
        {**config, "num_mtp_modules": 3}
    )
    assert "MTP" not in message(config)


@pytest.mark.parametrize("name", sorted(WITHOUT_STATES))
def test_an_architecture_without_states_has_no_eagle_3_in_vllm(name: str) -> None:
    models = registry._TEXT_GENERATION_MODELS | registry._MULTIMODAL_MODELS
    module, class_name = models[name]
    source = (Path(registry.__file__).parent / f"{module}.py").read_text()
    bases = re.search(rf"^class {class_name}\(([^)]*)\)", source, re.MULTILINE)
    assert bases is not None and "SupportsEagle3" not in bases[1]
    text = message({"architectures": [name], "model_type": "another"})
    assert "no EAGLE-3, P-EAGLE or DFlash for it" in text


def test_examples_are_the_supported_architectures() -> None:
    assert EXAMPLES.keys() == ARCHITECTURES.keys() == set(CLASSES.values())
