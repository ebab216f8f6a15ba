"""Reads and writes the config.json of DSpark heads. No torch.

    shape = read_dspark_shape(config, target_config, path)          # either published layout
    plain_dspark_config(target_config, HeadConfig(), drafts=256)    # for a new head

The plain layout, that of DeepSeek's heads, is a Qwen3 configuration with all keys at the top level,
including DFlash's block keys. Missing keys take the defaults of vLLM 0.32 (qwen3_dspark.py,
dspark/speculator.py, configs/speculators/algos.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.dflash import shape as dflash
from outrider.speculators.kinds.eagle3.shape import EagleShape, of_speculators

ARCHITECTURE = "Qwen3DSparkModel"
NAME_OF_SPECULATORS = "dspark"
"""`speculators_model_type` of a DSpark head."""

ARCHITECTURE_OF_SPECFORGE = "DSparkDraftModel"
"""Of model_type qwen3, vLLM takes it for a Qwen3DSparkModel; otherwise, it is DeepSeek-V4's own
(vllm/config/speculative.py)."""

RANK = 256
"""Largest bias rank of a new head; the rank of DeepSeek's heads."""

HEADS = {
    "sample_from_anchor": True,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
"""Values that a supported head has in config.json.
Slot 0 drafts, and the Markov and confidence heads read the preceding token."""


def is_dspark(config: Mapping[str, Any]) -> bool:
    """True for the config.json of a DSpark head in Qwen3's format, under any of its names."""
    architectures = config.get("architectures") or []
    return (
        config.get("speculators_model_type") == NAME_OF_SPECULATORS
        or ARCHITECTURE in architectures
        or (ARCHITECTURE_OF_SPECFORGE in architectures and config.get("model_type") == "qwen3")
    )


def nested_refusals(config: Mapping[str, Any]) -> list[str]:
    """Refuses a config.json with the two heads' keys where vLLM does not look.

    SpecForge has them in `dflash_config`; qwen3_dspark.py reads them at the top level only.
    """
    section = config.get(dflash.SECTION) or {}
    nested = [key for key in ("markov_rank", *HEADS) if key in section and key not in config]
    if not nested:
        return []
    return [
        f"a DSpark head with {', '.join(nested)} in {dflash.SECTION}, but vLLM 0.32 reads them at"
        " the top level of config.json; copy them there"
    ]


def read_dspark_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> EagleShape:
    """Reads the config.json at `path`; raises an `OutriderError` if the head is not unrolled."""
    _check_heads(config, path)
    shape = dflash.read_dflash_shape(config, target_config, path)
    return dataclasses.replace(shape, markov_rank=config["markov_rank"])


def served_dspark_shape(
    config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
) -> EagleShape:
    """The shape of a head that may have several layers or a window."""
    _check_heads(config, path)
    shape = dflash.served_dflash_shape(config, target_config, path)
    return dataclasses.replace(shape, markov_rank=config["markov_rank"])


def max_dspark_drafts(config: Mapping[str, Any]) -> int | None:
    """Drafts of the head's block; in DeepSeek's layout, all its slots draft."""
    return dflash.max_dflash_drafts(config, from_anchor="speculators_model_type" not in config)


def _check_heads(config: Mapping[str, Any], path: object) -> None:
    # Defaults of vLLM: `sample_from_anchor` is true only in DeepSeek's layout.
    plain = "speculators_model_type" not in config
    settings = {"sample_from_anchor": plain, "markov_head_type": "vanilla", **config}
    wrong = {key: settings.get(key) != form for key, form in HEADS.items()}
    wrong["dspark_draft_topk"] = settings.get("dspark_draft_topk") is not None
    wrong["markov_rank"] = not settings.get("markov_rank")
    for key in (key for key, differs in wrong.items() if differs):
        raise OutriderError(
            f"{path}: {key} = {settings.get(key)}: Outrider neither trains nor replays such a"
            " DSpark head. It supports heads whose first slot drafts, with a logit bias that"
            " depends only on the token before each draft and a confidence that reads that token;"
            " train one from scratch (speculator.base: none)"
        )


def plain_dspark_config(
    target_config: Mapping[str, Any], head: HeadConfig, drafts: int
) -> dict[str, Any]:
    """config.json of a new head, in DeepSeek's layout."""
    config = dflash.plain_dflash_config(target_config, head, drafts)
    block = config.pop(dflash.SECTION)
    return {
        **config,
        "architectures": [ARCHITECTURE],
        **{key: block[key] for key in (dflash.MASK_TOKEN, dflash.LAYER_IDS)},
        "markov_rank": min(RANK, config["hidden_size"]),
        **HEADS,
    }


def dspark_speculators_config(
    config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any]:
    """DFlash's config.json in the speculators format, plus the two heads' keys."""
    heads = {"markov_rank": config["markov_rank"], **HEADS}
    apart = {*heads, dflash.MASK_TOKEN, dflash.LAYER_IDS}
    twin = dflash.dflash_speculators_config(config, target_config, target, drafts)
    layer = twin["transformer_layer_config"]
    return {
        **twin,
        **of_speculators(
            algorithm=NAME_OF_SPECULATORS,
            architecture="DSparkSpeculator",
            target_config=target_config,
            target=target,
            drafts=drafts,
        ),
        **heads,
        "block_size": drafts,
        "transformer_layer_config": {key: layer[key] for key in layer if key not in apart},
    }
