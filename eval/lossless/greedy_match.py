"""Speculation must change the speed and nothing else: checks on responses with and without it.

    compare_greedy(without, with_speculation, gap, near_tie_nats=0.125)

Greedy responses should be equal token for token. An engine in bf16 that batches differently rounds
differently: where the two most likely tokens are nearly tied, the argmax may fall either way
without any speculation. A first difference at such a place is a near tie, any other is unexplained.
What the engine also shows without speculation, in other batches, is no fault of speculation:
`excess` tests how many more responses differ than in that control. Near ties count there: an engine
that accepts any draft nearly as likely as the target's own differs at near ties only.
Sampled responses cannot be compared token by token, but the log-probabilities of their tokens under
the target can: a faulty rejection sampler draws tokens that the target would not draw.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.eval.results.verification import Difference, Excess, Greedy, SampledText

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
    """Counts equal, near-tie and unexplained responses."""
    differences = []
    for response, (a, b) in enumerate(zip(without, with_speculation, strict=True)):
        index = first_difference(a, b)
        if index is None:
            continue
        ended = index >= min(len(a), len(b))
        nats = None if ended else gap(response, index, a[index], b[index])
        if nats is not None and not math.isfinite(nats):
            nats = None
        near = nats is not None and nats <= near_tie_nats
        differences.append(Difference(response=response, gap_nats=nats, near_tie=near))
    equal = len(without) - len(differences)
    near_ties = sum(difference.near_tie for difference in differences)
    return Greedy(
        responses=len(without),
        equal=equal,
        near_ties=near_ties,
        unexplained=len(differences) - near_ties,
        differences=differences,
    )


def excess(found: Greedy, control: Greedy) -> Excess:
    """How many more responses differ than the control's, over the control's prompts.

    If speculation changes nothing, a prompt that differs on one side only is as likely to be on
    either. So the number of those on the side of speculation is binomial (McNemar's exact test,
    one-sided). All differences and the unexplained ones are tested; the p-value is of both together
    (Bonferroni).
    """
    tests = []
    for unexplained in (False, True):
        ours = _differing(found, control.responses, unexplained)
        alone = _differing(control, control.responses, unexplained)
        tests.append((len(ours - alone), len(alone - ours)))
    more, fewer = tests[0]
    p_value = min(1.0, 2 * min(_sign_test(*counts) for counts in tests))
    return Excess(value=(more - fewer) / control.responses, p_value=p_value)


def _differing(found: Greedy, responses: int, unexplained: bool) -> set[int]:
    """Which of the first responses differ; with `unexplained`, near ties are left out."""
    return {
        each.response
        for each in found.differences
        if each.response < responses and not (unexplained and each.near_tie)
    }


def _sign_test(more: int, fewer: int) -> float:
    """Probability of at least `more` heads in `more` + `fewer` tosses of a fair coin."""
    from scipy.stats import binom

    return float(binom.sf(more - 1, more + fewer, 0.5))


def text_statistics(logprobs: Sequence[NDArray[np.float64]]) -> SampledText:
    """The share of sampled tokens below probability 1e-4 under the target."""
    pooled = np.concatenate(logprobs)
    tail = pooled < np.log(TAIL_PROBABILITY)
    return SampledText(tokens=len(pooled), tail_share=float(tail.mean()))
