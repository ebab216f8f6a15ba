"""The protocol of a drafter kind: everything that depends on the kind of speculator.

A kind is one module in this folder and one line in the registry (`__init__.py`). No code outside
this folder names a kind. There are two levels:

    DrafterKind     can be served and counted: how it is recognized, checked against the target,
                    and configured in vLLM
    TrainableKind   can also be captured for, trained, replayed, compared with the engine, sized
                    before training, and swapped in a live engine; it drafts in every step

Both are base classes with defaults, so that a kind states only what differs. The registry imports
no torch, so that `--help` and `--dry-run` start fast. What needs it is a function of the kind's
`checkpoint` module under the method's name, which is imported when the method is called.

How a trainable kind is used:

    config = kind.config(target_config, head, base)     of the speculator that is trained
    spec = kind.features(config, target_config)         capture: which states are stored
    kind.build(config, target_config, source)           --dry-run: the module on the meta device
    drafter = kind.start(origin, dtype, device, seed)   training: trainable parts as parameters
    drafter.unroll(ends, ...), drafter.head(ends)       drafter.py: loss, validation, replay, parity
    kind.write(kind.trained(drafter, state), origin, out_dir)
    kind.load(out_dir, target_dir, dtype, device)       replay, draft parity, export check
    kind.vllm_settings(out_dir, k, ...)                 serving
    kind.swap_tensors(out_dir)                          swapping the drafter of a live engine

Teacher and draft are separate: the teacher is the target's head over the full vocabulary
(`TargetEnds`), the draft's head (`DraftHead`) may be trained and may cover fewer tokens.

Shapes: T tokens, N anchors, K depths.
"""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.features import FeatureSpec
from outrider.speculators.head_config import HeadConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Batch, Drafter

TrainedParameters = Literal["all", "non_routed", "lora"]
"""Trained weights: all, all but the routed experts, or these with low-rank adapters."""

KPerBatchSize = Sequence[tuple[int, int, int]]
"""(first batch size, last batch size, drafts) of each range."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a drafter is trained for, and what it starts from."""

    target_dir: Path
    base_dir: Path | None
    """Directory of a speculator of the same kind to start from; None: training from scratch."""
    head: HeadConfig = dataclasses.field(default_factory=HeadConfig)
    """Shape of a head from scratch."""
    token_counts: "Callable[[], Tensor] | None" = None
    """How often each token of the target's vocabulary occurs in the responses that are trained
    on, [V]: what a draft vocabulary is chosen from. None if no traffic is at hand."""
    rows: "Callable[[], Iterable[Batch]] | None" = None
    """The training part's rows, in the same order every time, on the device of the speculator: what
    it is fitted to if it starts from scratch. None: it starts with random weights."""
    train: TrainedParameters = "all"
    lora_rank: int = 16
    """Rank of the adapters of `lora`."""


class DrafterKind:
    """A kind that can be served, counted and checked."""

    name: str
    """The value of `speculator.kind`, of reports, and vLLM's method."""
    in_words: str
    """The kind in a sentence, such as `an MTP layer`."""
    directory_in_words: str | None = None
    """How a directory of this kind looks; None for a kind without weights, which is named."""
    fixed_k = False
    """Every step drafts as many tokens as the engine was started for. The engine cannot draft
    another number in a step, so it has no schedule by batch size."""
    one_block = False
    """Drafts of a step attend to each other, so fewer of them are different drafts. Replay is
    exact for the number that was unrolled, `speculator.depth`, and for no smaller one."""
    needs_v2 = False
    """vLLM has it in model runner V2 alone, which needs a GPU."""

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for the config.json of a directory of this kind."""
        return False

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Raises an `OutriderError` with file, key, value and fix for another target's speculator.

        Reads config.json, safetensors headers and, for finiteness and copies, the values.
        """

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's `speculative_config` for `k` drafts a step; None for no speculation."""
        settings: dict[str, Any] = {
            "method": self.name,
            "num_speculative_tokens": k,
            "model": str(directory),
            "draft_sample_method": draft_sample_method,
        }
        if k_per_batch_size:
            if self.fixed_k:
                raise OutriderError(
                    f"{self.in_words} drafts {k} tokens in every step, and a batch size with fewer"
                    " ends vLLM 0.32 or drafts other tokens than were measured; leave the schedule"
                    " out (export.k_per_batch_size: false)"
                )
            schedule = [list(row) for row in k_per_batch_size]
            settings["num_speculative_tokens_per_batch_size"] = schedule
        return settings


class TrainableKind(DrafterKind):
    """A kind that Outrider captures for, trains, replays, sizes and swaps."""

    head_keys: frozenset[str] = frozenset()
    """Keys of `speculator.head` that a speculator from scratch reads; others are refused."""
    trains: frozenset[TrainedParameters] = frozenset(("all",))
    """Values of `speculator.train` that the kind can do."""
    checkpoint: str
    """Import path of the module that reads and writes its weights."""

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """config.json of the speculator that is trained, before it exists.

        It is that of the base where training starts from one of the kind. A draft vocabulary that
        the traffic decides has a planned size.
        """
        raise NotImplementedError

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The target's states that a speculator with this config.json reads."""
        raise NotImplementedError

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """Whether a speculator with this config.json keeps MLA's form of cache.

        None: the target's, whichever it is.
        """
        return None

    def fitted(self, config: Mapping[str, Any]) -> bool:
        """Whether a speculator from scratch with this config.json is fitted to `Origin.rows`."""
        return False

    def native(self, target_config: Mapping[str, Any]) -> bool:
        """True if the target itself ships a speculator of this kind."""
        return False

    def native_tensors(self, target: CheckpointLayout) -> set[str]:
        """Names of the target's tensors that belong to its own speculator of this kind."""
        return set()

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """Raises an `OutriderError` if training cannot start from this target and base.

        With `config_only` the weights need not be there (`--dry-run`).
        """

    def build(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> "Drafter":
        """The module of a speculator with this config.json, without weights.

        Raises an `OutriderError` if `source` (the target's config.json) lacks keys.
        """
        raise NotImplementedError

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: "torch.dtype",
        device: "torch.device | str" = "cpu",
    ) -> "Drafter":
        """The drafter of a directory, with every weight loaded and finite."""
        return self._weights.load(self, directory, target_dir, dtype, device)

    def start(
        self, origin: Origin, dtype: "torch.dtype", device: "torch.device | str", seed: int
    ) -> "Drafter":
        """The drafter that training starts with; its parameters are what is trained."""
        return self._weights.start(self, origin, dtype, device, seed)

    def trained(
        self, drafter: "Drafter", state: Mapping[str, "Tensor"]
    ) -> Iterator[tuple[str, "Tensor"]]:
        """(checkpoint name, tensor) of what training may have changed, adapters merged.

        `state` is the drafter's whole state dict: under ZeRO-3 the module itself holds shards.
        """
        return self._weights.trained(drafter, state)

    def write(self, changed: Iterable[tuple[str, "Tensor"]], origin: Origin, out_dir: Path) -> None:
        """Publishes a directory that the engine loads, atomically.

        Tensors that are not in `changed`, or equal in value, keep the bytes of the base.
        """
        self._weights.write(self, changed, origin, out_dir)

    def write_other_formats(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """Writes the directory in other formats that people load, a folder of `out_dir` for each.

        `target` is the target's name or path, `drafts` the number to draft. Folders are named after
        the format; none where the format has no such drafter.
        """
        self._weights.write_other_formats(self, directory, target_dir, target, drafts, out_dir)

    def swap_tensors(self, directory: Path) -> Iterator[tuple[str, "Tensor"]]:
        """(name, tensor as stored) that a live engine's drafter loads."""
        return self._weights.swap_tensors(self, directory)

    def swappable(self, one: Path, other: Path) -> bool:
        """True if an engine that was started with one directory can load the other."""
        return True

    def stays_with_target(self, name: str) -> bool:
        """True for a parameter of the engine's drafter that is not swapped: the target's own."""
        return False

    @property
    def _weights(self) -> Any:
        return importlib.import_module(self.checkpoint)
