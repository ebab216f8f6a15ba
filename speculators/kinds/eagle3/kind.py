"""EAGLE-3 heads: one layer over auxiliary states of the target, with rows of its own.

    kind = Eagle3()
    kind.features(config, target_config).names       # layer_2, layer_8, layer_13
    kind.load(directory, target_dir, torch.float32)

A head drafts a chain like an MTP layer, with a smaller vocabulary and a dense MLP. It is trained
from scratch, or from a head that is given. The first draft reads fc over states of the target, the
next ones the head's own state.

The other files of the kind: eagle3/shape.py (config.json), eagle3/tensors.py (names),
eagle3/check.py (compatibility), eagle3/size.py (sizing), eagle3/layer.py
(the module), eagle3/checkpoint.py (reading and writing), eagle3/start.py (how training starts).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import CheckpointLayout, weight_map
from outrider.speculators.features import FeatureSpec
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.check import (
    check_eagle3,
    check_eagle3_target,
    same_head,
)
from outrider.speculators.kinds.eagle3.shape import (
    DEEPSEEK_MODEL_TYPES,
    EagleShape,
    layer_config,
    plain_config,
)
from outrider.speculators.kinds.eagle3.size import eagle_size
from outrider.speculators.kinds.eagle3.tensors import EMBEDDING, T2D, checkpoint_names
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
    from outrider.speculators.kinds.eagle3.checkpoint import HeadFormat
    from outrider.speculators.kinds.eagle3.layer import StoredHead


class Eagle3:
    """A head over auxiliary states of the target, often with a smaller vocabulary."""

    name = "eagle3"
    in_words = "an EAGLE-3 head"
    directory_in_words: str | None = (
        "an EAGLE-3 checkpoint (config.json with draft_vocab_size or an Eagle3 architecture, and"
        " its weights)"
    )
    abilities = Abilities(
        exact_replay=True, draft_parity=True, live_swap=True, drafts_every_step=True
    )
    head_keys: frozenset[str] = frozenset(HeadConfig.model_fields)
    trains: frozenset[TrainedParameters] = frozenset(("all",))

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """A head has an Eagle3 architecture or a draft vocabulary."""
        architectures = config.get("architectures") or []
        return (
            any("eagle3" in name.lower() for name in architectures)
            or config.get("speculators_model_type") == "eagle3"
            or "draft_vocab_size" in config
        )

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Vocabulary, widths, auxiliary layers, shapes, the map of tokens, and finiteness."""
        check_eagle3(directory, target, self.in_words)

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `eagle3`."""
        return directory_settings(self.name, directory, k, draft_sample_method, k_per_batch_size)

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """The base's, or one in the plain layout."""
        if base_config is not None:
            return base_config
        drafts = head.planned_vocabulary(target_config["vocab_size"])
        return self.new_config(target_config, head, drafts)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json of a head from scratch over so many draft tokens, in the plain layout."""
        return plain_config(target_config, head, drafts)

    def module(self) -> "type[StoredHead]":
        """Class of the head as a module."""
        from outrider.speculators.kinds.eagle3.layer import EagleHead

        return EagleHead

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> EagleShape:
        """The shape of a head with this config.json."""
        return EagleShape.read(config, target_config, source)

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """The stored name of each tensor by the module's name for it."""
        return checkpoint_names(stored)

    def form(self) -> "HeadFormat":
        """What differs from other kinds of head that are stored alike."""
        from outrider.speculators.kinds.eagle3.checkpoint import HeadFormat

        return HeadFormat(self.module(), self.shape, self.new_config, self.names)

    def size_of(self, shape: EagleShape) -> DrafterSize:
        """Parameters, activations and FLOPs of a head of this shape."""
        return eagle_size(shape, self.module())

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The residual stream before some layers."""
        return self.shape(config, target_config, "config.json").features()

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """As the head's attention is."""
        return layer_config(config).get("model_type") in DEEPSEEK_MODEL_TYPES

    def native(self, target_config: Mapping[str, Any]) -> bool:
        """No target ships a head."""
        return False

    def native_tensors(self, target: CheckpointLayout) -> set[str]:
        """None."""
        return set()

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """The target's config.json has the keys that fix a head, and the base fits."""
        check_eagle3_target(target_dir)
        if base_dir is not None:
            target_config = read_json(Path(target_dir) / "config.json")
            path = Path(base_dir) / "config.json"
            self.shape(read_json(path), target_config, path)

    def size(
        self,
        config: Mapping[str, Any],
        target_config: Mapping[str, Any],
        source: object = "config.json",
    ) -> DrafterSize:
        """Counted from the head's config.json."""
        return self.size_of(self.shape(config, target_config, source))

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "StoredHead":
        """Either published layout."""
        from outrider.speculators.kinds.eagle3.checkpoint import load_eagle3

        return load_eagle3(directory, target_dir, dtype, device, self.form())

    def start(
        self,
        origin: Origin,
        parts: TrainedParts,
        dtype: "torch.dtype",
        device: "torch.device | str",
        seed: int,
    ) -> "StoredHead":
        """The base's head, or a new one over the traffic's draft vocabulary."""
        from outrider.speculators.kinds.eagle3.start import start_eagle3

        return start_eagle3(origin, dtype, device, seed, self.form())

    def trained(
        self, drafter: "Drafter", state: "Mapping[str, Tensor]"
    ) -> "Iterator[tuple[str, Tensor]]":
        """Every weight, and the draft vocabulary."""
        from outrider.speculators.kinds.eagle3.checkpoint import trained_tensors

        return trained_tensors(cast("StoredHead", drafter), state)

    def write(self, changed: "Iterable[tuple[str, Tensor]]", origin: Origin, out_dir: Path) -> None:
        """In the layout of the base, or the plain one."""
        from outrider.speculators.kinds.eagle3.checkpoint import write_eagle3

        write_eagle3(changed, origin, out_dir, self.form())

    def write_twins(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """`speculators`: the format of vllm-project/speculators, for Llama's attention."""
        from outrider.speculators.kinds.eagle3.twin import write_twin

        target_config = read_json(Path(target_dir) / "config.json")
        write_twin(directory, target_config, target, drafts, out_dir / "speculators")

    def tensor_names(self, directory: Path) -> set[str]:
        """Names in the plain layout, without t2d, which follows from d2t."""
        return self.names(weight_map(Path(directory))).keys() - {T2D}

    def tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """Names in the plain layout; d2t is one of them."""
        from outrider.speculators.kinds.eagle3.checkpoint import read_eagle3_tensors

        return read_eagle3_tensors(directory, self.form())

    def swap_tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """Head and d2t; the embedding stays the target's."""
        from outrider.speculators.kinds.eagle3.checkpoint import stored_eagle3_tensors

        return stored_eagle3_tensors(directory, self.form())

    def swappable(self, one: Path, other: Path) -> bool:
        """Heads of equal shape over the same states; tokens of the draft vocabulary may differ."""
        return same_head(one, other)

    def stays_with_target(self, name: str) -> bool:
        """The embedding."""
        return name.endswith(EMBEDDING)
