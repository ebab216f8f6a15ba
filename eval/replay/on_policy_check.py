"""Is the text that is replayed the target's own? Asked of the held-out part alone, as the gate sees it.

Capture sets aside single sequences that are not; what is left can still be off as a whole, as where every prompt was rendered by another
template. Then replay and the verification pass both measure prompts that the endpoint never reads.

    own_text(FeatureStore.open(features), heldout)      # {"own": True, "cause": "own", "text": ..., "sequences": 200}
"""

from typing import Any

from outrider.data.on_policy.causes import judge
from outrider.data.on_policy.evidence import Evidence


def own_text(store: Any, heldout: Any) -> dict[str, Any] | None:
    """The verdict of data/on_policy/causes.py on these rows; None where capture kept no evidence."""
    if not store.score_columns:
        return None
    evidence = Evidence.of(store, heldout)
    return {**judge(evidence).as_dict(), "sequences": len(evidence)}
