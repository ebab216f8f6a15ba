"""A DFlash head once more in the format of vllm-project/speculators.

    write_twin(directory, target_config, "nano_r1", drafts=5, out_dir)

The tensors have the same names. config.json has the layer's settings apart and the mask token and
the target's layers at the top, counted as EAGLE-3 counts them. `sliding_window_non_causal` is true:
vLLM 0.32 reads false as a causal block, also for full attention.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.speculators.kinds.dflash.shape import (
    ARCHITECTURE,
    LAYER_IDS_OF_SPECULATORS,
    MASK_TOKEN,
    NAME_OF_SPECULATORS,
    SECTION,
    read_shape,
)
from outrider.speculators.kinds.eagle3.twin import of_speculators, publish_twin

OF_THE_HEAD = ("architectures", "draft_vocab_size", SECTION, "torch_dtype")
"""Keys of the plain config.json that do not describe the layer."""


def write_twin(
    directory: Path, target_config: Mapping[str, Any], target: str, drafts: int, out_dir: Path
) -> bool:
    """Publishes the twin of a plain directory; False where the directory is in the format."""
    config = read_json(directory / "config.json")
    if "speculators_model_type" in config:
        return False
    shape = read_shape(config, target_config, directory / "config.json")
    twin = {
        **of_speculators(NAME_OF_SPECULATORS, ARCHITECTURE, target_config, target, drafts),
        "torch_dtype": config.get("torch_dtype", "bfloat16"),
        "draft_vocab_size": shape.drafts,
        "block_size": drafts + 1,
        LAYER_IDS_OF_SPECULATORS: list(shape.layers),
        MASK_TOKEN: shape.mask_token,
        "sliding_window_non_causal": True,
        "transformer_layer_config": {
            key: value for key, value in config.items() if key not in OF_THE_HEAD
        },
    }
    publish_twin(directory, twin, out_dir)
    return True
