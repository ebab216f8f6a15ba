"""Keys that have moved to the section of the stage that reads them.

moved_key(("eval", "parity", "prompts"))      # ("eval.parity.prompts", "speculator.parity.prompts")
"""

from collections.abc import Sequence

MOVED_KEYS = {
    # Read by training and evaluation, which must agree on how the speculator drafts.
    "eval.parity": "speculator.parity",
    "serving.draft_sample_method": "speculator.draft_sample_method",
    "traffic.max_copies": "split.max_copies",
    "traffic.general_share": "split.general_share",
    "traffic.min_on_policy": "capture.min_on_policy",
}
"""Old key, or section, to new one."""


def moved_key(keys: Sequence[str | int]) -> str | None:
    """The new name of a key that has moved, alone or with its section; None for any other."""
    dotted = ".".join(map(str, keys))
    for old, new in MOVED_KEYS.items():
        if dotted == old or dotted.startswith(f"{old}."):
            return new + dotted.removeprefix(old)
    return None
