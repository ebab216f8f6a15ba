"""How many tokens base and custom draft, and why, in words.

k_words(results.k)          # "2 for base, 5 for custom"
k_reasons(results.choice)   # ["base: K = 2: 18 % (interval [13, 23] %) faster than 1; ..."]
"""

from outrider.eval.results.parts import DRAFTERS, Drafters
from outrider.eval.results.prediction import Choice, KGain


def k_words(k: Drafters[int]) -> str:
    """The numbers of drafts, as headings show them."""
    if k.base == k.custom:
        return f"{k.custom} for base and custom"
    return f"{k.base} for base, {k.custom} for custom"


def k_reasons(choice: Choice) -> list[str]:
    """A sentence for each speculator; empty where k was not chosen."""
    if choice.reason is None:
        return []
    lines = []
    for drafter in DRAFTERS:
        reason = choice.reason.of(drafter)
        parts = []
        if reason.smaller:
            parts.append(f"{_percent(reason.smaller)} faster than {reason.smaller.over}")
        if reason.larger:
            parts.append(
                f"{reason.larger.k} is not faster by more than the noise, {_percent(reason.larger)}"
            )
        lines.append(f"{drafter}: K = {reason.k}: {'; '.join(parts)}")
    return lines


def schedule_words(choice: Choice) -> list[str]:
    """K by batch size, for each speculator that has one."""
    if choice.k_per_batch_size is None:
        return []
    lines = []
    for drafter in DRAFTERS:
        rows = choice.k_per_batch_size.of(drafter) or []
        ranges = (
            f"{first} to {last}: {k}" if first < last else f"{first}: {k}"
            for first, last, k in rows
        )
        if rows:
            lines.append(f"{drafter}, K by batch size: {', '.join(ranges)}")
    return lines


def _percent(gain: KGain) -> str:
    value, low, high = (round(100 * each) for each in (gain.value, gain.low, gain.high))
    return f"{value} % (interval [{low}, {high}] %)"
