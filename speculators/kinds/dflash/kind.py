"""DFlash heads: a block of mask slots that attends to projected states of the target.

    kind = DFlash()
    kind.vllm_settings(directory, 5, "greedy", None)     # method dflash

Like a P-EAGLE head it drafts all K tokens in one pass and reads no draft. Its context is made of
the target's states alone: keys and values of fc over the auxiliary layers, without tokens and
without queries. Its block is not causal: every slot attends to the context and to all K + 1 slots,
so the drafts depend on K, and a step with fewer drafts would have other ones.

It is stored as an EAGLE-3 head is, with other names and another config.json, and has one layer. The
other files: dflash/shape.py (config.json), dflash/layer.py (the module), dflash/size.py (sizing),
dflash/twin.py (the format of vllm-project/speculators).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.checks import check_header_shape
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.dflash.shape import (
    is_dflash,
    plain_config,
    read_shape,
    tensor_names,
)
from outrider.speculators.kinds.dflash.size import dflash_size
from outrider.speculators.kinds.eagle3.check import check_head
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.eagle3.tensors import T2D
from outrider.speculators.kinds.protocol import Abilities, KPerBatchSize
from outrider.speculators.kinds.vllm_settings import directory_settings
from outrider.speculators.size import DrafterSize

if TYPE_CHECKING:
    from outrider.speculators.kinds.eagle3.layer import StoredHead

MASK_EMBEDDING = "mask_embedding"
"""vLLM's embedding of the mask token, unused unless a directory has mask_embedding.pt."""


class DFlash(Eagle3):
    """A head that drafts a block of tokens at once over the target's states."""

    name = "dflash"
    in_words = "a DFlash head"
    directory_in_words: str | None = (
        "a DFlash checkpoint (config.json with dflash_config, and the weights of one layer)"
    )
    abilities = Abilities(
        exact_replay=True,
        draft_parity=True,
        live_swap=True,
        drafts_every_step=True,
        fixed_k=True,
        one_block=True,
    )
    head_keys: frozenset[str] = frozenset(("layers", "draft_vocabulary", "intermediate_size"))

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """A DFlash architecture, section or `speculators_model_type`."""
        return is_dflash(config)

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """One layer, vocabulary, widths, layers of the target, shapes, and finiteness."""
        path = Path(directory) / "config.json"
        shape = self.shape(read_json(path), target.config, path)
        if (Path(directory) / f"{MASK_EMBEDDING}.pt").exists():
            raise OutriderError(
                f"{Path(directory) / MASK_EMBEDDING}.pt: an embedding of the mask token of its own;"
                " Outrider reads the target's embedding only. Name a head without one"
            )
        found, hidden = tensor_headers(directory), shape.hidden
        for name, rows in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
            wanted = (rows * shape.head_dim, hidden)
            check_header_shape(found, f"self_attn.{name}.weight", wanted, path, self.in_words)
        check_head(directory, target, self.in_words, len(shape.layers))

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's method `dflash`. A schedule of drafts is refused."""
        if k_per_batch_size:
            raise OutriderError(
                f"{self.in_words} drafts {k} tokens in every step: its slots attend to each other,"
                " so fewer of them draft other tokens than were measured; leave the schedule out"
                " (export.k_per_batch_size: false)"
            )
        return directory_settings(self.name, directory, k, draft_sample_method, None)

    def new_config(
        self, target_config: Mapping[str, Any], head: HeadConfig, drafts: int
    ) -> dict[str, Any]:
        """config.json of a head from scratch over so many draft tokens, in the plain layout."""
        return plain_config(target_config, head, drafts)

    def module(self) -> "type[StoredHead]":
        """Class of the head as a module."""
        from outrider.speculators.kinds.dflash.layer import DFlashHead

        return DFlashHead

    def shape(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> EagleShape:
        """The shape of a head with this config.json."""
        return read_shape(config, target_config, source)

    def names(self, stored: Iterable[str]) -> dict[str, str]:
        """The stored name of each tensor by the module's name for it."""
        return tensor_names(stored)

    def size_of(self, shape: EagleShape) -> DrafterSize:
        """Parameters, activations and FLOPs of a head of this shape."""
        return dflash_size(shape, self.module())

    def write_twins(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """`speculators`: the format of vllm-project/speculators."""
        from outrider.speculators.kinds.dflash.twin import write_twin

        target_config = read_json(Path(target_dir) / "config.json")
        write_twin(directory, target_config, target, drafts, out_dir / "speculators")

    def swappable(self, one: Path, other: Path) -> bool:
        """Heads of equal shape over the same states; tokens of the draft vocabulary may differ."""

        def described(directory: Path) -> tuple[object, ...]:
            config, headers = read_json(directory / "config.json"), tensor_headers(directory)
            layers = {"num_hidden_layers": 10**6}  # the target is not known here
            shapes = {
                name: headers[stored].shape
                for name, stored in tensor_names(headers).items()
                if name != T2D
            }
            return self.shape(config, layers, directory / "config.json"), shapes

        return described(Path(one)) == described(Path(other))

    def stays_with_target(self, name: str) -> bool:
        """The embedding, and the mask token's, which is a row of it."""
        return super().stays_with_target(name) or name.endswith(MASK_EMBEDDING)
