"""Rotary embedding parameters from config.json, in a uniform format. Torch-free.

    rope = rope_of(config)
    rope["rope_theta"], rope["rope_type"]        # 10000.0, "default"

config.json has them at the top level and in `rope_scaling`, or all in `rope_parameters`.
transformers' `standardize_rope_params` does the same, but to an instance of the model type's config
class; heads in the speculators layout and torch-free checks have only a mapping.
"""

from collections.abc import Mapping
from typing import Any


def rope_of(config: Mapping[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """All rotary parameters; `theta` is the default for `rope_theta`."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or parameters
    settings = {key: value for key, value in (parameters | scaling).items() if value is not None}
    return settings | {
        "rope_theta": float(settings.get("rope_theta") or config.get("rope_theta") or theta),
        "rope_type": scaling.get("rope_type", scaling.get("type", "default")),
    }
