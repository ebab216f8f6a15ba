"""How many tokens base and custom draft, and why, in words.

k_words(results.k)          # "2 for base, 5 for custom"
k_reasons(results.choice)   # ["base: K = 2: 18.1 % (interval [13.2, 23.4] %) faster than 1; ..."]
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
            parts.append(f"{reason.larger.k} gains {_percent(reason.larger)}")
        if choice.rounds:
            others = " and ".join(map(str, reason.undecided))
            parts.append(
                f"not decided against {others}, the estimate was taken" if others else "decided"
            )
        lines.append(f"{drafter}: K = {reason.k}: {'; '.join(parts)}")
    if choice.rounds:
        counts = (f"{count} rounds at {size} requests" for size, count in choice.rounds.items())
        lines.append(f"Steps timed in {', '.join(counts)}")
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
    value, low, high = (100 * each for each in (gain.value, gain.low, gain.high))
    return f"{value:.1f} % (interval [{low:.1f}, {high:.1f}] %)"
