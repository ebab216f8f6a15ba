"""Names of an MTP layer's tensors, and the check that a directory fits its target. No torch.

    layer = MTPTensors(read_layout(directory))
    layer.suffixes      # {"eh_proj.weight", ...}, without `model.layers.61.`

DeepSeek stores the layer as `model.layers.{num_hidden_layers}.*`, one tensor for each expert. An
MTP directory must hold what the target's own MTP layer holds, tensor by tensor.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.architectures import architecture_of
from outrider.speculators.checkpoints.checks import (
    check_finite,
    check_names,
    check_same_rows,
    check_vocabulary_size,
    foreign,
)
from outrider.speculators.checkpoints.layout import (
    INDEX,
    SINGLE,
    CheckpointLayout,
    fp8_blocks,
    weight_map,
)
from outrider.speculators.checkpoints.safetensors_headers import TensorHeader, tensor_headers

SHARED_WITH_TARGET = ("embed_tokens.weight", "shared_head.head.weight")
"""Copies of the target's embedding and head that DeepSeek ships: neither read nor written."""

DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies that some conversions store: they follow from config.json and are not read."""

SAME_AS_TARGET = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "first_k_dense_replace",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "norm_topk_prob",
    "scoring_func",
    "rms_norm_eps",
)
"""Keys of config.json in which a directory must agree with its target: the engine builds the layer
from them."""

T = TypeVar("T")

UNQUANTIZED = {"F32", "F16", "BF16"}
"""Dtypes that the engine converts into each other."""


@dataclasses.dataclass(frozen=True)
class MTPTensors:
    """The MTP layer of one checkpoint, by name."""

    layout: CheckpointLayout

    @property
    def prefix(self) -> str:
        """Prefix of the layer's tensor names."""
        return layer_prefix(self.layout.config)

    @property
    def suffixes(self) -> set[str]:
        """The layer's tensors without the prefix: scales included, shared copies left out."""
        return {name.removeprefix(self.prefix) for name in self.names}

    @property
    def names(self) -> set[str]:
        """The same with the prefix."""
        return set(_of_layer(self.layout.weight_map, self.prefix))


def layer_prefix(config: dict[str, object]) -> str:
    """Prefix of the layer's tensor names: it follows the target's last layer."""
    return f"model.layers.{config['num_hidden_layers']}."


def is_shared(name: str) -> bool:
    """True for a copy of the target's embedding or head, under any prefix."""
    return name.endswith(SHARED_WITH_TARGET)


def check_mtp(directory: Path, target: CheckpointLayout) -> None:
    """Configuration, names, shapes, dtypes, copies of the vocabulary, and finiteness."""
    path, config = directory / "config.json", read_json(directory / "config.json")
    check_vocabulary_size(path, config, target)
    for key in SAME_AS_TARGET:
        if config.get(key) != target.config.get(key):
            raise foreign(path, key, config.get(key), target, target.config.get(key))
    layer = MTPTensors(target)
    found = tensor_headers(directory)
    own = tensor_headers(target.directory, target.files([*layer.names, *target.ends]))
    _check_tensors(directory, _of_layer(found, layer.prefix), _of_layer(own, layer.prefix), layer)
    for name, of_target in _shared(layer).items():
        if name in found:
            check_same_rows(found[name], own[of_target])
    check_finite(_of_layer(found, layer.prefix))


def check_mtp_target(directory: Path, config_only: bool) -> None:
    """A checkpoint has an MTP layer, in weights that training reads.

    With `config_only`, weights that are not there are not missed (`--dry-run`).
    """
    config_path = directory / "config.json"
    config = read_json(config_path)
    if not architecture_of(config, config_path).own_speculator:
        raise OutriderError(
            f"{config_path}: architectures = {config['architectures']} has no MTP layer that"
            " Outrider trains (DeepSeek-V3, V3.1 and R1 have one); train a head instead, such as"
            " speculator.kind: eagle3 with speculator.base: ngram"
        )
    fix = (
        "point target.model at a checkpoint with its multi-token prediction layer (DeepSeek-V3"
        " and R1 have one), or train a head: speculator.kind: eagle3"
    )
    layers = config.get("num_nextn_predict_layers")
    if not layers:
        found = config.get("num_nextn_predict_layers", "not there")
        raise OutriderError(
            f"{config_path}: num_nextn_predict_layers is {found}, so there is no MTP layer to"
            f" start from; {fix}"
        )
    fp8_blocks(config, config_path)  # refuses other quantizations than DeepSeek's
    if config_only and not any((directory / name).is_file() for name in (INDEX, SINGLE)):
        return
    prefix = layer_prefix(config)
    if not any(name.startswith(prefix) for name in weight_map(directory)):
        raise OutriderError(
            f"{directory}: no tensor named {prefix}*, though num_nextn_predict_layers in"
            f" {config_path.name} is {layers}: conversions often drop the MTP layer; {fix}"
        )


def _check_tensors(
    directory: Path,
    found: Mapping[str, TensorHeader],
    own: Mapping[str, TensorHeader],
    layer: MTPTensors,
) -> None:
    """Every tensor of the target's layer, no other, each in its shape and a dtype that fits."""
    target_dir = layer.layout.directory
    files = sorted({header.file.name for header in found.values()}) or ["*.safetensors"]
    check_names(directory / files[0], found, own)
    for name, header in found.items():
        wanted = own[name]
        if header.shape != wanted.shape:
            raise OutriderError(
                f"{header.file}: {name} has shape {list(header.shape)}, the target's"
                f" {list(wanted.shape)}; the speculator belongs to another model than {target_dir}"
            )
        if header.dtype != wanted.dtype and not {header.dtype, wanted.dtype} <= UNQUANTIZED:
            raise OutriderError(
                f"{header.file}: {name} is {header.dtype}, the target's {wanted.dtype}, and the"
                " engine builds the layer with the target's quantization; export the speculator"
                " in the target's precision"
            )


def _of_layer(found: Mapping[str, T], prefix: str) -> dict[str, T]:
    """What is found of the layer's own tensors that the engine reads, by their names."""
    return {
        name: value
        for name, value in found.items()
        if name.startswith(prefix) and not is_shared(name) and not name.endswith(DERIVED)
    }


def _shared(layer: MTPTensors) -> dict[str, str]:
    """Names of copies of the target's ends, and the target's tensor that each must equal."""
    ends = layer.layout.ends
    copies = {
        layer.prefix + suffix: end for suffix, end in zip(SHARED_WITH_TARGET, ends, strict=True)
    }
    return copies | {end: end for end in ends}
