"""Checks from files that an EAGLE-3 head fits its target. No torch.

The shapes of a head follow from its config.json and the target's. Both layouts are supported: the
plain one of vLLM and SGLang, and that of vllm-project/speculators.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.checks import (
    check_finite,
    check_header_shape,
    check_vocabulary_size,
    header_named,
    wrong_target_error,
)
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.model_config import check_head_keys, read_head_config
from outrider.speculators.checkpoints.safetensors_headers import (
    TensorHeader,
    rows_that_differ,
    tensor_headers,
)
from outrider.speculators.kinds.eagle3.shape import (
    D2T,
    EMBEDDING,
    T2D,
    layer_config,
    unsupported_head,
)
from outrider.speculators.layers.rope import rope_of

if TYPE_CHECKING:
    from torch import Tensor

LM_HEAD = "lm_head.weight"

TAKEN_FOR_MTP = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}
"""`model_type` values that vLLM 0.32 serves as MTP (`SpeculativeConfig.hf_config_override`)."""


def check_head(directory: Path, target: CheckpointLayout, in_words: str, states: int) -> None:
    """Checks vocabulary, shapes, token map and finiteness; `states` counts fc's input states."""
    path = directory / "config.json"
    config = read_head_config(directory / "config.json")
    layer = layer_config(config)
    check_head_keys(layer, path)
    check_vocabulary_size(path, layer, target)
    hidden = config.get("target_hidden_size") or layer.get("hidden_size")
    if hidden != target.config["hidden_size"]:
        raise wrong_target_error(
            path=path,
            key="hidden_size",
            value=hidden,
            target=target,
            expected=target.config["hidden_size"],
        )
    headers = tensor_headers(directory)
    vocabulary = config.get("draft_vocab_size") or layer["vocab_size"]
    head_hidden = layer["hidden_size"]
    _check_rope_factor(path, rope_of(layer))
    # vLLM shares the target's lm_head with a head that has none and drafts the whole vocabulary.
    if vocabulary != target.config["vocab_size"] or header_named(headers, LM_HEAD) is not None:
        check_header_shape(
            headers=headers,
            suffix=LM_HEAD,
            shape=(vocabulary, head_hidden),
            config=path,
            in_words=in_words,
        )
    check_header_shape(
        headers=headers,
        suffix="fc.weight",
        shape=(head_hidden, hidden * states),
        config=path,
        in_words=in_words,
    )
    embedding = header_named(headers, EMBEDDING)
    if embedding is not None:
        shape = (target.config["vocab_size"], head_hidden)
        check_header_shape(
            headers=headers, suffix=embedding.name, shape=shape, config=path, in_words=in_words
        )
    if vocabulary != target.config["vocab_size"]:
        offsets = check_header_shape(
            headers=headers, suffix=D2T, shape=(vocabulary,), config=path, in_words=in_words
        )
        _check_map(offsets, header_named(headers, T2D), target)
    check_finite(headers)


def check_own_rows(directory: Path) -> None:
    """Refuses a head without `lm_head`, which vLLM serves with the target's."""
    if header_named(tensor_headers(directory), LM_HEAD) is None:
        path = directory / "config.json"
        raise OutriderError(unsupported_head(path, f"no tensor {LM_HEAD} in its weights"))


def _check_rope_factor(path: Path, rope: Mapping[str, Any]) -> None:
    factor = rope.get("factor")
    if rope["rope_type"] == "linear" and isinstance(factor, int):
        raise OutriderError(
            f"{path}: factor = {factor} of a linear rotary embedding: vLLM 0.32 stops with an error"
            f" unless it is a float (linear_scaling_rope.py); write {float(factor)}"
        )


def check_embedding(directory: Path, target: CheckpointLayout) -> None:
    """Raises an `OutriderError` if the head's embedding differs from the target's.

    vLLM keeps and serves such an embedding, but the unroll reads the target's.
    """
    embedding = header_named(tensor_headers(directory), EMBEDDING)
    name, _ = target.embedding_and_head
    if embedding is None:
        return
    original = tensor_headers(target.directory, target.files([name]))[name]
    if embedding.shape != original.shape or rows_that_differ(embedding, original):
        raise OutriderError(
            f"{embedding.file}: {embedding.name} differs from the target's embedding"
            f" ({original.file}). vLLM serves such a head, but Outrider neither trains nor replays"
            " it, since it reads only the target's embedding"
        )


def mapped_tokens(offsets_D: "Tensor", vocabulary: int, where: object) -> "Tensor":
    """Decodes d2t to target tokens, which must be distinct and valid.

    vLLM needs no order: it scatters the logits (llama_eagle3.py, compute_logits). Model-Optimizer
    writes the tokens in order of frequency.
    """
    ids_D = offsets_D + offsets_D.new_ones(len(offsets_D)).cumsum(0) - 1
    repeated = len(ids_D) - len(ids_D.unique())
    lowest = int(ids_D.min())
    highest = int(ids_D.max())
    if not repeated and lowest >= 0 and highest < vocabulary:
        return ids_D
    distinct = len(offsets_D.unique()) == len(offsets_D)
    if distinct and int(offsets_D.min()) >= 0 and int(offsets_D.max()) < vocabulary:
        raise OutriderError(_absolute(where))
    raise OutriderError(
        f"{where}: d2t maps draft tokens to {lowest} to {highest}, {repeated} of them twice, but"
        f" they must be distinct tokens of the target's vocabulary of {vocabulary}: a stale"
        " vocabulary map; regenerate it from the target's tokenizer"
    )


def _check_map(header: TensorHeader, marks: TensorHeader | None, target: CheckpointLayout) -> None:
    """Checks d2t, and that t2d, if present, marks the tokens of d2t."""
    stored_D = header.read()
    ids = mapped_tokens(stored_D, target.config["vocab_size"], header.file).tolist()
    if marks is not None and marks.dtype == "BOOL":
        marked = marks.read().nonzero().flatten().tolist()
        if marked == sorted(stored_D.tolist()) != sorted(ids):
            raise OutriderError(_absolute(header.file))
        if marked != sorted(ids):
            raise OutriderError(
                f"{header.file}: t2d marks {len(marked)} tokens of the target, which are not the"
                " tokens that d2t maps to: the two belong to different vocabularies, and one is"
                " stale. Regenerate both from the target's tokenizer"
            )


def _absolute(where: object) -> str:
    return (
        f"{where}: d2t holds the target's token ids, but vLLM adds d2t[i] to draft token i"
        " (llama_eagle3.py); subtract 0, 1, 2, ... from its elements"
    )
