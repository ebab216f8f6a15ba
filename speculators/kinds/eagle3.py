"""EAGLE-3 heads: recognized, checked and served; not trained here yet.

The shapes of a head follow from its config.json and the target's. Both layouts are known: the
plain one of vLLM and SGLang, and that of vllm-project/speculators.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.checks import (
    check_finite,
    check_header_shape,
    check_vocabulary_size,
    foreign,
    header_named,
)
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.safetensors_headers import (
    TensorHeader,
    integers,
    tensor_headers,
)
from outrider.speculators.kinds.protocol import Abilities, KPerBatchSize
from outrider.speculators.kinds.vllm_settings import directory_settings

DEFAULT_AUX_STATES = 3
"""States of the target that a head reads where its config.json does not name the layers."""

TAKEN_FOR_MTP = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}
"""`model_type` values that vLLM serves as an MTP layer, whatever the architecture.

vLLM 0.32, `SpeculativeConfig.hf_config_override`."""


class Eagle3:
    """A head over auxiliary states of the target, often with a smaller vocabulary."""

    name = "eagle3"
    in_words = "an EAGLE-3 head"
    directory_in_words: str | None = (
        "an EAGLE-3 checkpoint (config.json with draft_vocab_size or an Eagle3 architecture, and"
        " its weights)"
    )
    abilities = Abilities(drafts_every_step=True)

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """A head has an Eagle3 architecture or a draft vocabulary."""
        architectures = config.get("architectures") or []
        return (
            any("eagle3" in name.lower() for name in architectures)
            or config.get("speculators_model_type") == "eagle3"
            or "draft_vocab_size" in config
        )

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `eagle3`."""
        return directory_settings(self.name, directory, k, draft_sample_method, k_per_batch_size)

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Vocabulary, widths, auxiliary layers, shapes, the map of tokens, and finiteness."""
        path, config = directory / "config.json", read_json(directory / "config.json")
        layer = config.get("transformer_layer_config") or config  # vllm-project/speculators' form
        if config.get("model_type") in TAKEN_FOR_MTP:
            raise OutriderError(
                f"{path}: model_type = {config['model_type']}, which vLLM takes for an MTP layer"
                " and not for the EAGLE-3 head that it is; an EAGLE-3 head with DeepSeek's"
                ' attention has model_type "deepseek_v2"'
            )
        check_vocabulary_size(path, layer, target)
        hidden = config.get("target_hidden_size") or layer.get("hidden_size")
        if hidden != target.config["hidden_size"]:
            raise foreign(path, "hidden_size", hidden, target, target.config["hidden_size"])
        layers = _auxiliary_layers(config)
        if layers and max(layers) > target.config["num_hidden_layers"]:
            wanted = f"{target.config['num_hidden_layers']} layers"
            raise foreign(path, "eagle_aux_hidden_state_layer_ids", layers, target, wanted)
        found = tensor_headers(directory)
        vocabulary = config.get("draft_vocab_size") or layer["vocab_size"]
        own_hidden = layer["hidden_size"]
        states = len(layers) if layers else DEFAULT_AUX_STATES
        self._check_shape(found, "lm_head.weight", (vocabulary, own_hidden), path)
        self._check_shape(found, "fc.weight", (own_hidden, hidden * states), path)
        if embedding := header_named(found, "embed_tokens.weight"):
            shape = (target.config["vocab_size"], own_hidden)
            self._check_shape(found, embedding.name, shape, path)
        if vocabulary != target.config["vocab_size"]:
            _check_map(self._check_shape(found, "d2t", (vocabulary,), path), target)
        check_finite(found)

    def _check_shape(
        self, found: Mapping[str, TensorHeader], suffix: str, shape: tuple[int, ...], config: Path
    ) -> TensorHeader:
        return check_header_shape(found, suffix, shape, config, self.in_words)


def _auxiliary_layers(config: Mapping[str, Any]) -> list[int] | None:
    """The auxiliary layers that config.json names, in either layout."""
    key = "eagle_aux_hidden_state_layer_ids"
    return config.get(key) or (config.get("eagle_config") or {}).get(key)


def _check_map(header: TensorHeader, target: CheckpointLayout) -> None:
    """d2t: target id = draft id + d2t[draft id]. Each id is a token of the target, none twice."""
    offsets = integers(header)
    ids = offsets + np.arange(len(offsets))
    vocabulary = target.config["vocab_size"]
    outside = int(((ids < 0) | (ids >= vocabulary)).sum())
    twice = len(ids) - len(set(ids.tolist()))
    if outside or twice:
        raise OutriderError(
            f"{header.file}: d2t maps {outside} draft tokens outside the target's vocabulary of"
            f" {vocabulary} and {twice} onto a token that another has: a stale vocabulary. Make"
            " the draft vocabulary again from the target's tokenizer"
        )
