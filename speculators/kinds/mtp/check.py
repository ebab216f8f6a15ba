"""Tensor names of MTP layers, and checks against the target. No torch.

    mtp_tensor_names(read_layout(directory))      # {"model.layers.61.eh_proj.weight", ...}

Checkpoints store the layer as `model.layers.{num_hidden_layers}.*`, with separate tensors for
each expert. An MTP directory must contain the same tensors as the target's own MTP layer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.architectures import architecture_of
from outrider.speculators.checkpoints.checks import (
    check_finite,
    check_names,
    check_same_rows,
    check_vocabulary_size,
    wrong_target_error,
)
from outrider.speculators.checkpoints.layout import (
    DERIVED,
    INDEX,
    SINGLE,
    CheckpointLayout,
    fp8_blocks,
    read_target_config,
    weight_map,
)
from outrider.speculators.checkpoints.model_config import read_head_config
from outrider.speculators.checkpoints.safetensors_headers import TensorHeader, tensor_headers
from outrider.speculators.layers.rope import rope_of

SHARED_WITH_TARGET = ("embed_tokens.weight", "shared_head.head.weight")
"""Copies of the target's embedding and head; checked, never loaded or written."""

SAME_AS_TARGET = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
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
"""Keys that define the layer, besides `Layer.keys`; must equal the target's."""

T = TypeVar("T")

UNQUANTIZED = {"F32", "F16", "BF16"}
"""Dtypes between which the engine converts."""


def mtp_tensor_names(layout: CheckpointLayout) -> set[str]:
    """Names of the layer's tensors, with scales but without shared copies."""
    return set(_of_layer(layout.weight_map, layer_prefix(layout.config)))


def layer_prefix(config: dict[str, object]) -> str:
    """Prefix of the layer's tensor names, numbered after the target's last layer."""
    return f"model.layers.{config['num_hidden_layers']}."


def is_shared(name: str) -> bool:
    """True for copies of the target's embedding or head, with any prefix."""
    return name.endswith(SHARED_WITH_TARGET)


def check_mtp(directory: Path, target: CheckpointLayout) -> None:
    """Checks that the directory has the tensors of the target's own layer."""
    path = directory / "config.json"
    config = read_head_config(directory / "config.json")
    check_vocabulary_size(path, config, target)
    own_layer = architecture_of(target.config, target.directory / "config.json").layer
    for key in (*SAME_AS_TARGET, *(own_layer.keys if own_layer else ())):
        if config.get(key) != target.config.get(key):
            raise wrong_target_error(
                path=path,
                key=key,
                value=config.get(key),
                target=target,
                expected=target.config.get(key),
            )
    prefix = layer_prefix(target.config)
    headers = tensor_headers(directory)
    target_headers = tensor_headers(
        target.directory, target.files([*mtp_tensor_names(target), *target.embedding_and_head])
    )
    layer = _of_layer(headers, prefix)
    _check_tensors(directory, layer, _of_layer(target_headers, prefix), target.directory)
    for copy, end in zip(SHARED_WITH_TARGET, target.embedding_and_head, strict=True):
        for name in {prefix + copy, end} & headers.keys():
            check_same_rows(headers[name], target_headers[end])
    check_finite(layer)


def check_mtp_target(directory: Path, config_only: bool) -> None:
    """Checks that the directory has an MTP layer that training can read."""
    config_path = directory / "config.json"
    config = read_target_config(directory)
    architecture = architecture_of(config, config_path)
    layer = architecture.layer
    if layer is None:
        raise OutriderError(
            f"{config_path}: architectures = {config['architectures']} has no MTP layer that"
            " Outrider trains (DeepSeek-V3, V3.1, R1 and GLM-4.5 to 4.7 have one); train a head"
            " instead, such as speculator.kind: eagle3 with speculator.base: ngram"
        )
    fix = (
        "point target.model at a checkpoint with its multi-token prediction layer (DeepSeek-V3,"
        " R1 and GLM-4.5 have one; conversions to other formats often drop it)"
    )
    head = ", or train a head: speculator.kind: eagle3" if architecture.returns_states else ""
    fix += head
    rope_type = rope_of(config)["rope_type"]
    if rope_type not in layer.rope_types:
        raise OutriderError(
            f"{config_path}: rope_type = {rope_type}: the MTP layer of this architecture is trained"
            f" with rope_type {' or '.join(layer.rope_types)} only; point target.model at a copy"
            " whose config.json has no such scaling, if the endpoint can serve without it"
        )
    layers = config.get("num_nextn_predict_layers")
    if layers != 1:
        raise OutriderError(
            f"{config_path}: num_nextn_predict_layers is {layers}, but exactly 1 MTP layer is"
            f" supported; {fix}"
        )
    fp8_blocks(config, config_path, head)  # raises for quantizations other than DeepSeek's
    if config_only and not any((directory / name).is_file() for name in (INDEX, SINGLE)):
        return
    prefix = layer_prefix(config)
    if not any(name.startswith(prefix) for name in weight_map(directory)):
        raise OutriderError(
            f"{directory}: no tensor named {prefix}*, though num_nextn_predict_layers in"
            f" {config_path.name} is {layers}; {fix}"
        )


def _check_tensors(
    directory: Path,
    headers: Mapping[str, TensorHeader],
    target_headers: Mapping[str, TensorHeader],
    target_dir: Path,
) -> None:
    """Checks that names, shapes and dtypes match the target's layer."""
    files = sorted({header.file.name for header in headers.values()}) or ["*.safetensors"]
    check_names(directory / files[0], headers, target_headers)
    for name, header in headers.items():
        target_header = target_headers[name]
        if header.shape != target_header.shape:
            raise OutriderError(
                f"{header.file}: {name} has shape {list(header.shape)}, the target's"
                f" {list(target_header.shape)}; the speculator belongs to a model other than"
                f" {target_dir}"
            )
        dtypes = {header.dtype, target_header.dtype}
        if len(dtypes) > 1 and not dtypes <= UNQUANTIZED:
            raise OutriderError(
                f"{header.file}: {name} is {header.dtype}, the target's {target_header.dtype}, and"
                " the engine builds the layer with the target's quantization; export the speculator"
                " in the target's precision"
            )


def _of_layer(tensors: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The layer's own tensors that the engine reads, by name."""
    return {
        name: value
        for name, value in tensors.items()
        if name.startswith(prefix) and not is_shared(name) and not name.endswith(DERIVED)
    }
