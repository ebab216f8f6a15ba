"""The multi-token prediction (MTP) layer that a target ships. No torch.

    kind = MTP()
    kind.load(directory, target_dir, torch.float32)

The layer reads the target's state after the final norm and drafts with the target's embedding and
head. A speculator's directory holds the target's config.json and the tensors of the layer. The
target's own checkpoint is such a directory, so the target's layer can be the base speculator.

Other files: mtp/check.py (tensor names, compatibility), mtp/layer.py (the module),
mtp/checkpoint.py (reading and writing).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.mtp.check import (
    check_mtp,
    check_mtp_target,
    is_shared,
    mtp_tensor_names,
)
from outrider.speculators.kinds.protocol import Origin, TrainableKind, TrainedParameters

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Drafter
    from outrider.speculators.kinds.mtp.layer import MTPSpeculator

CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".prob_scale")
"""KV cache scales that vLLM allocates for FP8; checkpoints lack them."""

NEXTN = "NextN"
"""How the architecture ends of a layer that was exported for SGLang, with other tensor names."""


class MTP(TrainableKind):
    """One decoder layer over the next token's embedding and the final state."""

    name = "mtp"
    in_words = "an MTP layer"
    directory_in_words: str | None = (
        "an MTP directory (the target's config.json, with num_nextn_predict_layers, and the"
        " tensors of its MTP layer)"
    )
    trains: frozenset[TrainedParameters] = frozenset(("all", "non_routed", "lora"))
    check = staticmethod(check_mtp)

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for the config.json of a target that has an MTP layer."""
        architecture = str(next(iter(config.get("architectures") or []), ""))
        is_export = architecture.endswith(NEXTN)
        return bool(config.get("num_nextn_predict_layers")) and not is_export

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """The target's config.json, which MTP directories contain."""
        return target_config

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """Only the state after the final norm."""
        return FeatureSpec((FeatureStream(FINAL_NORM, target_config["hidden_size"]),))

    def native(self, target_config: Mapping[str, Any]) -> bool:
        """True if the target ships an MTP layer; conversions often drop it."""
        return self.recognizes(target_config)

    def native_tensors(self, target: CheckpointLayout) -> set[str]:
        """Names of the layer's tensors, without copies of embedding and head."""
        return mtp_tensor_names(target)

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """Checks that target and base have a layer that training can read."""
        for directory in {Path(target_dir), Path(base_dir or target_dir)}:
            check_mtp_target(directory, config_only)

    def build(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> "MTPSpeculator":
        """The layer that the target's config.json describes."""
        from outrider.speculators.kinds.mtp.layer import MTPSpeculator

        try:
            return MTPSpeculator(target_config)
        except KeyError as missing:
            raise OutriderError(
                f"{source}: no {missing.args[0]}, which the shape of the MTP layer depends on;"
                " point target.model at a complete checkpoint with a multi-token prediction layer"
                " (DeepSeek-V3, R1 and GLM-4.5 have one)"
            ) from None

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "MTPSpeculator":
        """Loads the layer; FP8 weights are dequantized."""
        from outrider.speculators.kinds.mtp.checkpoint import load_mtp

        return load_mtp(directory, dtype, device)

    def start(
        self, origin: Origin, dtype: "torch.dtype", device: "torch.device | str", seed: int
    ) -> "MTPSpeculator":
        """The base's layer, with the parameters of `speculator.train`."""
        from outrider.speculators.kinds.mtp.checkpoint import start_mtp

        return start_mtp(origin, dtype, device, seed)

    def trained_tensors(
        self, drafter: "Drafter", state: Mapping[str, "Tensor"]
    ) -> Iterator[tuple[str, "Tensor"]]:
        """Yields the trained weights, named without the layer's prefix."""
        from outrider.speculators.kinds.mtp.checkpoint import trained_mtp_tensors

        return trained_mtp_tensors(cast("MTPSpeculator", drafter), state)

    def write(self, changed: Iterable[tuple[str, "Tensor"]], origin: Origin, out_dir: Path) -> None:
        """Publishes the changed tensors, and the base's bytes of all others."""
        from outrider.speculators.kinds.mtp.checkpoint import write_mtp

        write_mtp(changed, origin, out_dir)

    def write_other_formats(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """Writes `sglang_nextn`, SGLang's format."""
        from outrider.speculators.kinds.mtp.checkpoint import write_nextn

        write_nextn(directory, out_dir)

    def swap_tensors(self, directory: Path) -> Iterator[tuple[str, "Tensor"]]:
        """Yields the layer's tensors, without copies of embedding and head."""
        from outrider.speculators.kinds.mtp.checkpoint import mtp_swap_tensors

        return mtp_swap_tensors(directory)

    def stays_with_target(self, name: str) -> bool:
        """True for embedding, head and KV cache scales."""
        return is_shared(name) or name.endswith(CACHE_SCALES)
