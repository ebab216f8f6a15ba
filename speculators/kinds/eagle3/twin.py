"""An EAGLE-3 head once more in the format of vllm-project/speculators.

    write_twin(directory, target_config, "nano_r1", drafts=5, out_dir)

The tensors are the same under other names (`layers.0.` for `midlayer.`). config.json has the
layer's settings apart, the auxiliary layers at the top, and `norm_before_residual`, whose default
is true there and false in the plain layout. speculators 0.9 has heads with Llama's attention only.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from outrider.common.files import read_json
from outrider.speculators.checkpoints.write import write_checkpoint
from outrider.speculators.kinds.eagle3.shape import (
    LAYER_IDS,
    PARALLEL_OF_SPECULATORS,
    EagleShape,
)
from outrider.speculators.kinds.eagle3.tensors import (
    LAYER,
    LAYER_OF_SPECULATORS,
    checkpoint_names,
)

VERSION = "0.9.0"
"""The version of speculators whose format this is."""

OF_THE_HEAD = (
    "architectures",
    "draft_vocab_size",
    "eagle_config",
    "fc_norm",
    "norm_before_residual",
    "norm_output",
    "pard_token",
    "target_hidden_size",
    "torch_dtype",
)
"""Keys of the plain config.json that do not describe the layer."""


def write_twin(
    directory: Path, target_config: Mapping[str, Any], target: str, drafts: int, out_dir: Path
) -> bool:
    """Publishes the twin of a plain directory; False where the format has no such head."""
    config = read_json(directory / "config.json")
    shape = EagleShape.read(config, target_config, directory / "config.json")
    if shape.latent is not None or shape.fc_norm or shape.norm_output:
        return False
    if "speculators_model_type" in config:
        return False
    publish_twin(directory, twin_config(config, shape, target_config, target, drafts), out_dir)
    return True


def publish_twin(directory: Path, config: Mapping[str, Any], out_dir: Path) -> None:
    """Writes the tensors of a plain directory under the format's names, and its config.json."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    renamed = {
        name.replace(LAYER, LAYER_OF_SPECULATORS): tensors[stored].contiguous()
        for name, stored in checkpoint_names(tensors).items()
    }
    write_checkpoint(config, renamed, out_dir)


def twin_config(
    config: Mapping[str, Any],
    shape: EagleShape,
    target_config: Mapping[str, Any],
    target: str,
    drafts: int,
) -> dict[str, Any]:
    """config.json of the twin."""
    algorithm, architecture, mask = "eagle3", "Eagle3Speculator", {}
    if shape.mask_token is not None:
        algorithm, architecture = PARALLEL_OF_SPECULATORS, "PEagleSpeculator"
        mask = {"mask_token_id": shape.mask_token}
    return {
        **of_speculators(algorithm, architecture, target_config, target, drafts),
        "torch_dtype": config.get("torch_dtype", "bfloat16"),
        "draft_vocab_size": shape.drafts,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        LAYER_IDS: list(shape.layers),
        **mask,
        "transformer_layer_config": {
            key: value for key, value in config.items() if key not in OF_THE_HEAD
        },
    }


def of_speculators(
    algorithm: str, architecture: str, target_config: Mapping[str, Any], target: str, drafts: int
) -> dict[str, Any]:
    """What config.json of every kind has in this format: what it is, and for which target."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": drafts,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": target,
                "architectures": list(target_config.get("architectures") or []),
            },
        },
    }
