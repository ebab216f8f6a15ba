"""EAGLE-3 heads: one layer over auxiliary states of the target, with its own head rows.

    kind = Eagle3()
    kind.features(config, target_config).names       # layer_2, layer_8, layer_13
    kind.load(directory, target_dir, torch.float32)

A head drafts a chain like an MTP layer, with a smaller vocabulary and a dense MLP. It is trained
from scratch, or from a head that is given. The first draft reads fc over states of the target, the
next ones the head's own state.

Other heads that are stored alike are subclasses; they state their `shape`, `module`, `new_config`
and `names`.

The other files of the kind: eagle3/shape.py (config.json, names), eagle3/check.py (compatibility),
eagle3/layer.py (the module), eagle3/checkpoint.py (reading, writing, start of training).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.features import FeatureSpec
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.check import check_eagle3, check_eagle3_target
from outrider.speculators.kinds.eagle3.shape import (
    DEEPSEEK_MODEL_TYPES,
    EMBEDDING,
    OF_LATENT_ATTENTION,
    T2D,
    EagleShape,
    checkpoint_names,
    layer_config,
    plain_config,
    twin_config,
)
from outrider.speculators.kinds.protocol import Abilities, Origin, TrainableKind, TrainedParts

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Drafter
    from outrider.speculators.kinds.eagle3.layer import StoredHead


class Eagle3(TrainableKind):
    """A head over auxiliary states of the target, often with a smaller vocabulary."""

    name = "eagle3"
    in_words = "an EAGLE-3 head"
    directory_in_words: str | None = (
        "an EAGLE-3 checkpoint (config.json with draft_vocab_size or an Eagle3 architecture, and"
        " its weights)"
    )
    abilities = Abilities(draft_parity=True, live_swap=True, drafts_every_step=True)
    head_keys: frozenset[str] = frozenset(HeadConfig.model_fields)

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

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """The base's, or one in the plain layout."""
        drafts = head.planned_vocabulary(target_config["vocab_size"])
        return base_config or self.new_config(target_config, head, drafts)

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

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The residual stream before some layers."""
        return self.shape(config, target_config, "config.json").features()

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """As the head's attention is."""
        return layer_config(config).get("model_type") in DEEPSEEK_MODEL_TYPES

    def fitted(self, config: Mapping[str, Any]) -> bool:
        """With Llama's attention, where each draft reads the one before."""
        return not self.abilities.fixed_k and not self.latent_cache(config)

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """The target's config.json has the keys that fix a head, and the base fits."""
        check_eagle3_target(target_dir)
        if base_dir is not None:
            target_config = read_json(Path(target_dir) / "config.json")
            path = Path(base_dir) / "config.json"
            self.shape(read_json(path), target_config, path)

    def build(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> "StoredHead":
        """The head that its config.json describes, over its first draft tokens."""
        import torch

        shape = self.shape(config, target_config, source)
        return self.module()(shape, torch.arange(shape.drafts))

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "StoredHead":
        """Either published layout."""
        from outrider.speculators.kinds.eagle3.checkpoint import load_head

        return load_head(self, directory, target_dir, dtype, device)

    def start(
        self,
        origin: Origin,
        parts: TrainedParts,
        dtype: "torch.dtype",
        device: "torch.device | str",
        seed: int,
    ) -> "StoredHead":
        """The base's head, or a new one over the traffic's draft vocabulary."""
        from outrider.speculators.kinds.eagle3.checkpoint import start_head

        return start_head(self, origin, dtype, device, seed)

    def trained(
        self, drafter: "Drafter", state: "Mapping[str, Tensor]"
    ) -> "Iterator[tuple[str, Tensor]]":
        """Every weight, and the draft vocabulary."""
        from outrider.speculators.kinds.eagle3.checkpoint import trained_tensors

        return trained_tensors(cast("StoredHead", drafter), state)

    def write(self, changed: "Iterable[tuple[str, Tensor]]", origin: Origin, out_dir: Path) -> None:
        """In the layout of the base, or the plain one."""
        from outrider.speculators.kinds.eagle3.checkpoint import write_head

        write_head(self, changed, origin, out_dir)

    def write_other_formats(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """`speculators`: the format of vllm-project/speculators, where it has such a head."""
        from outrider.speculators.kinds.eagle3.checkpoint import publish_twin

        config = read_json(directory / "config.json")
        target_config = read_json(Path(target_dir) / "config.json")
        if "speculators_model_type" not in config:
            twin = self.speculators_config(config, target_config, target, drafts)
            if twin is not None:
                publish_twin(directory, twin, out_dir / "speculators")

    def speculators_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
    ) -> dict[str, Any] | None:
        """config.json in that format; None where it has no such head, such as DeepSeek's."""
        return twin_config(config, target_config, target, drafts)

    def tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """Names in the plain layout; d2t is one of them."""
        from outrider.speculators.kinds.eagle3.checkpoint import read_head_tensors

        return read_head_tensors(self, directory)

    def swap_tensors(self, directory: Path) -> "Iterator[tuple[str, Tensor]]":
        """Head and d2t; the embedding stays the target's."""
        from outrider.speculators.kinds.eagle3.checkpoint import stored_head_tensors

        return stored_head_tensors(self, directory)

    def swappable(self, one: Path, other: Path) -> bool:
        """Heads of equal shape over the same states; tokens of the draft vocabulary may differ."""

        def described(directory: Path) -> tuple[object, ...]:
            path, headers = directory / "config.json", tensor_headers(directory)
            config = read_json(path)
            layer = layer_config(config)
            shape = self.shape(config, {"num_hidden_layers": 10**6}, path)  # of any target
            latent = {key: layer.get(key) for key in OF_LATENT_ATTENTION}
            names = self.names(headers).items()
            shapes = {name: headers[stored].shape for name, stored in names if name != T2D}
            return shape, latent, shapes

        try:
            return described(Path(one)) == described(Path(other))
        except OutriderError:  # a head that is served and not unrolled
            return False

    def stays_with_target(self, name: str) -> bool:
        """The embedding."""
        return name.endswith(EMBEDDING)
