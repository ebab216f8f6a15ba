"""EAGLE-3 heads: one layer over auxiliary states of the target.

    kind = Eagle3()
    kind.features(config, target_config).names       # layer_2, layer_8, layer_13
    kind.load(directory, target_dir, torch.float32)

Like an MTP layer, a head drafts token by token, but with a dense MLP and its own, often smaller
vocabulary. It is trained from scratch or from an existing head. The first draft reads target
states through fc; later drafts read the head's own state. Subclasses for other heads of this format
override the methods of `HeadKind` (eagle3/checkpoint.py).

Other files: eagle3/shape.py (config.json, names), eagle3/check.py (compatibility), eagle3/layer.py
(the module), eagle3/checkpoint.py (reading, writing, start of training).
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.architectures import architecture_of, check_keys
from outrider.speculators.checkpoints.layout import INDEX, SINGLE, CheckpointLayout, read_layout
from outrider.speculators.checkpoints.model_config import read_config, read_head_config
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.features import FeatureSpec, FeatureStream, layer_name
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.check import (
    TAKEN_FOR_MTP,
    check_embedding,
    check_head,
    check_own_rows,
)
from outrider.speculators.kinds.eagle3.loadable import architecture_refusals, layer_refusals
from outrider.speculators.kinds.eagle3.shape import (
    DEFAULT_AUX_STATES,
    EMBEDDING,
    LAYER_IDS,
    OF_LATENT_ATTENTION,
    T2D,
    EagleShape,
    auxiliary_layers,
    check_layers,
    check_width,
    completed_config,
    eagle_checkpoint_names,
    is_latent,
    layer_config,
    plain_eagle_config,
    twin_config,
)
from outrider.speculators.kinds.protocol import Origin, TrainableKind

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Drafter
    from outrider.speculators.kinds.eagle3.layer import StoredHead

NEEDED = ("intermediate_size", "rms_norm_eps", "max_position_embeddings")
"""Further keys of the target's config.json that define a new head's shape."""


class Eagle3(TrainableKind):
    """A head over auxiliary target states, often with a smaller vocabulary."""

    name = "eagle3"
    in_words = "an EAGLE-3 head"
    directory_in_words: str | None = (
        "an EAGLE-3 checkpoint (config.json with draft_vocab_size or an Eagle3 architecture, and"
        " its weights)"
    )
    head_keys: frozenset[str] = frozenset(HeadConfig.model_fields)

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> EagleShape:
        """Reads the shape of the head whose config.json is at `path`."""
        return EagleShape.read(config, target_config, path)

    def new_module(self, shape: EagleShape, target_ids_D: "Tensor | None") -> "StoredHead":
        """The module, without initial weights; without ids, it drafts the whole vocabulary."""
        from outrider.speculators.kinds.eagle3.layer import EagleHead

        return EagleHead(shape, target_ids_D)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json (plain layout) of a new head; `drafts`: draft vocabulary size."""
        return plain_eagle_config(target_config, head, drafts)

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """Maps tensor names in the module to stored names."""
        return eagle_checkpoint_names(stored)

    def speculators_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], target: str, drafts: int
    ) -> dict[str, Any] | None:
        """config.json in the format of vllm-project/speculators; None if unsupported."""
        return twin_config(config, target_config, target, drafts)

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for a config.json with an Eagle3 architecture or a draft vocabulary.

        EAGLE's authors name the architecture of the target's class. Block drafters, such as a
        DominoDraftModel, may have a draft vocabulary too.
        """
        architectures = config.get("architectures") or []
        if config.get("speculators_model_type") is not None:
            return config["speculators_model_type"] == "eagle3"
        if any("eagle3" in name.lower() for name in architectures):
            return True
        of_target = all(name.endswith("ForCausalLM") for name in architectures)
        return "draft_vocab_size" in config and of_target

    def load_refusals(self, directory: Path) -> list[str]:
        """Refuses unknown classes, and weights of other layers than config.json's."""
        config = read_head_config(directory / "config.json")
        return [*architecture_refusals(config), *layer_refusals(directory, config)]

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Checks vocabulary, widths, auxiliary layers, shapes, token map and finiteness."""
        self.check_loadable(directory)
        path = directory / "config.json"
        config = read_head_config(directory / "config.json")
        if config.get("model_type") in TAKEN_FOR_MTP:
            raise OutriderError(
                f"{path}: model_type = {config['model_type']}, with which vLLM would load this"
                " EAGLE-3 head as an MTP layer; an EAGLE-3 head with DeepSeek's attention has"
                ' model_type "deepseek_v2"'
            )
        count = target.config["num_hidden_layers"]
        layers = auxiliary_layers(config, count, path)
        if layers:
            check_layers(layers, count, f"{path}: {LAYER_IDS}")
        check_head(directory, target, self.in_words, len(layers) if layers else DEFAULT_AUX_STATES)

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """The base's config.json, or a new one in the plain layout."""
        drafts = head.planned_vocabulary(target_config["vocab_size"])
        return base_config or self.new_config(target_config, head, drafts)

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The residual streams that the head reads, in the engine's order."""
        shape = self.shape(config, target_config, "config.json")
        return FeatureSpec(
            tuple(FeatureStream(layer_name(index), shape.target_hidden) for index in shape.layers)
        )

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """True if the head has DeepSeek's attention."""
        return is_latent(config)

    def can_fit_start(self, config: Mapping[str, Any]) -> bool:
        """True for a head that drafts token by token, if closed_form.py fits its shape."""
        return not self.fixed_k and self.shape(config, layer_config(config), "config.json").fits

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """Checks that the target has the needed keys and that the base fits."""
        target_path = Path(target_dir) / "config.json"
        target_config = read_config(target_path)
        if not architecture_of(target_config, target_path).returns_states:
            raise OutriderError(
                f"{target_path}: architectures = {target_config['architectures']}: vLLM 0.32 does"
                f" not return the states of its layers, which {self.in_words} reads; train its MTP"
                " layer instead (speculator.kind: mtp), with a checkpoint that has one,"
                " unquantized or in DeepSeek's FP8"
            )
        check_keys(target_config, target_path, self.in_words, NEEDED)
        if base_dir is not None:
            self.check_loadable(base_dir)
            path = Path(base_dir) / "config.json"
            config = read_head_config(path)
            check_width(self.shape(config, target_config, path), path)
            count = target_config["num_hidden_layers"]
            if layers := auxiliary_layers(config, count, path):
                check_layers(layers, count, f"{path}: {LAYER_IDS}")
            if any((Path(base_dir) / name).is_file() for name in (INDEX, SINGLE)):
                check_own_rows(Path(base_dir))

    def check_unrolled(self, directory: Path, target_dir: Path) -> None:
        """Checks that the head has its own lm_head, and the target's embedding or none."""
        check_own_rows(directory)
        check_embedding(directory, read_layout(target_dir))

    def served_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> Mapping[str, Any]:
        """config.json with the layers where all engines read them."""
        return completed_config(config, target_config, path)

    def build(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> "StoredHead":
        """Builds the head for `config`; the lowest ids are placeholder draft tokens."""
        import torch

        shape = self.shape(config, target_config, source)
        return self.new_module(shape, torch.arange(shape.drafts))

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "StoredHead":
        """Loads the head of a directory in either layout."""
        from outrider.speculators.kinds.eagle3.checkpoint import load_head

        return load_head(
            self, directory=directory, target_dir=target_dir, dtype=dtype, device=device
        )

    def start(
        self, origin: Origin, dtype: "torch.dtype", device: "torch.device | str", seed: int
    ) -> "StoredHead":
        """The base's head, or a new one, fitted to `origin.rows` if they are given."""
        from outrider.speculators.kinds.eagle3.checkpoint import start_head

        return start_head(self, origin=origin, dtype=dtype, device=device, seed=seed)

    def trained_tensors(
        self, drafter: "Drafter", state: Mapping[str, "Tensor"]
    ) -> Iterator[tuple[str, "Tensor"]]:
        """Yields (name in the plain layout, tensor), including the draft vocabulary."""
        from outrider.speculators.kinds.eagle3.checkpoint import trained_head_tensors

        return trained_head_tensors(cast("StoredHead", drafter), state)

    def write(self, changed: Iterable[tuple[str, "Tensor"]], origin: Origin, out_dir: Path) -> None:
        """Publishes the head, in the base's layout if there is a base."""
        from outrider.speculators.kinds.eagle3.checkpoint import write_head

        write_head(self, changed, origin, out_dir)

    def write_other_formats(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """Writes `speculators`, the format of vllm-project/speculators, if it supports the head."""
        from outrider.speculators.kinds.eagle3.checkpoint import write_for_speculators

        write_for_speculators(
            self,
            directory=directory,
            target_dir=target_dir,
            target=target,
            drafts=drafts,
            out_dir=out_dir,
        )

    def swap_tensors(self, directory: Path) -> Iterator[tuple[str, "Tensor"]]:
        """Yields (stored name, tensor) of the head and d2t, without the embedding."""
        from outrider.speculators.kinds.eagle3.checkpoint import head_swap_tensors

        return head_swap_tensors(self, directory)

    def swappable(self, first: Path, second: Path) -> bool:
        """True if shapes and target layers are equal; draft tokens may differ."""

        def described(directory: Path) -> tuple[object, ...]:
            path = directory / "config.json"
            headers = tensor_headers(directory)
            config = read_head_config(path)
            layer = layer_config(config)
            shape = self.shape(config, {"num_hidden_layers": 10**6}, path)  # allows any layer
            latent = {key: layer.get(key) for key in OF_LATENT_ATTENTION}
            names = self.names(headers).items()
            shapes = {name: headers[stored].shape for name, stored in names if name != T2D}
            # An engine that was started without this key may capture other layers than the shape's.
            for_vllm = bool(config.get(LAYER_IDS))
            return shape, latent, shapes, for_vllm

        try:
            return described(Path(first)) == described(Path(second))
        except OutriderError:  # a head that can be served but not unrolled
            return False

    def stays_with_target(self, name: str) -> bool:
        """True for the embedding."""
        return name.endswith(EMBEDDING)
