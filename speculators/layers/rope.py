"""The rotary embedding of a config.json, in one spelling. No torch.

    rope = rope_of(config)
    rope["rope_theta"], rope["rope_type"]        # 10000.0, "default"

Its parameters are at the top of config.json and in `rope_scaling`, or all in `rope_parameters`.
"""

from collections.abc import Mapping
from typing import Any


def rope_of(config: Mapping[str, Any], theta: float = 10000.0) -> dict[str, Any]:
    """`rope_theta`, `rope_type` and what else is set; `theta` where config.json has none."""
    parameters = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or parameters
    found = {key: value for key, value in (parameters | scaling).items() if value is not None}
    return found | {
        "rope_theta": float(found.get("rope_theta") or config.get("rope_theta") or theta),
        "rope_type": scaling.get("rope_type", scaling.get("type", "default")),
    }
