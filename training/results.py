"""What a training returns and writes to result.json, and its profiles of acceptance. No torch.

result = read_form(TrainingResult, out_dir / "result.json", "rerun the command")
result["exported"]["acceptance_length"]
"""

from collections.abc import Mapping
from typing import NotRequired

# pydantic reads no `TypedDict` of `typing` before Python 3.12.
from typing_extensions import TypedDict


class Profile(TypedDict):
    """Acceptance on the validation part; the lists have an entry for each of K drafts."""

    sequences: int
    tokens: float
    acceptance_length: list[float]
    acceptance: list[float]


class DraftVocabulary(TypedDict):
    """The size of a draft vocabulary, and its coverage of each part's response tokens."""

    tokens: int
    coverage: dict[str, float]


class TrainingResult(TypedDict):
    """The content of result.json."""

    steps: int
    stopped_at: int
    """Step of the last evaluation."""
    seconds: float
    train_sequences: int
    left_out: Mapping[str, str]
    """Training sequences without a sample, and why."""
    lost_ends: dict[str, object]
    """Counts of truncated sequences (`LostEnds`)."""
    base: Profile
    """Validation before the first step."""
    best: Profile
    best_step: int
    peak_learning_rate: float
    """The recipe's, or less if training started over."""
    exported: Profile
    """Validation of the best speculator as published."""
    start_peak_bytes: int
    peak_bytes: int
    draft_vocabulary: NotRequired[DraftVocabulary]
    """Absent if all tokens can be drafted."""
