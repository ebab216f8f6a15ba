"""A draft vocabulary and how much of the traffic it covers, for result.json and the log.

found = described(head.target_ids_D, store, {"train": samples}, vocab=4096)
print(vocabulary_line(found))
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from outrider.speculators.draft_vocabulary import coverage, token_counts
from outrider.training.batches import Texts, responses
from outrider.training.packing import Sample


def described(
    ids_D: Tensor, store: Texts, parts: Mapping[str, Sequence[Sample]], vocab: int
) -> dict[str, Any]:
    """Tokens of the draft vocabulary, and the share of each part's response tokens that it has."""
    covered = {
        part: coverage(token_counts(responses(store, samples), vocab), ids_D.cpu())
        for part, samples in parts.items()
    }
    return {"tokens": len(ids_D), "coverage": covered}


def vocabulary_line(found: Mapping[str, Any]) -> str:
    """One line on a draft vocabulary."""
    covered = ", ".join(f"{share:.2%} of {part}" for part, share in found["coverage"].items())
    return f"draft vocabulary: {found['tokens']:,} tokens, which are {covered} response tokens"
