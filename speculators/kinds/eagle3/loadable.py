"""Why vLLM 0.32 would not load a head, whatever its target: from config.json and headers. No torch.

    architecture_refusals(config)         # of EAGLE-3's method
    layer_refusals(directory, config)     # of any head with numbered layers

Each refusal is a phrase with its fix, to be joined behind the path of config.json. All of a head's
refusals are reported together, since an engine stops at the first, after minutes.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.speculators.checkpoints.layout import INDEX, SINGLE
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.kinds.eagle3.shape import LAYER, MASK_TOKENS, layer_config, mask_token

ARCHITECTURES = frozenset({
    "Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM", "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM", "Eagle3Qwen3ForCausalLM",
    "Eagle3Qwen3vlForCausalLM", "LlamaForCausalLMEagle3",
})  # fmt: skip
"""Heads of method eagle3 in vLLM's registry (vllm/model_executor/models/registry.py)."""

SAME_CLASS = {
    "PEagleDraftModel": "LlamaForCausalLMEagle3",
    "PeagleLlamaForCausalLM": "LlamaForCausalLMEagle3",
    "PeagleQwen3ForCausalLM": "Eagle3Qwen3ForCausalLM",
}
"""Other names of the registry for the same classes, which method eagle3 changes before it looks."""

_NUMBER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def architecture_refusals(config: Mapping[str, Any]) -> list[str]:
    """Refuses a class that vLLM's method eagle3 does not find.

    A name that neither begins nor ends with Eagle3 is first prefixed with it (vLLM's
    transformers_utils/configs/eagle.py). In the speculators format, vLLM sets the class.
    """
    names = config.get("architectures") or []
    if "speculators_model_type" in config or not names:
        return []
    sought = [name if _is_of_method(name) else f"Eagle3{name}" for name in names]
    if ARCHITECTURES.intersection(sought):
        return []
    refusal = f"architectures = {names}: vLLM 0.32 has no head {', '.join(sought)}"
    if same := [SAME_CLASS[name] for name in names if name in SAME_CLASS]:
        return [f"{refusal}; set architectures to {same}, the same class"]
    return [f"{refusal}; choose another base, or train a new head (speculator.base: none)"]


def _is_of_method(name: str) -> bool:
    return name.startswith("Eagle3") or name.endswith("Eagle3")


def layer_refusals(directory: Path, config: Mapping[str, Any]) -> list[str]:
    """Refuses weights of another number of layers than config.json's.

    vLLM builds `num_hidden_layers` layers (llama_eagle3.py, qwen3_dflash.py) and stops over weights
    that are missing or left over. Without weights here, nothing is refused.
    """
    if not any((directory / name).is_file() for name in (INDEX, SINGLE)):
        return []
    headers = tensor_headers(directory)
    stored = {number[1] for name in headers if (number := _NUMBER.search(name))}
    if any(name.removeprefix("model.").startswith(LAYER) for name in headers):
        stored.add("0")
    configured = layer_config(config).get("num_hidden_layers", 1)
    if not stored or len(stored) == configured:
        return []
    return [
        f"num_hidden_layers = {configured}, but the weights have {len(stored)}, and vLLM loads as"
        f" many as config.json has; set num_hidden_layers to {len(stored)}"
    ]


def mask_refusals(config: Mapping[str, Any]) -> list[str]:
    """Refuses a parallel drafter without a mask token (vLLM's llm_base_proposer.py)."""
    if mask_token(config) is not None:
        return []
    return [
        f"a P-EAGLE head without a mask token ({', '.join(MASK_TOKENS)}), which vLLM 0.32 needs to"
        f" draft in parallel; add the id that the head was trained with as {MASK_TOKENS[1]}"
    ]
