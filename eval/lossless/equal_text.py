"""Lossless checks: compares responses with and without speculation.

    compare_greedy(without, with_speculation, gap, near_tie_nats=0.125)

Greedy responses should be equal token for token. But with different batching a bf16 engine rounds
differently, so a first difference between two nearly tied tokens counts as a near tie; any other is
unexplained. `excess` tests whether speculation changes more responses than different batching does.
It counts near ties too, because wrongly accepting drafts that are nearly as likely as the target's
token causes no other differences. For sampled responses, the tokens' log-probabilities under the
target are compared, because a faulty rejection sampler draws unlikely tokens. Also, without a fault
both responses to a prompt have the same distribution, so their labels are exchangeable: a
permutation test (`same_tokens`) swaps labels within prompts and ranks the chi-square distance
between the token counts. It allows the tokens of a response to depend on each other.

None of these sees a small fault of sampled requests alone: with 24 responses of about 70 tokens,
samplers at 0.9 to 1.2 times the temperature passed all of them in 40 of 40 runs. The tail shows
samplers that are too random, and only the permutation test those that are too greedy, if the fault
is gross: at temperature 0 in 40 of 40 runs, at half the temperature in 12
(benchmarks/results/sampler_faults.md).

Shapes: R prompts, B bins of tokens, S permutations.
"""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, permutation_test

from outrider.eval.config import PERMUTATIONS, SEED
from outrider.eval.results.sections import Excess, GreedyComparison, SameText

TAIL_PROBABILITY = 1e-4

RARE = 10
"""Tokens with fewer occurrences over all responses share one bin."""


def compare_greedy(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    gap: Callable[[int, int, int, int], float],
    near_tie_nats: float,
) -> GreedyComparison:
    """Finds the responses that differ: near ties and unexplained differences.

    `gap(response, index, token, other)` is the distance in nats between the target's
    log-probabilities of two tokens at position `index` of the response.
    """
    near_ties: list[int] = []
    unexplained: list[int] = []
    for response, (a, b) in enumerate(zip(without, with_speculation, strict=True)):
        pairs = enumerate(zip(a, b, strict=False))
        index = next((index for index, (left, right) in pairs if left != right), None)
        if index is None:
            if len(a) != len(b):
                unexplained.append(response)
            continue
        # NaN is not a near tie.
        near = gap(response, index, a[index], b[index]) <= near_tie_nats
        (near_ties if near else unexplained).append(response)
    return GreedyComparison(responses=len(without), near_ties=near_ties, unexplained=unexplained)


def excess(speculated: GreedyComparison, control: GreedyComparison) -> Excess:
    """Tests whether more responses differ than in the control (same prompts).

    If speculation changes nothing, a prompt that differs in only one of `found` and `control` is
    equally likely to differ in either. So the number that differ only with speculation is binomial
    (McNemar's exact test, one-sided). All differences and the unexplained ones are tested
    separately; the p-value covers both tests (Bonferroni).
    """
    first = range(control.responses)
    all_found = {*speculated.near_ties, *speculated.unexplained} & {*first}
    all_alone = {*control.near_ties, *control.unexplained} & {*first}
    tests = [(all_found, all_alone), ({*speculated.unexplained} & {*first}, {*control.unexplained})]
    # P(at least len(ours - alone) heads in len(ours ^ alone) tosses of a fair coin).
    p_value = min(
        float(binom.sf(len(ours - alone) - 1, len(ours ^ alone), 0.5)) for ours, alone in tests
    )
    value = (len(all_found) - len(all_alone)) / control.responses
    # Bonferroni: the smaller of two p-values, times two.
    return Excess(value=value, p_value=min(1.0, 2 * p_value))


def tail_share(logprobs: Sequence[NDArray[np.float64]]) -> float:
    """Share of sampled tokens with probability below 1e-4 under the target."""
    return float((np.concatenate(logprobs) < np.log(TAIL_PROBABILITY)).mean())


def same_tokens(
    without: Sequence[Sequence[int]],
    with_speculation: Sequence[Sequence[int]],
    *,
    samples: int = PERMUTATIONS,
    seed: int = SEED,
) -> SameText:
    """Permutation test of the chi-square distance between the token counts.

    The distance is the sum of (a - b)^2 / (a + b) over bins. The p-value is exact if there are at
    most `samples` relabelings.
    """
    counts_2RB = _counts(without, with_speculation)
    total_B = counts_2RB.sum(axis=(0, 1))
    # Squared and summed, this is the distance. a + b does not depend on the labels, so all
    # relabelings share the division.
    difference_RB = (counts_2RB[0] - counts_2RB[1]) / np.sqrt(total_B)
    prompts = len(difference_RB)

    def distance_S(
        first: NDArray[np.int64], second: NDArray[np.int64], axis: int
    ) -> NDArray[np.float64]:
        # A relabeling states, for each prompt, which response (0 or 1) gets the first label.
        sign_SR = np.moveaxis(second - first, axis, -1)
        squared_SB: NDArray[np.float64] = (sign_SR @ difference_RB) ** 2
        # Rounded to keep equal distances equal: the order of summation changes the last bits.
        return np.round(squared_SB.sum(axis=-1), 9)

    test = permutation_test(
        (np.zeros(prompts, np.int64), np.ones(prompts, np.int64)),
        distance_S,
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=samples,
        rng=np.random.default_rng(seed),
    )
    return SameText(prompts=prompts, tokens=int(total_B.sum()), p_value=float(test.pvalue))


def _counts(
    without: Sequence[Sequence[int]], with_speculation: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Token counts [2, R, B] by response; rare tokens share one bin."""
    responses = [*without, *with_speculation]
    ids = np.fromiter(itertools.chain.from_iterable(responses), np.int64)
    _, index, occurrences = np.unique(ids, return_inverse=True, return_counts=True)
    # Rare tokens share a bin: one by one they would add noise to the distance, and no power.
    common = occurrences >= RARE
    # The bin of each distinct token; rare tokens share the last bin.
    bins = np.where(common, common.cumsum() - 1, common.sum())
    row = np.repeat(np.arange(len(responses)), [len(response) for response in responses])
    counts = np.zeros((len(responses), common.sum() + 1))
    np.add.at(counts, (row, bins[index]), 1)
    return counts[:, counts.any(axis=0)].reshape(2, len(without), -1)
