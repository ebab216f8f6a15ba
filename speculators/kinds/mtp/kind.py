"""The multi-token prediction (MTP) layer of DeepSeek-V3 and R1: the kind's torch-free half.

    kind = MTP()
    kind.size(config).total          # R1: 11.6 B parameters, 11.3 B of them in routed experts
    kind.load(directory, target_dir, torch.float32)

The layer reads the target's state after the final norm and drafts with the target's embedding and
head. A speculator's directory holds the target's config.json and the tensors of the layer. The
target's own checkpoint is such a directory, so the target's layer is a base speculator.

The other files of the kind: mtp/tensors.py (names), mtp/check.py (compatibility), mtp/size.py
(sizing), mtp/layer.py (the module), mtp/checkpoint.py (reading and writing),
mtp/training.py (trainable parts), mtp/nextn.py (SGLang's form).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.speculators.checkpoints.layout import CheckpointLayout, read_layout
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.mtp.check import check_mtp, check_mtp_target
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.kinds.mtp.tensors import MTPTensors, is_shared
from outrider.speculators.kinds.protocol import (
    Abilities,
    KPerBatchSize,
    Origin,
    TrainedParts,
)
from outrider.speculators.kinds.vllm_settings import directory_settings
from outrider.speculators.size import DrafterSize, TrainedParameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Drafter
    from outrider.speculators.kinds.mtp.layer import MTPSpeculator

CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".prob_scale")
"""Scales of a quantized key-value cache: vLLM makes room for them for an FP8 checkpoint, but
DeepSeek's checkpoints have none."""


class MTP:
    """One decoder layer over the next token's embedding and the target's final state."""

    name = "mtp"
    in_words = "an MTP layer"
    directory_in_words: str | None = (
        "an MTP directory (the target's config.json, with num_nextn_predict_layers, and the"
        " tensors of its MTP layer)"
    )
    abilities = Abilities(
        exact_replay=True, draft_parity=True, live_swap=True, drafts_every_step=True
    )

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """A directory has the target's configuration."""
        return bool(config.get("num_nextn_predict_layers"))

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """The directory holds what the target's own layer holds, tensor by tensor."""
        check_mtp(directory, target)

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `mtp`."""
        return directory_settings(self.name, directory, k, draft_sample_method, k_per_batch_size)

    head_keys: frozenset[str] = frozenset()
    trains: frozenset[TrainedParameters] = frozenset(("all", "non_routed", "lora"))

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """The target's: a directory of the kind holds it."""
        return target_config

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The state after the final norm alone."""
        return FeatureSpec((FeatureStream(FINAL_NORM, target_config["hidden_size"]),))

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """The layer has the target's attention."""
        return None

    def native(self, target_config: Mapping[str, Any]) -> bool:
        """DeepSeek-V3 and R1 ship one layer; conversions often drop it."""
        return self.recognizes(target_config)

    def native_tensors(self, target: CheckpointLayout) -> set[str]:
        """The layer's tensors without the copies of embedding and head."""
        return MTPTensors(target).names

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """The target and the base have the layer, in weights that training reads."""
        check_mtp_target(target_dir, config_only)
        if base_dir is not None and Path(base_dir) != Path(target_dir):
            check_mtp_target(base_dir, config_only)

    def size(
        self,
        config: Mapping[str, Any],
        target_config: Mapping[str, Any],
        source: object = "config.json",
    ) -> DrafterSize:
        """Of the module that config.json describes."""
        return mtp_size(target_config, source)

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "MTPSpeculator":
        """FP8 weights are dequantized to `dtype`, those of routed experts one at a time in use."""
        from outrider.speculators.kinds.mtp.checkpoint import load_to_replay

        return load_to_replay(directory, dtype, device)

    def start(
        self,
        origin: Origin,
        parts: TrainedParts,
        dtype: "torch.dtype",
        device: "torch.device | str",
        seed: int,
    ) -> "MTPSpeculator":
        """The base's layer, or the target's own; `seed` draws the adapters of `lora`."""
        from outrider.speculators.kinds.mtp.training import load_trainable

        return load_trainable(origin.base_dir or origin.target_dir, parts, dtype, device, seed)

    def trained(
        self, drafter: "Drafter", state: "Mapping[str, Tensor]"
    ) -> "Iterator[tuple[str, Tensor]]":
        """Names are those of the checkpoint, without the layer's prefix."""
        from outrider.speculators.kinds.mtp.training import trained_tensors

        return trained_tensors(cast("MTPSpeculator", drafter), state)

    def write(self, changed: "Iterable[tuple[str, Tensor]]", origin: Origin, out_dir: Path) -> None:
        """In the precision of the base, tensor by tensor."""
        from outrider.speculators.kinds.mtp.checkpoint import write_mtp

        write_mtp(changed, origin.base_dir or origin.target_dir, out_dir)

    def write_twins(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """`sglang_nextn`: the draft model that SGLang loads."""
        from outrider.speculators.kinds.mtp.nextn import write_nextn

        write_nextn(directory, out_dir / "sglang_nextn")

    def tensor_names(self, directory: Path) -> set[str]:
        """Full names, scales included."""
        return MTPTensors(read_layout(directory)).names

    def tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """Names without the layer's prefix."""
        from outrider.speculators.kinds.mtp.checkpoint import read_mtp_tensors

        return read_mtp_tensors(directory)

    def swap_tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """The layer's tensors; embedding and head stay the target's."""
        from outrider.speculators.kinds.mtp.checkpoint import stored_mtp_tensors

        return stored_mtp_tensors(directory)

    def swappable(self, one: Path, other: Path) -> bool:
        """Every layer of a target has the same shapes."""
        return True

    def stays_with_target(self, name: str) -> bool:
        """Embedding, head, and cache scales that no checkpoint brings."""
        return is_shared(name) or name.endswith(CACHE_SCALES)
