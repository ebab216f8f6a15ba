"""The registry of drafter kinds: those of this folder and of installed packages.

    drafter_kind_of(Path("runs/NAME/speculator")).name       # by its config.json
    trainable_kind("mtp").features(config, target_config)    # the protocol is in protocol.py

This module does not import torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json as read_json
from outrider.common.plugins import plugins
from outrider.speculators.checkpoints.layout import CheckpointLayout, read_layout
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.checkpoints.target_fingerprint import check_bundle_target, read_bundle
from outrider.speculators.kinds.dflash.kind import DFlash
from outrider.speculators.kinds.dspark.kind import DSpark
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.mtp.kind import MTP
from outrider.speculators.kinds.ngram import NGramLookup
from outrider.speculators.kinds.no_speculation import NoSpeculation
from outrider.speculators.kinds.p_eagle.kind import PEagle
from outrider.speculators.kinds.protocol import DrafterKind, TrainableKind, WeightlessKind
from outrider.speculators.kinds.suffix import SuffixLookup

_BUILT_IN: list[type[DrafterKind]] = [
    DSpark,
    DFlash,
    PEagle,
    Eagle3,
    MTP,
    NGramLookup,
    SuffixLookup,
    NoSpeculation,
]


def _added() -> list[type[DrafterKind]]:
    """Kinds of other packages (common/plugins.py), by entry points with the kinds' names."""
    added = plugins("outrider.kinds", taken=[kind.name for kind in _BUILT_IN])
    for name, kind in added.items():
        if kind.name != name:
            raise OutriderError(
                f"entry point outrider.kinds, {name}: the class {kind.__name__} has the name"
                f" {kind.name!r}; give both the same"
            )
    return list(added.values())


# Those of other packages come first, since they may be variants of the others.
KINDS: dict[str, DrafterKind] = {kind.name: kind() for kind in (*_added(), *_BUILT_IN)}
"""Kinds by name; a directory belongs to the first that recognizes it."""

DEFAULT_KIND = "mtp"
"""The kind that recipes train by default; DeepSeek-V3 and R1 ship it."""

SCRATCH_KIND = Eagle3.name
"""The kind that a new recipe trains for a target whose own speculator cannot be trained."""


DEFAULT_LOOKUP = NGramLookup.name
"""The base of a new recipe for a target without a speculator; it needs no package."""


def kind_named(name: str) -> DrafterKind:
    """The kind of that name; raises an `OutriderError` if there is none."""
    if name not in KINDS:
        raise OutriderError(
            f"speculator kind {name!r} is unknown; the kinds are {', '.join(KINDS)}"
        )
    return KINDS[name]


def trainable_names() -> list[str]:
    """Names of the kinds that can be trained."""
    return [name for name, kind in KINDS.items() if isinstance(kind, TrainableKind)]


def weightless_names() -> list[str]:
    """Names of the kinds without weights, which have no directory."""
    return [name for name, kind in KINDS.items() if not kind.has_weights]


def lookup_names() -> list[str]:
    """Names of the kinds that draft without weights, on any endpoint, without training."""
    return [name for name in weightless_names() if KINDS[name].speculates]


def installed_lookups() -> list[str]:
    """The lookups whose package, if they need one, is installed."""
    return [name for name in lookup_names() if KINDS[name].is_installed()]


def kinds_with_package() -> list[DrafterKind]:
    """The kinds for which vLLM needs a package that Outrider installs."""
    return [kind for kind in KINDS.values() if kind.package]


def weightless_kind(name: str | None) -> WeightlessKind | None:
    """The weightless kind of that name; None for any other name."""
    kind = KINDS.get(name or "")
    return kind if isinstance(kind, WeightlessKind) else None


def trainable_kind(name: str) -> TrainableKind:
    """The kind of that name; raises an `OutriderError` if it is untrainable."""
    kind = kind_named(name)
    if not isinstance(kind, TrainableKind):
        raise OutriderError(
            f"speculator kind {name!r} can be served and replayed, but not trained;"
            f" these can: {', '.join(trainable_names())}"
        )
    return kind


def drafter_kind_of(directory: Path) -> DrafterKind:
    """Finds the kind of a speculator's or target's directory from its config.json.

    The kind of a bundle without weights is read from bundle.json, its only file.
    """
    path = Path(directory) / "config.json"
    bundle = Path(directory) / "bundle.json"
    if bundle.is_file() and not path.exists():
        weightless = weightless_kind(read_bundle(bundle).get("method"))
        if weightless is not None:
            return weightless
    config = read_config(path)
    for kind in KINDS.values():
        if kind.recognizes(config):
            return kind
    known = [kind.directory_in_words for kind in KINDS.values() if kind.directory_in_words]
    architectures = config.get("architectures") or []
    drafter = _other_drafter(config)
    described = f"{drafter}, which is not read" if drafter else "not a known speculator"
    raise OutriderError(
        f"{path}: architectures = {architectures}: {described}. A"
        f" directory must be {', or '.join(known)}; kinds without a directory are"
        f" {', '.join(weightless_names())}. An endpoint that serves another drafter can be measured"
        " with `outrider eval --server URL`"
    )


def _other_drafter(config: Mapping[str, Any]) -> str | None:
    """Names a drafter of another kind that vLLM 0.32 serves; None if there is none.

    The names are those of its registry (model_executor/models/registry.py) and of
    `SpeculativeConfig` (config/speculative.py), which finds EAGLE-1 heads by the directory's name;
    their config.json is the target's with one layer.
    """
    architecture = str(next(iter(config.get("architectures") or []), ""))
    model_type = config.get("model_type")
    if architecture.endswith("NextN"):
        return "an MTP layer exported for SGLang (use the target's own, without speculator.base)"
    if model_type == "medusa" or "Medusa" in architecture or "medusa_num_heads" in config:
        return "a Medusa drafter"
    if model_type == "mlp_speculator" or "MLPSpeculator" in architecture:
        return "an MLP speculator"
    has_one_layer = config.get("num_hidden_layers") == 1 and architecture.endswith("ForCausalLM")
    if architecture.startswith("Eagle") or has_one_layer:
        return "an EAGLE-1 head"
    return "a draft model" if architecture.endswith("ForCausalLM") else None


def trainable_kind_of(directory: Path) -> TrainableKind:
    """The kind of a directory; raises an `OutriderError` if it is untrainable."""
    return trainable_kind(drafter_kind_of(directory).name)


def native_kinds(target_config: Mapping[str, Any]) -> list[TrainableKind]:
    """The kinds of the speculators that the target ships."""
    return [
        kind
        for kind in KINDS.values()
        if isinstance(kind, TrainableKind) and kind.native(target_config)
    ]


def target_tensors(target: CheckpointLayout) -> list[str]:
    """Names of the target's tensors that Outrider reads."""
    names = set(target.embedding_and_head)
    for kind in native_kinds(target.config):
        names |= kind.native_tensors(target)
    return sorted(names)


def check_speculator(directory: Path, target_dir: Path) -> None:
    """Checks from files alone, without torch, that a speculator fits the target.

    A speculator for another target or vocabulary, or with damaged weights, crashes an engine after
    minutes or silently drafts nonsense. The checks read both config.json files and the safetensors
    headers; only the checks for finiteness and for equality with the target's embedding and head
    read weights. A bundle must also have been made for exactly this target (target_fingerprint.py).
    Raises an `OutriderError` with file, key, value and fix if a check fails.
    """
    directory = Path(directory)
    if (directory / "bundle.json").is_file():
        check_bundle_target(read_bundle(directory / "bundle.json"), directory, target_dir)
    drafter_kind_of(directory).check(directory, read_layout(target_dir))
