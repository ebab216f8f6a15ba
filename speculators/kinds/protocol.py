"""The protocol of drafter kinds: everything that depends on the kind.

A kind is a class in this folder and an entry in the registry (`__init__.py`). No code outside
this folder names a kind. There are three levels:

    DrafterKind     can be served and measured; defines how it is recognized, checked against the
                    target, and configured in vLLM
    WeightlessKind  drafts from the text alone; can also be replayed, without states
    TrainableKind   can also be trained on captured states, replayed, compared with the engine,
                    sized before training, and swapped in a live engine; it drafts in every step

All are base classes with defaults, so a kind defines only what differs. The registry does not
import torch, so `--help` and `--dry-run` start fast. A method that needs torch or vLLM imports it
inside, and so does a method that needs a module which imports torch.

How a trainable kind is used:

    config = kind.config(target_config, head, base)     config.json of the speculator to train
    spec = kind.features(config, target_config)         capture: which states are stored
    kind.build(config, target_config, source)           --dry-run: the module on the meta device
    drafter = kind.start(origin, dtype, device, seed)   training: trainable parts as parameters
    drafter.unroll(ends, ...), drafter.head(ends)       drafter.py: loss, validation, replay, parity
    kind.write(kind.trained_tensors(drafter, state), origin, out_dir)
    kind.load(out_dir, target_dir, dtype, device)       replay, draft parity, export check
    kind.vllm_settings(out_dir, k, ...)                 serving
    kind.swap_tensors(out_dir)                          swapping the drafter of a live engine

Teacher and draft are separate: the teacher is the target's head over the full vocabulary
(`TargetEnds`); the draft's head (`DraftHead`) may be trained and may cover fewer tokens.

Shapes: T tokens, A or N anchors, K depths.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.features import FeatureSpec
from outrider.speculators.head_config import HeadConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from outrider.speculators.kinds.drafter import Batch, Drafter
    from outrider.speculators.lookup_history import EarlierResponse

TrainedParameters = Literal["all", "non_routed", "lora"]
"""Trained weights: all, non-routed, or non-routed plus adapters on routed experts."""

KPerBatchSize = Sequence[tuple[int, int, int]]
"""(first batch size, last batch size, drafts per step) of each batch size range."""

NO_DRAFT = -1
"""Token id for no draft."""

MOST_LOOKED_UP = 24
"""Largest number of drafts per step of a lookup: vLLM's default `suffix_decoding_max_tree_depth`
(vllm/config/speculative.py:505, vLLM 0.32)."""

Settings = Mapping[str, float]
"""Keys of vLLM's `speculative_config` that change what a lookup drafts, other than K."""

Runner = Literal["v1", "v2"]
"""vLLM's model runner, which decides which algorithm a lookup runs."""


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A lookup as an engine serves it: all that its drafts depend on except text and K."""

    kind: str
    settings: Settings = dataclasses.field(default_factory=dict)
    """Those that differ from the kind's `default_settings`."""
    history: Path | None = None
    """File of earlier responses that are searched, too (`prepare`)."""
    runner: Runner = "v1"
    tenant: str = ""
    """Tenant of the request, as logged; empty if none was."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The target, base and traffic that training starts from."""

    target_dir: Path
    base_dir: Path | None
    """Directory of a speculator of the same kind; None to start from scratch."""
    head: HeadConfig = dataclasses.field(default_factory=HeadConfig)
    """Shape of a new head."""
    token_counts: "Callable[[], Tensor] | None" = None
    """Counts each target token in parts of the training responses, [F, V]; None without traffic."""
    rows: "Callable[[], Iterable[Batch]] | None" = None
    """Returns training rows for fitting a new speculator; None for random weights.
    They are on the speculator's device and always in the same order."""
    train: TrainedParameters = "all"
    lora_rank: int = 16
    """Rank of the `lora` adapters."""
    refit: bool = False
    """Whether to keep only the base's shape, and fit new weights to `rows`."""


class DrafterKind:
    """A kind that can be checked, served and measured."""

    name: str
    """Name in `speculator.kind` and in reports, and by default vLLM's method."""
    in_words: str
    """A noun phrase for messages, such as `an MTP layer`."""
    first_release = "0.13.0"
    """The first of the vLLM releases read (serving/releases.py) whose configuration accepts it."""
    directory_in_words: str | None = None
    """Description of the kind's directories; None for a kind without weights."""
    source_of_drafts = ""
    """For a kind without weights, what it drafts."""
    serving_note = ""
    """A sentence on what a server needs for the kind in addition to vLLM."""
    package = ""
    """The package that vLLM needs for the kind and `install_package` installs; empty for none."""
    has_weights = True
    """False if there is nothing to train."""
    default_settings: ClassVar[Settings] = {}
    """Settings of a lookup's engine for which none are chosen."""
    speculates = True
    """False if the engine drafts nothing."""
    fixed_k = False
    """True if K is fixed at engine start, whatever the batch size."""
    one_block = False
    """True if drafts attend to each other and thus depend on K.
    Replay is then exact for `speculator.depth` drafts, but not for fewer."""
    only_runner: Runner | None = None
    """The only model runner of vLLM that drafts with the kind; None if both do."""

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        """True for the config.json of a directory of this kind."""
        return False

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Raises an `OutriderError` if the directory does not fit the target.

        Reads config.json and safetensors headers; reads values only to check that they are
        finite, that copies of the target's tensors are exact and that a token map is valid.
        """

    def load_refusals(self, directory: Path) -> list[str]:
        """Why vLLM would not load the directory, whatever its target; each with the fix."""
        return []

    def check_loadable(self, directory: Path) -> None:
        """Raises an `OutriderError` with all of `load_refusals`; weights need not be present."""
        if refusals := self.load_refusals(Path(directory)):
            raise OutriderError(f"{Path(directory) / 'config.json'}: {'; '.join(refusals)}")

    def require_installed(self) -> None:
        """Raises an `OutriderError` if a package that vLLM needs for the kind is missing."""

    def is_installed(self) -> bool:
        """Whether the package that vLLM needs for the kind, if any, is installed."""
        try:
            self.require_installed()
        except OutriderError:
            return False
        return True

    def package_version(self) -> str | None:
        """The version of the kind's `package`; None if it cannot be loaded."""
        return None

    def install_package(self) -> None:
        """Installs the kind's `package` in this environment.

        Raises an `OutriderError` that names the fix; then nothing is changed.
        """
        raise NotImplementedError

    def prepare(
        self, responses: "Iterable[EarlierResponse]", folder: Path, *, max_gb: float, shared: bool
    ) -> Path | None:
        """Prepares replay and engines, as if they had given `responses` to earlier requests.

        Writes to `folder` what they read and returns it, the speculator's directory; None if the
        kind reads nothing. `responses` begin with the oldest and are read only if needed; `max_gb`
        and `shared` are keys of the recipe's section `lookup`.
        """
        return None

    def hook_engine(self) -> None:
        """Changes vLLM in an engine's process (serving/vllm_hooks/plugin.py); may run twice."""

    def cpu_refusal(self, config: Mapping[str, Any]) -> str | None:
        """Why vLLM on a CPU cannot serve a directory with this config.json; None if it can."""
        return None

    def max_drafts(self, config: Mapping[str, Any]) -> int | None:
        """Largest K for which a directory with this config.json was made; None without a limit."""
        return None

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's `speculative_config` for `k` drafts per step; None for no speculation.

        The keys of `Speculator.settings` are added by `Drafting.settings`.
        """
        settings: dict[str, Any] = {
            "method": self.name,
            "num_speculative_tokens": k,
            "model": str(directory),
            "draft_sample_method": draft_sample_method,
        }
        if k_per_batch_size:
            if self.fixed_k:
                raise OutriderError(
                    f"{self.in_words} drafts {k} tokens in every step; with fewer, vLLM 0.32 fails"
                    " or drafts other tokens than were measured; leave the schedule by batch size"
                    " out (export.k_per_batch_size: false)"
                )
            schedule = [list(row) for row in k_per_batch_size]
            settings["num_speculative_tokens_per_batch_size"] = schedule
        return settings

    def runner_settings(self, runner: Runner) -> dict[str, Any]:
        """Keys of vLLM's `speculative_config` that have other values in this model runner."""
        return {}


@dataclasses.dataclass(frozen=True)
class Matches:
    """A lookup's drafts at every anchor, and how good its match is.

    Shapes: A anchors, K drafts.
    """

    drafts_AK: NDArray[np.int32]
    score_A: NDArray[np.float64]
    """The lookup's own estimate of accepted drafts; 0 if it has none."""
    length_A: NDArray[np.int64]
    """Tokens of the match; 0 without one."""


class WeightlessKind(DrafterKind):
    """A kind whose drafts depend only on the request's tokens so far, and on earlier responses."""

    has_weights = False
    searched_settings: ClassVar[Sequence[Settings]] = ()
    """Settings from which an evaluation chooses the best on the validation part, those that
    propose the fewest drafts first."""

    def settings_of(self, section: Mapping[str, Any]) -> Settings:
        """Settings of an engine with this `speculative_config`, with vLLM's values for the rest."""
        return {key: section.get(key, value) for key, value in self.default_settings.items()}

    def history(self, directory: Path | None) -> Path | None:
        """File of earlier responses in a speculator's directory; None if the kind reads none."""
        return None

    def separates_tenants(self, directory: Path | None) -> bool:
        """Whether the drafts of a request depend on its `cache_salt`."""
        return False

    def load_live(self, runner: Any, directory: Path) -> None:
        """Searches the history in `directory` from the next step of a live engine on.

        `runner` is the worker's model runner. If this raises, the old history stays in use.
        """
        raise NotImplementedError

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        """Drafts [N, A, K] for each of N `numbers` of drafts per step, up to K.

        Anchors are the tokens from `first` to the second-to-last. Rows of anchors at which no step
        with that number starts, if the engine is to deliver `token_ids_T`, may hold no drafts.
        """
        raise NotImplementedError

    def all_matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Matches:
        """The lookup's k drafts and its match at every anchor."""
        raise NotImplementedError

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's settings without a model or draft sampling method."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size) or {}
        unread = ("model", "draft_sample_method")
        served = {key: value for key, value in settings.items() if key not in unread}
        return {**served, **self.default_settings}


class TrainableKind(DrafterKind):
    """A kind that Outrider also trains, replays, sizes and swaps."""

    head_keys: frozenset[str] = frozenset()
    """Keys of `speculator.head` used for training from scratch; others are rejected."""
    trains: frozenset[TrainedParameters] = frozenset(("all",))
    """Values of `speculator.train` that the kind supports."""

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        """config.json of the speculator to be trained.

        It is the base's config.json if training starts from a base of this kind. A draft vocabulary
        whose size depends on the traffic is given its planned size.
        """
        raise NotImplementedError

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        """The target's states that a speculator with this config.json reads."""
        raise NotImplementedError

    def latent_cache(self, config: Mapping[str, Any]) -> bool | None:
        """Whether the KV cache uses MLA's format; None if it uses the target's."""
        return None

    def can_fit_start(self, config: Mapping[str, Any]) -> bool:
        """Whether a speculator with this config.json can be fitted to `Origin.rows`."""
        return False

    def native(self, target_config: Mapping[str, Any]) -> bool:
        """True if the target itself ships with a speculator of this kind."""
        return False

    def native_tensors(self, target: CheckpointLayout) -> set[str]:
        """Names of the tensors of the target's own speculator."""
        return set()

    def check_target(self, target_dir: Path, base_dir: Path | None, config_only: bool) -> None:
        """Raises an `OutriderError` if training cannot start from this target and base.

        With `config_only` (`--dry-run`), weights need not be present.
        """

    def check_unrolled(self, directory: Path, target_dir: Path) -> None:
        """Raises an `OutriderError` if the engine serves a directory that is not unrolled here."""

    def served_config(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], path: object
    ) -> Mapping[str, Any]:
        """config.json, at `path`, from which the engine computes what is trained."""
        return config

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
        """Loads a directory's drafter; all weights must be finite."""
        raise NotImplementedError

    def start(
        self, origin: Origin, dtype: "torch.dtype", device: "torch.device | str", seed: int
    ) -> "Drafter":
        """Creates the drafter that training starts from; all its parameters are trained."""
        raise NotImplementedError

    def trained_tensors(
        self, drafter: "Drafter", state: Mapping[str, "Tensor"]
    ) -> Iterator[tuple[str, "Tensor"]]:
        """Yields (checkpoint name, tensor) for each trained weight, with adapters merged.

        `state` is the drafter's whole state dict, since under ZeRO-3 the module holds shards.
        """
        raise NotImplementedError

    def write(self, changed: Iterable[tuple[str, "Tensor"]], origin: Origin, out_dir: Path) -> None:
        """Atomically publishes a directory that the engine loads.

        Tensors that are not in `changed`, or that equal the base's, keep the base's bytes.
        """
        raise NotImplementedError

    def write_other_formats(
        self, directory: Path, target_dir: Path, target: str, drafts: int, out_dir: Path
    ) -> None:
        """Writes the drafter in other formats, each to a folder in `out_dir`.

        `target` is the target's name or path, `drafts` the number of drafts per step. Folders
        are named after their format; a format that does not support the drafter gets no folder.
        """
        raise NotImplementedError

    def swap_tensors(self, directory: Path) -> Iterator[tuple[str, "Tensor"]]:
        """Yields the names and stored tensors that a live engine's drafter loads."""
        raise NotImplementedError

    def swappable(self, first: Path, second: Path) -> bool:
        """True if an engine started with one directory can load the other."""
        return True

    def stays_with_target(self, name: str) -> bool:
        """True for parameters that belong to the target and are not swapped."""
        return False
