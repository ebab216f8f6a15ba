"""Does a speculator belong to the target? Asked of its files before anything is started: configuration, names, shapes, numbers.

An engine that is given a speculator of another target, with another vocabulary or with damaged weights ends in a traceback after
minutes, or drafts nonsense without a word. Everything here comes from the two config.json and the safetensors headers; only whether
the weights are finite, and whether a vocabulary's rows are the target's, is read from the weights themselves. No torch.

    check_speculator(Path("runs/NAME/speculator"), target_dir)     # an OutriderError, or nothing

What an MTP directory must hold is what the target's own MTP layer holds, tensor by tensor; an EAGLE-3 checkpoint has its own shapes,
which follow from its config.json and the target's.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import (
    DERIVED,
    SHARED_WITH_TARGET,
    CheckpointLayout,
    read_layout,
)
from outrider.speculators.checkpoints.safetensors_headers import (
    TensorHeader,
    integers,
    is_finite,
    rows_that_differ,
    tensor_headers,
)

DirectoryKind = Literal["mtp", "eagle3"]

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
"""Keys of config.json in which an MTP directory must agree with its target: the engine builds the layer from them."""

UNQUANTIZED = {"F32", "F16", "BF16"}
"""Dtypes that the engine converts into each other."""

EAGLE3_AUX_STATES = 3
"""States of the target that an EAGLE-3 head reads, where its config.json does not name the layers."""

TAKEN_FOR_MTP = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}
"""`model_type` of a drafter that vLLM (0.32, `SpeculativeConfig.hf_config_override`) serves as an MTP layer, whatever its architecture."""


def kind_of(directory: Path) -> DirectoryKind:
    """What speculates here, by config.json alone: an EAGLE-3 head names itself or has a vocabulary of its own, an MTP directory has the
    target's configuration."""
    path = Path(directory) / "config.json"
    config = read_json(path)
    architectures = config.get("architectures") or []
    if (
        any("eagle3" in name.lower() for name in architectures)
        or config.get("speculators_model_type") == "eagle3"
        or "draft_vocab_size" in config
    ):
        return "eagle3"
    if config.get("num_nextn_predict_layers"):
        return "mtp"
    raise OutriderError(
        f"{path}: architectures = {architectures}, without num_nextn_predict_layers or draft_vocab_size: neither an MTP directory "
        "(the target's config.json and the tensors of its MTP layer) nor an EAGLE-3 checkpoint; these two are known, and ngram and "
        "none by name"
    )


def check_speculator(directory: Path, target_dir: Path) -> None:
    """Raises an `OutriderError` with file, key, value and fix where the speculator is not one of this target's."""
    directory, target = Path(directory), read_layout(target_dir)
    if kind_of(directory) == "mtp":
        _check_mtp(directory, target)
    else:
        _check_eagle3(directory, target)


def _check_mtp(directory: Path, target: CheckpointLayout) -> None:
    path, config = directory / "config.json", read_json(directory / "config.json")
    _check_vocabulary_size(path, config, target)
    for key in SAME_AS_TARGET:
        if config.get(key) != target.config.get(key):
            raise _foreign(path, key, config.get(key), target, target.config.get(key))
    found = tensor_headers(directory)
    own = tensor_headers(target.directory, target.files(target.training_tensors()))
    _check_tensors(directory, _layer(found, target.prefix), _layer(own, target.prefix), target)
    for name, of_target in _shared(target).items():
        if name in found:
            _check_same_rows(found[name], own[of_target])
    _check_finite(_layer(found, target.prefix))


def _check_tensors(
    directory: Path,
    found: Mapping[str, TensorHeader],
    own: Mapping[str, TensorHeader],
    target: CheckpointLayout,
) -> None:
    """Every tensor of the target's own layer, no other, each in its shape and in a dtype that the engine can take."""
    files = sorted({header.file.name for header in found.values()}) or ["*.safetensors"]
    missing, unexpected = sorted(own.keys() - found.keys()), sorted(found.keys() - own.keys())
    if missing or unexpected:
        parts = [f"missing: {_some(missing)}"] if missing else []
        parts += [f"unexpected: {_some(unexpected)}"] if unexpected else []
        raise OutriderError(
            f"{directory / files[0]}: the tensors of {target.prefix}* are not those of the target's own layer ({target.directory}); "
            f"{'; '.join(parts)}; export the speculator again, or name one that was trained for this target"
        )
    for name, header in found.items():
        wanted = own[name]
        if header.shape != wanted.shape:
            raise OutriderError(
                f"{header.file}: {name} has shape {list(header.shape)}, the target's {list(wanted.shape)}; the speculator belongs to "
                f"another model than {target.directory}"
            )
        if header.dtype != wanted.dtype and not {header.dtype, wanted.dtype} <= UNQUANTIZED:
            raise OutriderError(
                f"{header.file}: {name} is {header.dtype}, the target's {wanted.dtype}, and the engine builds the layer with the "
                "target's quantization; export the speculator in the target's precision"
            )


def _check_eagle3(directory: Path, target: CheckpointLayout) -> None:
    path, config = directory / "config.json", read_json(directory / "config.json")
    layer = config.get("transformer_layer_config") or config  # the form of vllm-project/speculators
    if config.get("model_type") in TAKEN_FOR_MTP:
        raise OutriderError(
            f"{path}: model_type = {config['model_type']}, which vLLM takes for an MTP layer and not for the EAGLE-3 head that it is; an "
            'EAGLE-3 head with DeepSeek\'s attention says model_type "deepseek_v2"'
        )
    _check_vocabulary_size(path, layer, target)
    hidden = config.get("target_hidden_size") or layer.get("hidden_size")
    if hidden != target.config["hidden_size"]:
        raise _foreign(path, "hidden_size", hidden, target, target.config["hidden_size"])
    named = config.get("eagle_aux_hidden_state_layer_ids") or (
        config.get("eagle_config") or {}
    ).get("eagle_aux_hidden_state_layer_ids")
    if named and max(named) > target.config["num_hidden_layers"]:
        raise _foreign(
            path,
            "eagle_aux_hidden_state_layer_ids",
            named,
            target,
            f"{target.config['num_hidden_layers']} layers",
        )
    found = tensor_headers(directory)
    vocabulary, own_hidden = (
        config.get("draft_vocab_size") or layer["vocab_size"],
        layer["hidden_size"],
    )
    _check_shape(found, "lm_head.weight", (vocabulary, own_hidden), path)
    _check_shape(
        found,
        "fc.weight",
        (own_hidden, hidden * (len(named) if named else EAGLE3_AUX_STATES)),
        path,
    )
    if embedding := _named(found, "embed_tokens.weight"):
        _check_shape(found, embedding.name, (target.config["vocab_size"], own_hidden), path)
    if vocabulary != target.config["vocab_size"]:
        _check_map(_check_shape(found, "d2t", (vocabulary,), path), target)
    _check_finite(found)


def _check_map(header: TensorHeader, target: CheckpointLayout) -> None:
    """d2t: target id = draft id + d2t[draft id], each a token of the target's, none twice."""
    offsets = integers(header)
    ids = offsets + range(len(offsets))
    outside = int(((ids < 0) | (ids >= target.config["vocab_size"])).sum())
    twice = len(ids) - len(set(ids.tolist()))
    if outside or twice:
        raise OutriderError(
            f"{header.file}: d2t maps {outside} draft tokens outside the target's vocabulary of {target.config['vocab_size']} and "
            f"{twice} onto a token that another has: a stale vocabulary. Make the draft vocabulary again from the target's tokenizer"
        )


def _check_vocabulary_size(path: Path, config: Mapping[str, Any], target: CheckpointLayout) -> None:
    vocabulary = target.config["vocab_size"]
    if config.get("vocab_size") != vocabulary:
        raise OutriderError(
            f"{path}: vocab_size = {config.get('vocab_size')}, but the target's is {vocabulary} ({target.directory / 'config.json'}): "
            "a stale vocabulary. Its token ids mean other words; train the speculator again for this target, or name the target "
            "that it was trained for"
        )


def _check_same_rows(header: TensorHeader, own: TensorHeader) -> None:
    """A copy of the target's embedding or head, which the engine replaces by the target's: trained against another, it drafts nonsense."""
    if header.shape != own.shape:
        said = f"has shape {list(header.shape)}, the target's {own.name} {list(own.shape)}"
    elif rows := rows_that_differ(header, own):
        said = f"differs in {rows} of {header.shape[0]} rows from the target's {own.name}"
    else:
        return
    raise OutriderError(
        f"{header.file}: {header.name} {said}: a stale vocabulary. The speculator was trained for another vocabulary or another "
        f"revision of the target than {own.file.parent}; name that one as target.model, or train again"
    )


def _check_finite(found: Mapping[str, TensorHeader]) -> None:
    broken = [name for name, header in found.items() if not is_finite(header)]
    if broken:
        raise OutriderError(
            f"{found[broken[0]].file}: not a finite number in {_some(sorted(broken))}; the checkpoint is damaged, or its training "
            "diverged: take an earlier checkpoint, or export it again"
        )


def _check_shape(
    found: Mapping[str, TensorHeader], suffix: str, shape: tuple[int, ...], config: Path
) -> TensorHeader:
    header = _named(found, suffix)
    if header is None:
        raise OutriderError(
            f"{config.parent}: no tensor {suffix}; an EAGLE-3 checkpoint brings it. It has {_some(sorted(found))}"
        )
    if math.prod(header.shape) != math.prod(shape) or header.shape[0] != shape[0]:
        raise OutriderError(
            f"{header.file}: {header.name} has shape {list(header.shape)}, but {config} and the target make it {list(shape)}; the "
            "weights and the configuration belong to different models"
        )
    return header


def _named(found: Mapping[str, TensorHeader], suffix: str) -> TensorHeader | None:
    return next(
        (header for name, header in found.items() if name == suffix or name.endswith("." + suffix)),
        None,
    )


def _layer(headers: Mapping[str, TensorHeader], prefix: str) -> dict[str, TensorHeader]:
    """The MTP layer's tensors that are its own and that the engine reads."""
    shared = {prefix + suffix for suffix in SHARED_WITH_TARGET}
    return {
        name: header
        for name, header in headers.items()
        if name.startswith(prefix) and name not in shared and not name.endswith(DERIVED)
    }


def _shared(target: CheckpointLayout) -> dict[str, str]:
    """Names of copies of the target's ends, and of the target's tensor that each must equal."""
    embedding, head = target.ends
    copies = dict(
        zip(
            (target.prefix + suffix for suffix in SHARED_WITH_TARGET),
            (embedding, head),
            strict=True,
        )
    )
    return copies | {embedding: embedding, head: head}


def _foreign(
    path: Path, key: str, value: Any, target: CheckpointLayout, wanted: Any
) -> OutriderError:
    return OutriderError(
        f"{path}: {key} = {value}, but the target has {wanted} ({target.directory / 'config.json'}): the speculator belongs to another "
        "model. Name one that was trained for this target, or its target as target.model"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
