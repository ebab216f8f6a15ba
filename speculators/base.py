"""The speculator in use (`speculator.base`) and the one that a recipe trains.

    base = base_of(speculator.base, target_dir)  # base: directory, kind or None (the target's own)
    warm_start(trainable_kind("mtp"), base)          # base.directory; None for another kind

    config = planned_config(recipe.speculator, target_config)     # config.json to train with
    drafter_size(kind, config, target_config)

If the base is of another kind, it is used only for comparison, and training starts from scratch.
Does not import torch.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.model_config import read_config, read_head_config
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import (
    DEFAULT_LOOKUP,
    KINDS,
    SCRATCH_KIND,
    drafter_kind_of,
    native_kinds,
    trainable_kind,
    trainable_names,
    weightless_names,
)
from outrider.speculators.kinds.protocol import DrafterKind, TrainableKind


@dataclasses.dataclass(frozen=True)
class Base:
    """A speculator kind and, if it has weights, their directory."""

    kind: DrafterKind
    directory: Path | None
    """The target's own directory if the target ships the speculator."""


def base_of(base: str | Path | None, target_dir: Path) -> Base:
    """The speculator in use.

    Raises an `OutriderError` if the target lacks it, or if vLLM would not load its directory.
    """
    config = Path(target_dir) / "config.json"
    name = None if base is None else str(base)
    if name in weightless_names():
        KINDS[name].require_installed()  # before capture and training, which take hours
        return Base(KINDS[name], None)
    if name is not None and name not in KINDS:
        directory = Path(name).expanduser()
        kind = drafter_kind_of(directory)
        kind.check_loadable(directory)
        return Base(kind, directory if kind.has_weights else None)
    for native in native_kinds(read_json(config)):
        if name in (None, native.name):
            return Base(native, Path(target_dir))
    raise OutriderError(
        f"{config}: this target ships no {name or 'speculator'} of its own; set speculator.base to"
        " the directory of the speculator in use or, if there is none, to"
        f" {' or '.join(weightless_names())}"
    )


def base_kind(base: str | None, target_config: Mapping[str, Any]) -> DrafterKind | None:
    """The kind of the speculator in use, before its weights are here; None if there is none."""
    if is_directory(base):
        return drafter_kind_of(Path(str(base)).expanduser())
    if base is not None and base in weightless_names():
        return KINDS[base]
    natives = native_kinds(target_config)
    return next((native for native in natives if base in (None, native.name)), None)


def warm_start(kind: TrainableKind, base: Base) -> Path | None:
    """The directory that training starts from; None to start from scratch."""
    return base.directory if base.kind is kind else None


def unsupported_kinds(base: str | None, target_dir: Path) -> dict[str, str]:
    """The kinds that cannot be trained for a target, and why."""
    refusals = {}
    in_use = base_of(base, target_dir)
    for name in trainable_names():
        kind = trainable_kind(name)
        try:
            kind.check_target(target_dir, warm_start(kind, in_use), config_only=True)
        except OutriderError as error:
            refusals[name] = str(error)
    return refusals


def main_refusal(refusals: Mapping[str, str], target_config: Mapping[str, Any]) -> str:
    """The refusal that names the shortest way: that of the target's own kind, else of a head."""
    names = [kind.name for kind in native_kinds(target_config)]
    return next(refusals[name] for name in [*names, SCRATCH_KIND, *refusals] if name in refusals)


def kind_and_base(target_dir: Path) -> tuple[str, str | None]:
    """`speculator.kind` and `speculator.base` for a new recipe, from files alone.

    The target's own speculator if it can be trained, otherwise a head from scratch, which is
    compared with n-gram lookup. The weights need not be present. Raises an `OutriderError` if
    neither can be trained.
    """
    refusals: list[OutriderError] = []
    natives = native_kinds(read_config(Path(target_dir) / "config.json"))
    for kind in [*natives, trainable_kind(SCRATCH_KIND)]:
        try:
            kind.check_target(target_dir, None, config_only=True)
        except OutriderError as error:
            refusals.append(error)
        else:
            return kind.name, None if kind in natives else DEFAULT_LOOKUP
    raise refusals[0]


def is_directory(base: str | None) -> bool:
    """True if `base` is a directory rather than a kind or the default."""
    return base is not None and base not in KINDS


def planned_config(
    speculator: SpeculatorConfig, target_config: Mapping[str, Any]
) -> Mapping[str, Any]:
    """config.json of the warm-start directory or of a new head."""
    kind = trainable_kind(speculator.only_kind)
    base = warm_directory(speculator)
    base_config = None if base is None else read_head_config(base / "config.json")
    return kind.config(target_config, speculator.head, base_config)


def stored_features(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> FeatureSpec:
    """Streams in the feature store: those of all kinds that are trained, else those of the base."""
    specs = []
    if not speculator.kinds and is_directory(speculator.base):
        directory = Path(str(speculator.base)).expanduser()
        kind = drafter_kind_of(directory)
        if isinstance(kind, TrainableKind):
            specs.append(kind.features(read_head_config(directory / "config.json"), target_config))
    for name in speculator.kinds:
        config = planned_config(speculator.of_kinds([name]), target_config)
        specs.append(trainable_kind(name).features(config, target_config))
    return FeatureSpec.union(specs).stored(target_config["hidden_size"])


def warm_directory(speculator: SpeculatorConfig) -> Path | None:
    """The directory in `speculator.base` if its speculator is of the trained kind."""
    if not is_directory(speculator.base):
        return None
    directory = Path(str(speculator.base)).expanduser()
    return directory if drafter_kind_of(directory).name == speculator.only_kind else None


def starts_warm(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> bool:
    """True if training starts from a directory or the target's own speculator."""
    if speculator.base in (None, speculator.only_kind):
        return trainable_kind(speculator.only_kind).native(target_config)
    return warm_directory(speculator) is not None
