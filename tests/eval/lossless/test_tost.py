"""TOST: the interval against its formula, its error rates against simulation."""

import numpy as np
import pytest

from outrider.eval.lossless.tost import Z, equivalence, responses_needed


@pytest.mark.parametrize(
    ("with_only", "without_only", "same"), [(0, 0, 24), (3, 1, 40), (10, 14, 100)]
)
def test_without_clusters_it_is_agresti_and_min_s_interval(with_only, without_only, same):
    differences = [1] * with_only + [-1] * without_only + [0] * same
    n = len(differences)
    found = equivalence(differences, [str(i) for i in range(n)])
    # Their table with half a response added to each of its four cells; the value stays observed.
    b, c = with_only + 0.5, without_only + 0.5
    literal = np.sqrt((b + c) - (with_only - without_only) ** 2 / n) / (n + 2)
    assert found.value == pytest.approx((with_only - without_only) / n)
    assert found.high - found.value == pytest.approx(Z * literal)
    assert found.within(0.1) == (found.low > -0.1 and found.high < 0.1)


def test_few_equal_responses_show_nothing():
    assert not equivalence([0] * 12, range(12)).within(0.1)
    assert not equivalence([0] * 14, range(14)).within(0.1)
    assert equivalence([0] * 15, range(15)).within(0.1) and responses_needed(0.0, 0.1) == 15


def test_a_gain_beyond_the_margin_is_no_equivalence_either():
    gained = [1] * 30 + [0] * 70
    found = equivalence(gained, range(100))
    assert not found.within(0.1) and found.low > 0.1


def test_responses_of_one_session_count_as_little_as_they_are_worth():
    differences = [1] * 20 + [-1] * 20 + [0] * 160
    apart = equivalence(differences, range(200))
    together = equivalence(differences, [i // 10 for i in range(200)])  # two sessions +1, two -1
    assert apart.within(0.1) and not together.within(0.1)
    assert together.clusters == 20
    needed = [responses_needed(each.variance, 0.1) for each in (together, apart)]
    assert needed[0] > 5 * needed[1]


@pytest.mark.parametrize("variance", [0.0, 0.05, 0.25, 1.0])
@pytest.mark.parametrize("margin", [0.02, 0.1, 0.3])
def test_as_many_as_are_needed_suffice_and_one_less_does_not(variance, margin):
    n = responses_needed(variance, margin)

    def half_width(n):
        return Z * np.sqrt(variance * n + 1) / (n + 2)

    assert half_width(n) < margin and (n == 1 or half_width(n - 1) >= margin)


def test_what_is_as_bad_as_the_margin_passes_one_time_in_twenty():
    """4,000 evaluations of 150 pairs: with a difference equal to the margin, and with none."""
    random, n, runs = np.random.default_rng(0), 150, 4000

    def passed(with_only, without_only):
        draws = random.choice(
            [1.0, -1.0, 0.0],
            p=[with_only, without_only, 1 - with_only - without_only],
            size=(runs, n),
        )
        return np.mean([equivalence(row, range(n)).within(0.1) for row in draws])

    assert 0.02 < passed(0.05, 0.15) < 0.065
    assert passed(0.05, 0.05) > 0.9
