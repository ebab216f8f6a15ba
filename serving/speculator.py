"""An engine's speculator: a drafter kind and the directory of its weights.

    Speculator.named("runs/NAME/speculator")     # a directory, or a weightless kind's name
    Drafting(Speculator("ngram"), k=4).settings()       # vLLM's speculative_config

The kind decides which measurements are possible (speculators/kinds/).
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import link_or_copy, publish, read_json, write_json
from outrider.common.fingerprint import file_digest, sampled_digest, value_digest
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import (
    kind_named,
    kind_of,
    trainable_kind_of,
    weightless_names,
)
from outrider.speculators.kinds.protocol import (
    DrafterKind,
    KPerBatchSize,
    Origin,
    TrainableKind,
    WeightlessKind,
)


@dataclasses.dataclass(frozen=True)
class Speculator:
    """The name of a kind and, if it has weights, their directory."""

    kind: str
    directory: Path | None = None

    @property
    def has_replay(self) -> bool:
        """Whether exact replay can compute its drafts from states or text alone."""
        return isinstance(self.family, TrainableKind | WeightlessKind)

    @property
    def replayed_as(self) -> Path | str:
        """Argument for exact replay: the directory, or a weightless kind's name."""
        return self.directory or self.kind

    @classmethod
    def named(cls, name: str | Path) -> "Speculator":
        """Returns the speculator that `--speculator` names: a weightless kind, or a directory.

        For a bundle without weights, only its kind is kept.
        """
        if str(name) in weightless_names():
            return cls(str(name))
        kind = kind_of(Path(name))
        return cls(kind.name, Path(name) if kind.has_weights else None)

    def weights(self) -> dict[str, str]:
        """Returns the SHA-256 of each weight file, by name; empty without weights."""
        files = sorted(self.directory.glob("*.safetensors")) if self.directory else []
        return {path.name: file_digest(path) for path in files}

    @property
    def family(self) -> DrafterKind:
        """The kind, which decides which measurements are possible."""
        return kind_named(self.kind)

    @property
    def trainable(self) -> bool:
        """Whether it drafts in every step and supports draft parity and live swaps."""
        return isinstance(self.family, TrainableKind)

    def swaps_with(self, replacement: "Speculator") -> bool:
        """True if one engine can serve both in turn, by swapping the drafter's weights."""
        kind = self.family
        if replacement.kind != self.kind or not isinstance(kind, TrainableKind):
            return False
        if self.directory is None or replacement.directory is None:
            return False
        return kind.swappable(self.directory, replacement.directory)

    def features(self, target_dir: Path) -> FeatureSpec:
        """The target states that the drafts are computed from; none without weights."""
        kind = self.family
        if not isinstance(kind, TrainableKind) or self.directory is None:
            return FeatureSpec(())
        config, target_config = (
            read_json(Path(folder) / "config.json") for folder in (self.directory, target_dir)
        )
        features = kind.features(config, target_config)
        kind.check_unrolled(self.directory, target_dir)
        return features

    @property
    def speculates(self) -> bool:
        """Whether the engine speculates at all."""
        return self.family.speculates

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

    def settings(self) -> dict[str, Any] | None:
        """Returns vLLM's `speculative_config`; None without speculation."""
        return self.speculator.family.vllm_settings(
            self.speculator.directory, self.k, self.sample_method, self.k_per_batch_size
        )

    def as_manifest(self) -> dict[str, Any]:
        """Returns the drafting entries of bundle.json."""
        return {
            "method": self.speculator.kind,
            "num_speculative_tokens": self.k,
            "num_speculative_tokens_per_batch_size": [*map(list, self.k_per_batch_size or [])]
            or None,
            "draft_sample_method": self.sample_method,
        }

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any], directory: Path) -> "Drafting":
        """Reads the entries of bundle.json; the engine finds the bundle at `directory`."""
        return cls(
            Speculator(str(manifest["method"]), directory),
            int(manifest["num_speculative_tokens"]),
            str(manifest["draft_sample_method"]),
            manifest["num_speculative_tokens_per_batch_size"],
        )


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
    kind = kind_of(directory)
    if not isinstance(kind, TrainableKind):
        return directory
    path = directory / "config.json"
    config = read_json(path)
    served = kind.served_config(config, read_json(target_dir / "config.json"), path)
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
