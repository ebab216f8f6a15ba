"""Rotary embedding parameters from config.json, in a uniform format. Torch-free.

    rope = rope_of(config)
    rope["rope_theta"], rope["rope_type"]        # 10000.0, "default"
    head_rope(config, theta=10000.0)             # as vLLM's get_rope gets them for a head

config.json has them at the top level and in `rope_scaling`, or all in `rope_parameters`.
transformers' `standardize_rope_params` does the same, but to an instance of the model type's config
class; heads in the speculators layout and torch-free checks have only a mapping.
"""

from collections.abc import Mapping
from typing import Any

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
"""Rotary embeddings of Llama's attention that rotary.py computes, and the keys they need."""


def rope_of(config: Mapping[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """All rotary parameters; `theta` is the default for `rope_theta`."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or parameters
    settings = {key: value for key, value in (parameters | scaling).items() if value is not None}
    return settings | {
        "rope_theta": float(settings.get("rope_theta") or config.get("rope_theta") or theta),
        "rope_type": scaling.get("rope_type", scaling.get("type", "default")),
    }


def head_rope(config: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """A head's rotary parameters, completed as transformers 5 completes them for vLLM.

    `partial_rotary_factor` may be at the top level, as may `original_max_position_embeddings`,
    which otherwise is `max_position_embeddings` (modeling_rope_utils.py, standardize_rope_params).
    """
    rope = rope_of(config, theta)
    if config.get("partial_rotary_factor") is not None:
        rope.setdefault("partial_rotary_factor", config["partial_rotary_factor"])
    if rope["rope_type"] in ("llama3", "yarn"):
        positions = config.get("original_max_position_embeddings")
        if positions is not None:
            rope["original_max_position_embeddings"] = positions
        else:
            rope.setdefault(
                "original_max_position_embeddings", config.get("max_position_embeddings")
            )
    return rope


def refused_rope(rope: Mapping[str, Any]) -> str | None:
    """What of a head's rotary parameters rotary.py does not compute; None if it computes all."""
    for key in ("mrope_section", "use_fope", "rope_dim", "alpha", "full_attention"):
        if rope.get(key):
            return f"{key} = {rope[key]} of the rotary embedding"
    rope_type = rope["rope_type"]
    if rope_type not in NEEDED:
        return f"rope_type = {rope_type}"
    missing = [key for key in NEEDED[rope_type] if rope.get(key) is None]
    if missing:
        return f"rope_type = {rope_type} without {' and '.join(missing)}"
    return None
