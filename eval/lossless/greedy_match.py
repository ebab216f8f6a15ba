"""Speculation must change the speed and nothing else: checks on responses with and without it.

    compare_greedy(without, with_speculation, gap, near_tie_nats=0.125)

Greedy responses should be equal token for token. An engine in bf16 that batches differently rounds
differently: where the two most likely tokens are nearly tied, the argmax may fall either way
without any speculation. A first difference at such a place is a near tie, any other is unexplained.
What the engine also shows without speculation, in other batches, is not a fault of speculation:
`excess` tests how many more responses differ than in that control. Near ties count there: an engine
that accepts any draft nearly as likely as the target's own differs at near ties only.
Sampled responses cannot be compared token by token, but the log-probabilities of their tokens under
the target can: a faulty rejection sampler draws tokens that the target would not draw.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.eval.results.verification import Excess, Greedy, SampledText

TAIL_PROBABILITY = 1e-4

Gap = Callable[[int, int, int, int], float]
"""gap(response, index, token, other): distance in nats of the target's log-probabilities of two
tokens at the response's token `index`."""


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs; None where the responses are equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def compare_greedy(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    gap: Gap,
    near_tie_nats: float,
) -> Greedy:
    """Which responses differ: at a near tie, or unexplained."""
    near_ties: list[int] = []
    unexplained: list[int] = []
    for response, (a, b) in enumerate(zip(without, with_speculation, strict=True)):
        index = first_difference(a, b)
        if index is None:
            continue
        ended = index >= min(len(a), len(b))
        # NaN is not a near tie.
        near = not ended and gap(response, index, a[index], b[index]) <= near_tie_nats
        (near_ties if near else unexplained).append(response)
    return Greedy(responses=len(without), near_ties=near_ties, unexplained=unexplained)


def excess(found: Greedy, control: Greedy) -> Excess:
    """How many more responses differ than the control's, over the control's prompts.

    If speculation changes nothing, a prompt that differs on one side only is as likely to be on
    either. So the number of those on the side of speculation is binomial (McNemar's exact test,
    one-sided). All differences and the unexplained ones are tested; the p-value is of both together
    (Bonferroni).
    """
    first = range(control.responses)
    all_found, all_alone = (
        {*each.near_ties, *each.unexplained} & {*first} for each in (found, control)
    )
    unexplained_found = {*found.unexplained} & {*first}
    tests = [(all_found, all_alone), (unexplained_found, {*control.unexplained})]
    p_value = min(_sign_test(len(ours - alone), len(alone - ours)) for ours, alone in tests)
    value = (len(all_found) - len(all_alone)) / control.responses
    return Excess(value=value, p_value=min(1.0, 2 * p_value))


def _sign_test(more: int, fewer: int) -> float:
    """Probability of at least `more` heads in `more` + `fewer` tosses of a fair coin."""
    from scipy.stats import binom

    return float(binom.sf(more - 1, more + fewer, 0.5))


def text_statistics(logprobs: Sequence[NDArray[np.float64]]) -> SampledText:
    """The share of sampled tokens below probability 1e-4 under the target."""
    pooled = np.concatenate(logprobs)
    tail = pooled < np.log(TAIL_PROBABILITY)
    return SampledText(tokens=len(pooled), tail_share=float(tail.mean()))
