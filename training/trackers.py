"""The trackers of `training.trackers`: their packages, and the settings that they are given.

    check_trackers(recipe.training)                 # before anything runs
    flat_settings({"speculator": {"depth": 4}})     # {"speculator.depth": 4}

Accelerate leaves out a tracker whose package is missing, with a line in a log that nobody reads.
"""

import importlib.util
import json
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.training.config import Tracker, TrainingConfig

PACKAGES: dict[Tracker, tuple[str, ...]] = {
    # Either writes the files; TensorBoard itself is needed to look at them.
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}
"""Packages of which a tracker needs one."""


def check_trackers(config: TrainingConfig) -> None:
    """Raises an `OutriderError` if the package of a tracker is missing; imports none."""
    for tracker in config.used_trackers:
        if not any(map(importlib.util.find_spec, PACKAGES[tracker])):
            raise OutriderError(
                f"training.trackers: {tracker} is not installed; `pip install {tracker}` in this"
                " environment, or leave it out"
            )


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings as numbers and texts by dotted key, which all trackers take."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        else:
            is_plain = isinstance(value, bool | int | float | str)
            flat[f"{prefix}{name}"] = value if is_plain else json.dumps(value)
    return flat
