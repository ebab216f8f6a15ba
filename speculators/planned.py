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
from outrider.speculators.kinds import kind_of, trainable_kind


def planned(speculator: SpeculatorConfig, target_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json of the base where training starts from a directory, else of a new head."""
    kind, of_base = trainable_kind(speculator.kind), None
    if (base := warm_directory(speculator)) is not None:
        of_base = read_json(base / "config.json")
    return kind.config(target_config, speculator.head, of_base)


def warm_directory(speculator: SpeculatorConfig) -> Path | None:
    """The directory that `speculator.base` names, if it is of the trained kind."""
    if speculator.base is None or not is_directory(speculator.base):
        return None
    directory = Path(speculator.base).expanduser()
    return directory if kind_of(directory).name == speculator.kind else None
