"""The speculator that a recipe trains, before it exists: its config.json.

config = planned(recipe.speculator, target_config)
kind.size(config, target_config)
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import read_json
from outrider.speculators.base import is_directory
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import DEFAULT_KIND, kind_of, trainable_kind


def planned(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json of the base where training starts from a directory, else of a new head."""
    kind, of_base = trainable_kind(speculator.kind), None
    if (base := warm_directory(speculator)) is not None:
        of_base = read_json(base / "config.json")
    return kind.config(target_config, speculator.head, of_base)


def warm_directory(speculator: SpeculatorConfig) -> Path | None:
    """The directory that `speculator.base` names, if it is of the trained kind."""
    if not is_directory(speculator.base):
        return None
    directory = Path(str(speculator.base)).expanduser()
    return directory if kind_of(directory).name == speculator.kind else None


def warms_up(speculator: SpeculatorConfig, target_config: Mapping[str, Any] | None) -> bool:
    """Whether training starts from a base: a directory of the kind, or the target's own.

    A target that is not known is taken for one that ships the default kind.
    """
    if is_directory(speculator.base):
        return warm_directory(speculator) is not None
    if target_config is None:
        native = speculator.kind == DEFAULT_KIND
    else:
        native = trainable_kind(speculator.kind).native(target_config)
    return native and speculator.base in (None, speculator.kind)
