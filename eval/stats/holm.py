"""Holm's correction: which of several claims hold, at one error probability for all together.

    holm([0.010, 0.040, 0.030], alpha=0.05)      # [True, False, False]

The smallest of m p-values is compared with alpha / m, the next with alpha / (m - 1), and so on up
to the first that is larger; it and all after it are not shown. The probability that any true null
hypothesis is rejected is at most alpha, however the claims depend on each other (Holm, Scandinavian
Journal of Statistics 6, 1979).
"""

from collections.abc import Callable, Sequence

from outrider.eval.stats.intervals import Interval


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Whether each claim is shown."""
    shown = [False] * len(p_values)
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] > alpha / (len(p_values) - place):
            break
        shown[index] = True
    return shown


def p_above(interval_at: Callable[[float], Interval], threshold: float) -> float:
    """The two-sided p-value of a value above the threshold, from its intervals.

    1 minus the highest level at which the interval lies above the threshold, by bisection on a
    logarithmic scale down to 1e-6. `interval_at` returns the interval of a level.
    """
    if not interval_at(1 - _LARGEST).low > threshold:
        return 1.0
    if interval_at(1 - _SMALLEST).low > threshold:
        return _SMALLEST
    low, high = _SMALLEST, _LARGEST
    while high / low > _PRECISION:
        middle = float((low * high) ** 0.5)
        low, high = (low, middle) if interval_at(1 - middle).low > threshold else (middle, high)
    return high


_SMALLEST, _LARGEST, _PRECISION = 1e-6, 0.999, 1.02
