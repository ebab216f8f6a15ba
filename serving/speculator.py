"""An engine's speculator: a drafter kind and the directory of its weights.

    Speculator.from_name("runs/NAME/speculator")     # a directory, or a weightless kind's name
    Drafting(Speculator("ngram"), k=4).settings("v1")       # vLLM's speculative_config
    Speculator(lookup.name, folder, lookup.searched_settings[0])    # with its history

The kind decides which measurements are possible (speculators/kinds/).
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.common.files import link_or_copy, publish, write_json
from outrider.common.fingerprint import file_digest, sampled_digest, value_digest
from outrider.common.json_forms import Count, validate_form
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.model_config import read_config, read_head_config
from outrider.speculators.checkpoints.target_fingerprint import read_bundle
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import (
    drafter_kind_of,
    kind_named,
    trainable_kind_of,
    weightless_names,
)
from outrider.speculators.kinds.protocol import (
    DrafterKind,
    KPerBatchSize,
    Lookup,
    Origin,
    Runner,
    Settings,
    TrainableKind,
    WeightlessKind,
)
from outrider.speculators.lookup_history import HISTORY_FILE

MANIFEST = "bundle.json"


@dataclasses.dataclass(frozen=True)
class Speculator:
    """The name of a kind, the directory of what it reads, and how it is set."""

    kind: str
    directory: Path | None = None
    """Directory of its weights, or of the history of a lookup; None if it reads neither."""
    settings: Settings = dataclasses.field(default_factory=dict)
    """vLLM's settings of a lookup that differ from the kind's `default_settings`."""

    @property
    def has_replay(self) -> bool:
        """Whether exact replay can compute its drafts from states or text alone."""
        return isinstance(self.drafter_kind, TrainableKind | WeightlessKind)

    def replay_argument(self, runner: Runner) -> Path | Lookup:
        """Argument for exact replay, as the engine's model runner drafts."""
        kind = self.drafter_kind
        if isinstance(kind, WeightlessKind):
            history = kind.history(self.directory)
            return Lookup(self.kind, settings=self.settings, history=history, runner=runner)
        assert self.directory is not None
        return self.directory

    @classmethod
    def from_name(cls, name: str | Path) -> "Speculator":
        """Returns the speculator that `--speculator` names: a weightless kind, or a directory.

        The settings and the history of a lookup's bundle are read from the bundle.
        """
        if str(name) in weightless_names():
            return cls(str(name))
        directory = Path(name)
        kind = drafter_kind_of(directory)
        if kind.has_weights:
            return cls(kind.name, directory)
        return Drafting.from_manifest(read_bundle(directory / MANIFEST), directory).speculator

    def weights(self) -> dict[str, str]:
        """Returns the SHA-256 of each weight file, by name; empty without weights."""
        files = sorted(self.directory.glob("*.safetensors")) if self.directory else []
        return {path.name: file_digest(path) for path in files}

    @property
    def history_digest(self) -> str | None:
        """SHA-256 of a lookup's history; None without one."""
        kind = self.drafter_kind
        path = kind.history(self.directory) if isinstance(kind, WeightlessKind) else None
        return None if path is None else file_digest(path)

    @property
    def drafter_kind(self) -> DrafterKind:
        """The kind, which decides which measurements are possible."""
        return kind_named(self.kind)

    @property
    def trainable(self) -> bool:
        """Whether it drafts in every step and supports draft parity and live swaps."""
        return isinstance(self.drafter_kind, TrainableKind)

    def swaps_with(self, replacement: "Speculator") -> bool:
        """True if one engine can serve both in turn, by swapping the drafter's weights."""
        kind = self.drafter_kind
        if replacement.kind != self.kind or not isinstance(kind, TrainableKind):
            return False
        if self.directory is None or replacement.directory is None:
            return False
        return kind.swappable(self.directory, replacement.directory)

    def features(self, target_dir: Path) -> FeatureSpec:
        """The target states that the drafts are computed from; none without weights."""
        kind = self.drafter_kind
        if not isinstance(kind, TrainableKind) or self.directory is None:
            return FeatureSpec(())
        config = read_head_config(self.directory / "config.json")
        target_config = read_config(Path(target_dir) / "config.json")
        features = kind.features(config, target_config)
        kind.check_unrolled(self.directory, target_dir)
        return features

    @property
    def speculates(self) -> bool:
        """Whether the engine speculates at all."""
        return self.drafter_kind.speculates

    def steps(self, counters: Mapping[str, Any], responses: int) -> int:
        """Number of engine steps for `responses` responses, from `SpeculationCounters`' fields.

        vLLM does not count steps without drafts, such as those whose drafts a grammar forbids
        (v1/core/sched/scheduler.py, `update_draft_token_ids`). Each step delivers its accepted
        drafts and one token, so the number of steps is the number of tokens minus the accepted
        drafts and each response's first token. This is too low if responses end on accepted drafts,
        so it is at least the number of steps with drafts.
        """
        drafts = int(counters["drafts"])
        target_tokens = counters["generation_tokens"] - counters["accepted_tokens"]
        return max(drafts, int(target_tokens - responses))


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How an engine drafts: its speculator and its number of drafts."""

    speculator: Speculator
    k: int
    """Maximum number of drafts per step."""
    sample_method: str = "greedy"
    """The recipe's `speculator.draft_sample_method`."""
    k_per_batch_size: KPerBatchSize | None = None
    """Rows of (first batch size, last batch size, k)."""

    def settings(self, runner: Runner) -> dict[str, Any] | None:
        """Returns vLLM's `speculative_config`, for its model runner; None without speculation."""
        kind = self.speculator.drafter_kind
        settings = kind.vllm_settings(
            self.speculator.directory, self.k, self.sample_method, self.k_per_batch_size
        )
        if settings is None:
            return None
        return {**settings, **kind.runner_settings(runner), **self.speculator.settings}

    def as_manifest(self) -> dict[str, Any]:
        """Returns the drafting entries of bundle.json."""
        return {
            "method": self.speculator.kind,
            "settings": dict(self.speculator.settings),
            "num_speculative_tokens": self.k,
            "num_speculative_tokens_per_batch_size": [*map(list, self.k_per_batch_size or [])]
            or None,
            "draft_sample_method": self.sample_method,
        }

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any], directory: Path) -> "Drafting":
        """Reads the entries of bundle.json; the engine finds the bundle at `directory`.

        Raises an `OutriderError` for settings that are not the kind's: they become arguments of the
        engine, and a bundle may come from anyone.
        """
        try:
            entries = validate_form(_Entries, manifest)
        except ValueError as error:
            raise OutriderError(f"{directory / MANIFEST}: {error}; export again") from None
        kind = kind_named(entries.method)
        settings = manifest.get("settings", {})
        if not is_settings(settings, kind):
            raise OutriderError(
                f"{MANIFEST}: settings: not numbers for {', '.join(kind.default_settings) or 'no'}"
                " keys; export again"
            )
        reads_directory = kind.has_weights or HISTORY_FILE in entries.files
        return cls(
            Speculator(kind.name, directory if reads_directory else None, settings),
            entries.num_speculative_tokens,
            entries.draft_sample_method,
            entries.num_speculative_tokens_per_batch_size,
        )


class _Entries(BaseModel):
    """The entries of bundle.json that say how an engine drafts."""

    method: str
    files: dict[str, str]
    num_speculative_tokens: Count
    num_speculative_tokens_per_batch_size: list[tuple[Count, Count, Count]] | None
    draft_sample_method: str


def is_settings(value: object, kind: DrafterKind) -> bool:
    """Whether a value from a bundle is settings of the kind: finite numbers for its keys."""
    if not isinstance(value, dict) or not value.keys() <= kind.default_settings.keys():
        return False
    numbers = [number for number in value.values() if type(number) in (int, float)]
    return len(numbers) == len(value) and all(0 <= number < math.inf for number in numbers)


def served_directory(directory: Path, target_dir: Path, cache: Path) -> Path:
    """The directory from which engines load a speculator: `directory`, or a copy in `cache`.

    vLLM loads a drafter by walking every shard of the directory that `--speculative-config` names.
    If that is the target's directory, as for DeepSeek-R1's MTP layer, 671 GB would be read a second
    time to load 11.6 GB; the copy avoids this. A head whose config.json would make engines read
    other states than it was made for has a copy with the kind's `served_config`. A copy is named
    after a digest of the speculator's files, so runs share it.
    """
    if directory.resolve() == target_dir.resolve():
        return _copy_of_native(target_dir, cache)
    kind = drafter_kind_of(directory)
    if not isinstance(kind, TrainableKind):
        return directory
    path = directory / "config.json"
    config = read_head_config(path)
    served = kind.served_config(config, read_config(target_dir / "config.json"), path)
    if served == config:
        return directory
    files = sorted(file for file in directory.iterdir() if file.is_file() and file != path)
    digest = value_digest([served, sampled_digest(files)])
    copy = cache / f"{kind.name}-{digest[:16]}"
    if not (copy / "config.json").is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with publish(copy) as temporary:
            temporary.mkdir()
            for file in files:
                link_or_copy(file.resolve(), temporary / file.name)
            write_json(temporary / "config.json", served)
    return copy


def _copy_of_native(target_dir: Path, cache: Path) -> Path:
    """A copy of the target's own speculator."""
    kind = trainable_kind_of(target_dir)
    layout = read_layout(target_dir)
    names = ["config.json", *layout.files(kind.native_tensors(layout))]
    copy = cache / f"{kind.name}-{sampled_digest([target_dir / name for name in names])[:16]}"
    if not (copy / "config.json").is_file():  # published atomically
        copy.parent.mkdir(parents=True, exist_ok=True)
        kind.write((), Origin(target_dir, target_dir), copy)
    return copy
