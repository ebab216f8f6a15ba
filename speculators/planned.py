"""The speculator that a recipe trains, before it exists: its config.json.

config = planned(recipe.speculator, target_config)
drafter_size(kind, config, target_config)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.speculators.base import is_directory
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import FeatureSpec
from outrider.speculators.kinds import DEFAULT_KIND, kind_of, trainable_kind


def planned(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json of the base where training starts from a directory, else of a new head."""
    kind, of_base = trainable_kind(speculator.only_kind), None
    if (base := warm_directory(speculator)) is not None:
        of_base = read_json(base / "config.json")
    return kind.config(target_config, speculator.head, of_base)


def stored_features(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> FeatureSpec:
    """What one feature store holds for drafters of all kinds that the recipe trains."""
    specs = []
    for name in speculator.kinds:
        config = planned(speculator.of_kinds([name]), target_config)
        specs.append(trainable_kind(name).features(config, target_config))
    return FeatureSpec.union(specs).stored(target_config["hidden_size"])


def warm_directory(speculator: SpeculatorConfig) -> Path | None:
    """The directory that `speculator.base` names, if it is of the trained kind."""
    if not is_directory(speculator.base):
        return None
    directory = Path(str(speculator.base)).expanduser()
    return directory if kind_of(directory).name == speculator.only_kind else None


def warms_up(speculator: SpeculatorConfig, target_config: Mapping[str, Any] | None) -> bool:
    """Whether training starts from a base: a directory of the kind, or the target's own.

    A target that is not known is taken for one that ships the default kind.
    """
    if is_directory(speculator.base):
        return warm_directory(speculator) is not None
    if target_config is None:
        native = speculator.only_kind == DEFAULT_KIND
    else:
        native = trainable_kind(speculator.only_kind).native(target_config)
    return native and speculator.base in (None, speculator.only_kind)
