"""How many amounts, dates and numbers of the shipped receipts are taken for personal data."""

from collections import Counter
from pathlib import Path

from tests.data.privacy.recall import masked_figures, receipts_of

RECIPES = Path(__file__).resolve().parents[3] / "recipes"
SHIPPED = [
    RECIPES / "nano_r1" / "traffic" / "document_extraction.jsonl.gz",
    RECIPES / "smollm2" / "traffic" / "document_extraction" / "part-012.jsonl.gz",
]

GOAL = 0.01
"""Largest share of each that may be masked."""


def test_at_most_one_in_a_hundred_figures_is_masked() -> None:
    counts, masked = masked_figures([text for path in SHIPPED for text in receipts_of(path)])
    assert counts.total() > 5_000 and counts.keys() == {"amount", "date", "number"}
    masked_by_sort = Counter(sort for sort, _, _ in masked)
    for sort, count in counts.items():
        assert masked_by_sort[sort] <= GOAL * count, [one for one in masked if one[0] == sort]


def test_the_number_of_a_telephone_is_not_counted_and_others_are() -> None:
    receipt = "TEL:\n03-3279 3240\nSHOP\nTOTAL 28.60\n24/01/2028 14:11\nNO 4111111111111111"
    counts, masked = masked_figures([receipt])
    assert counts == {"amount": 1, "date": 2, "number": 1}
    assert masked == [("number", "CREDIT_CARD", "4111111111111111")]
