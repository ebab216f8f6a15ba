"""Coverage of intervals over sessions on data whose truth is known."""

import math

import numpy as np
import pytest

from outrider.common.jackknife import LEAST_SESSIONS, degrees_of_freedom
from outrider.eval.stats.clusters import INDEPENDENT, clustered_estimate, jackknife_margin, trend_of


def ratio(sums):
    return sums[..., 0] / sums[..., 1]


def simulated(random, sessions, trials, spread=1.0, noise=0.2):
    """Steps of base and custom by session, [trials, sessions] each; the true ratio is 1.

    Sizes are log-normal. A session's own ratio is log-normal too, so that its noise is skewed.
    """
    size = np.exp(spread * random.standard_normal((trials, sessions)))
    gain = np.exp(noise * random.standard_normal((trials, sessions)) - noise**2 / 2)
    steps = size * np.exp(0.1 * random.standard_normal((trials, sessions)))
    return steps * gain, steps


def misses(base, custom):
    """Share of trials whose interval is wholly above, and wholly below the truth."""
    total = base.sum(axis=1, keepdims=True), custom.sum(axis=1, keepdims=True)
    log_ratio = np.log(total[0] / total[1])[:, 0]
    without = np.log((total[0] - base) / (total[1] - custom))
    margin = jackknife_margin(without, (base / total[0] + custom / total[1]) / 2)
    return (log_ratio > margin).mean(), (log_ratio < -margin).mean()


@pytest.mark.parametrize("spread", [0.5, 1.0])
def test_an_interval_is_wrong_on_one_side_in_three_percent_at_most(spread):
    random = np.random.default_rng(0)
    for sessions in (5, 6, 8, 12, 20, 30, 50):
        base, custom = simulated(random, sessions, 20_000, spread)
        # The other way around the skew is on the other side.
        for both in (misses(base, custom), misses(custom, base)):
            assert max(both) <= 0.03, (sessions, both)


@pytest.mark.parametrize("sessions", range(1, LEAST_SESSIONS))
def test_few_sessions_have_no_interval(sessions):
    base, custom = simulated(np.random.default_rng(sessions), sessions, 1)
    found = clustered_estimate(np.stack([base[0], custom[0]], axis=1), range(sessions), ratio)
    assert (found.low, found.high, found.clusters) == (None, None, sessions)
    assert found.value == pytest.approx(base.sum() / custom.sum())


def test_the_interval_is_the_jackknife_s_and_its_degrees_the_matrix_s():
    """Against leave-one-out in a loop, and tr(AC)^2 / tr(ACAC) by matrices."""
    from scipy.stats import t

    random = np.random.default_rng(2)
    (base,), (custom,) = simulated(random, 7, 1)
    rows = np.stack([base, custom], axis=1) / 3
    found = clustered_estimate(np.repeat(rows, 3, axis=0), np.repeat(np.arange(7), 3), ratio)

    without = [np.log(np.delete(base, g).sum() / np.delete(custom, g).sum()) for g in range(7)]
    variance = 6 / 7 * sum((each - np.mean(without)) ** 2 for each in without)
    share = (base / base.sum() + custom / custom.sum()) / 2
    form = np.diag((share / (1 - share)) ** 2)
    center = np.eye(7) - np.outer(np.ones(7), share)
    product = form @ center @ center.T
    degrees = np.trace(product) ** 2 / np.trace(product @ product)
    assert degrees_of_freedom(share[None])[0] == pytest.approx(degrees)
    factor = np.exp(t.ppf(0.975, degrees) * np.sqrt(variance))
    assert found.value == pytest.approx(base.sum() / custom.sum())
    assert (found.low, found.high) == pytest.approx((found.value / factor, found.value * factor))
    assert (found.observations, found.clusters) == (21, 7)


def test_one_session_that_holds_everything_leaves_no_interval():
    rows = np.array([[3.0, 2.0], *[[0.0, 0.0]] * 7])
    found = clustered_estimate(rows, range(8), ratio)
    assert found.value == 1.5 and found.low is None


@pytest.mark.parametrize("users", [5, 8, 20])
def test_users_that_differ_make_the_interval_theirs(users):
    """Users differ by 10 %, their sessions by 5 %: over sessions 15 % and more would be wrong."""
    random = np.random.default_rng(1)
    wrong = np.zeros(2)
    trials = 600
    for _ in range(trials):
        user_S = np.arange(60) % users
        size = np.exp(0.5 * random.standard_normal(60))
        factor_S = np.exp(0.1 * random.standard_normal(users))[user_S]
        rows = np.stack([size * factor_S * np.exp(0.05 * random.standard_normal(60)), size], axis=1)
        named = clustered_estimate(rows, range(60), ratio, users=[f"u{user}" for user in user_S])
        wrong += named.low > 1, clustered_estimate(rows, range(60), ratio).low > 1
    assert f"60 sessions of {users} users" in named.over
    assert wrong[0] / trials < 0.045 and wrong[1] / trials > 0.12


@pytest.mark.parametrize(("spread", "noise"), [(0.0, 0.1), (1.0, 0.1), (1.5, 0.1), (1.0, 0.03)])
def test_few_or_very_unequal_users_do_not_pass_for_many(spread, noise):
    """Five users of unequal traffic, of whom 2 to 5 are held out; 12 to 40 % by sessions alone."""
    random = np.random.default_rng(4)
    wrong = 0
    shown = 0
    alone = 0
    trials = 600
    for _ in range(trials):
        traffic = np.exp(spread * random.standard_normal(5))
        user_S = random.choice(5, 30, p=traffic / traffic.sum())
        size = np.exp(0.5 * random.standard_normal(30))
        factor_S = np.exp(noise * random.standard_normal(5) - noise**2 / 2)[user_S]
        rows = np.stack([size * factor_S * np.exp(0.05 * random.standard_normal(30)), size], axis=1)
        found = clustered_estimate(rows, range(30), ratio, users=[f"u{user}" for user in user_S])
        alone += clustered_estimate(rows, range(30), ratio).low > 1
        wrong = wrong + (found.low > 1)
        shown = shown + (1.3 * found.low > 1)
    assert wrong / trials <= 0.025 and shown / trials > 0.6 and alone / trials > 0.05


def test_five_sessions_are_enough_for_an_interval():
    base, custom = simulated(np.random.default_rng(5), LEAST_SESSIONS, 1)
    rows = np.stack([base[0], custom[0]], axis=1)
    found = clustered_estimate(rows, range(LEAST_SESSIONS), ratio)
    assert found.low is not None and found.low < found.value < found.high
    # Five users have an interval too: theirs, without an assumption.
    users = [*"abcde"]
    assert (
        clustered_estimate(rows, range(LEAST_SESSIONS), ratio, users=users).over
        == "5 sessions of 5 users"
    )


@pytest.mark.parametrize("gains", [[1.0, 1.5, 0.7], [1.0, 1.0, 1.001]])
def test_few_users_add_the_larger_of_measured_and_assumed_noise_by_hand(gains):
    """Six sessions of three users with equal traffic; z(0.975) = 1.959964."""
    rows = np.array([[gain, 1.0] for gain in gains for _ in range(2)])
    plain = clustered_estimate(rows, range(6), ratio)
    named = clustered_estimate(rows, range(6), ratio, users=[*"aabbcc"])
    mean = sum(gains) / 3
    logs = [math.log((3 * mean - gain) / 2) for gain in gains]  # without one user's sessions
    center = sum(logs) / 3
    measured = math.sqrt(2 / 3 * sum((log - center) ** 2 for log in logs))
    shares = [(gain / (3 * mean) + 1 / 3) / 2 for gain in gains]
    assumed = 0.1 * math.sqrt(sum(share**2 for share in shares))
    assert (measured > assumed) == (gains[1] == 1.5)
    margin = 1.959964 * max(measured, assumed)
    sessions_margin = math.log(plain.high / plain.value)
    assert math.log(named.high / named.value) == pytest.approx(math.hypot(sessions_margin, margin))


def test_two_users_of_whom_one_has_all_gains_get_the_assumed_noise():
    """Without that user there is no ratio, so nothing is measured; half of each sum is theirs."""
    rows = np.array([[1.0 + 0.1 * row, 1.0] for row in range(6)] + [[0.0, 1.0]] * 6)
    plain = clustered_estimate(rows, range(12), ratio)
    named = clustered_estimate(rows, range(12), ratio, users=[*"a" * 6, *"b" * 6])
    # User a has all of one sum and half of the other: 3/4; b the other quarter.
    margin = 1.959964 * 0.1 * math.sqrt(0.75**2 + 0.25**2)
    sessions_margin = math.log(plain.high / plain.value)
    assert math.log(named.high / named.value) == pytest.approx(math.hypot(sessions_margin, margin))
    assert named.over == "12 sessions of 2 users, assumed to differ by 10%"


def test_many_users_of_whom_one_has_all_gains_leave_no_interval():
    rows = np.array([[1.0, 1.0]] * 6 + [[0.0, 1.0]] * 6)
    users = [*"a" * 6, *"bcdefg"]
    assert clustered_estimate(rows, range(12), ratio).low is not None
    found = clustered_estimate(rows, range(12), ratio, users=users)
    assert found.low is None and found.over.endswith("with the wider interval over users")


def test_unknown_users_are_assumed_to_be_three_who_differ():
    """Independent margins add as the root of the sum of squares: 1.96 x 0.1 / sqrt(3)."""
    base, custom = simulated(np.random.default_rng(3), 12, 1, noise=0.01)
    rows = np.stack([base[0], custom[0]], axis=1)
    plain = clustered_estimate(rows, range(12), ratio)
    found = clustered_estimate(rows, range(12), ratio, users=[""] * 12)
    assert found.by_session == (plain.low, plain.high) and plain.by_session is None
    margin = math.hypot(math.log(plain.high / plain.value), 1.959964 * 0.1 / math.sqrt(3))
    assert math.log(found.high / found.value) == pytest.approx(margin)


def test_users_that_are_not_logged_do_not_make_an_interval_too_narrow():
    """Eight users with Zipf's traffic whose gains differ by 10 %."""
    random = np.random.default_rng(6)
    traffic = 1 / np.arange(1, 9)
    wrong = np.zeros(2)
    trials = 600
    for _ in range(trials):
        user_S = random.choice(8, 100, p=traffic / traffic.sum())
        size = np.exp(0.5 * random.standard_normal(100))
        factor_S = np.exp(0.1 * random.standard_normal(8) - 0.005)[user_S]
        rows = np.stack([size * factor_S, size], axis=1)
        found = clustered_estimate(rows, range(100), ratio, users=[""] * 100)
        wrong += found.low > 1, found.by_session[0] > 1
    assert wrong[0] / trials <= 0.03 and wrong[1] / trials > 0.1


def test_what_an_interval_speaks_for():
    base, custom = simulated(np.random.default_rng(3), 12, 1, noise=0.01)
    rows = np.stack([base[0], custom[0]], axis=1)
    plain = clustered_estimate(rows, range(12), ratio)

    def over(*users):
        found = clustered_estimate(rows, range(12), ratio, users=users)
        return found.over, found.low == plain.low

    # An id that all share is not a user, so users are unknown, as without ids.
    unknown = "12 sessions of unknown users, assumed to be 3 who differ by 10%"
    assert over(*["one"] * 12) == over(*[""] * 12) == (unknown, False)
    assert over(*[INDEPENDENT] * 12) == over() == ("12 sessions", True)
    few = "12 sessions of 3 users, assumed to differ by 10%"
    assert over(*["a", "b", "c"] * 4) == (few, False)
    gain = np.repeat([1, 1.1, 0.9, 1.2, 0.8, 1], 2) + 0.01 * base[0]
    rows = np.stack([gain, np.ones(12)], axis=1)
    plain = clustered_estimate(rows, range(12), ratio)
    wider = "12 sessions of 6 users, with the wider interval over users"
    assert over(*np.repeat([*"abcdef"], 2)) == (wider, False)
    # A session of an unknown user counts as one.
    assert over(*["a", "a", *[""] * 10])[0].startswith("12 sessions of 1 user")


def test_a_trend_is_the_slope_per_span_with_an_error_that_covers():
    """Log ratios that fall by 0.05 per span of 10, with the noise of 40 sessions."""
    random = np.random.default_rng(7)
    sessions = np.arange(120) // 3
    covered = 0
    trials = 400
    for _ in range(trials):
        times = random.uniform(0, 15, 40)[sessions]
        size = np.exp(0.3 * random.standard_normal(120))
        noise = 0.1 * random.standard_normal(40)[sessions]
        rows = np.stack([size * np.exp(noise - 0.005 * times), size], axis=1)
        trend = trend_of(rows, times, sessions, ratio, span=10)
        covered += abs(trend.slope + 0.05) < 2 * trend.error
    assert 0.92 < covered / trials < 0.98
    exact = np.stack([size * np.exp(-0.005 * times), size], axis=1)
    assert trend_of(exact, times, sessions, ratio, span=10).slope == pytest.approx(-0.05)


def test_no_trend_without_enough_sessions_or_different_times():
    rows = np.ones((12, 2))
    times = np.arange(12.0)
    assert trend_of(rows, times, times // 3, ratio, span=11) is None
    assert trend_of(rows, np.zeros(12), times, ratio, span=1) is None
    assert trend_of(rows, times, times, ratio, span=11).slope == pytest.approx(0)
