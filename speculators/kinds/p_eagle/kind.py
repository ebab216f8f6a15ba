"""P-EAGLE heads: EAGLE-3's layer over mask slots, drafting in one pass.

    kind = PEagle()
    kind.vllm_settings(directory, 5, "greedy", None)     # eagle3 with parallel_drafting

Files, features and checks are those of EAGLE-3, with two additions: `mask_hidden`, the states that
fc reads in slots without a known token, and `pard_token`, the token embedded there. A draft costs
one row of a pass instead of a whole pass, and does not read earlier drafts.

K is fixed when an engine starts, since vLLM 0.32 fails with a shape error if a step drafts fewer.
vLLM has no P-EAGLE head with DeepSeek's attention, and runs this kind on model runner V1. The
module is in p_eagle/layer.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.checks import check_header_shape
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.model_config import check_head_keys, read_head_config
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.loadable import mask_refusals
from outrider.speculators.kinds.eagle3.shape import (
    DEEPSEEK_MODEL_TYPES,
    DEFAULT_AUX_STATES,
    PARALLEL_OF_SPECULATORS,
    EagleShape,
    auxiliary_layers,
    layer_config,
    mask_token,
    plain_eagle_config,
    spare_token,
)
from outrider.speculators.kinds.protocol import KPerBatchSize

if TYPE_CHECKING:
    from torch import Tensor

    from outrider.speculators.kinds.eagle3.layer import StoredHead

MASK_TOKEN = "pard_token"
MASK_STATE = "mask_hidden"


class PEagle(Eagle3):
    """An EAGLE-3 head that drafts all tokens at once."""

    name = "p_eagle"
    in_words = "a P-EAGLE head"
    first_release = "0.18.0"
    directory_in_words: str | None = (
        "a P-EAGLE checkpoint (config.json of an EAGLE-3 head with pard_token, and its weights with"
        " mask_hidden)"
    )
    fixed_k = True
    only_runner = "v1"
    head_keys: frozenset[str] = Eagle3.head_keys - {"layer_type"}

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for a parallel drafter by name, and for an EAGLE-3 head with a mask token."""
        names = [config.get("speculators_model_type"), *(config.get("architectures") or [])]
        if any(PARALLEL_OF_SPECULATORS in str(name).lower() for name in names):
            return True
        return mask_token(config) is not None and super().recognizes(config)

    def load_refusals(self, directory: Path) -> list[str]:
        """Refuses what EAGLE-3 does, and heads without a mask token."""
        config = read_head_config(directory / "config.json")
        return [*mask_refusals(config), *super().load_refusals(directory)]

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Checks the EAGLE-3 head, its mask token and its mask state."""
        super().check(directory, target)
        path = directory / "config.json"
        config = read_head_config(path)
        _check_mask(path, config)
        layers = auxiliary_layers(config, target.config["num_hidden_layers"], path)
        states = len(layers) if layers else DEFAULT_AUX_STATES
        check_header_shape(
            headers=tensor_headers(directory),
            suffix=MASK_STATE,
            shape=(1, 1, states * target.config["hidden_size"]),
            config=path,
            in_words=self.in_words,
        )

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `eagle3` with parallel drafting."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size)
        return (settings or {}) | {"method": Eagle3.name, "parallel_drafting": True}

    def new_module(self, shape: EagleShape, target_ids_D: "Tensor | None") -> "StoredHead":
        """The module, without initial weights."""
        from outrider.speculators.kinds.p_eagle.layer import ParallelHead

        return ParallelHead(shape, target_ids_D)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """An EAGLE-3 head's config.json, plus a mask token (`spare_token`)."""
        return plain_eagle_config(target_config, head, drafts) | {
            MASK_TOKEN: spare_token(target_config)
        }

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """Runs EAGLE-3's checks, and checks that the base has a mask token."""
        super().check_target(target_dir, base_dir, config_only)
        if base_dir is not None:
            path = Path(base_dir) / "config.json"
            _check_mask(path, read_head_config(path))


def _check_mask(path: Path, config: Mapping[str, Any]) -> None:
    layer = layer_config(config)
    check_head_keys(layer, path)
    token = mask_token(config)
    if layer.get("model_type") in DEEPSEEK_MODEL_TYPES:
        raise OutriderError(
            f"{path}: a parallel head with DeepSeek's attention; vLLM 0.32 supports parallel heads"
            " with Llama's attention only (speculator.head.layer_type: llama)"
        )
    if token is None or not 0 <= token < layer["vocab_size"]:
        raise OutriderError(
            f"{path}: {MASK_TOKEN} = {token}: not a token of the target's vocabulary of"
            f" {layer['vocab_size']}; the head was made for another target"
        )
