"""The regression of canary against stable: against dummies and loops, and its coverage."""

import math

import numpy as np
import pytest

from outrider.live.comparison import compare


def example(seed=0, requests=90):
    random = np.random.default_rng(seed)
    session = random.integers(0, 25, requests)
    canary = random.random(25)[session] < 0.4
    cell = np.arange(requests) // 15
    covariates = random.normal(size=(requests, 2)) + canary[:, None]
    logs = 0.2 * canary + covariates @ [-0.5, 0.3] + 0.1 * random.normal(size=requests)
    return logs + 0.3 * np.sin(cell), canary, cell, covariates, session


def with_dummies(logs, canary, cell, covariates):
    """The canary's coefficient of a regression with one dummy for every cell."""
    dummies = (cell[:, None] == np.unique(cell)).astype(float)
    matrix = np.column_stack([canary.astype(float), covariates, dummies])
    return np.linalg.lstsq(matrix, logs, rcond=None)[0][0]


def test_the_difference_and_its_error_are_those_of_dummies_without_each_session():
    logs, canary, cell, covariates, session = example()
    found = compare(logs, canary, cell, covariates, session)
    assert found.difference == pytest.approx(with_dummies(logs, canary, cell, covariates))
    without = []
    for each in np.unique(session):
        kept = session != each
        without.append(with_dummies(logs[kept], canary[kept], cell[kept], covariates[kept]))
    without = np.array(without)
    variance = (len(without) - 1) / len(without) * ((without - without.mean()) ** 2).sum()
    assert found.error == pytest.approx(math.sqrt(variance), rel=1e-6)
    assert found.sessions == len(np.unique(session[canary]))


def test_the_degrees_of_freedom_are_welch_s_where_sessions_are_single_requests():
    random = np.random.default_rng(1)
    for canaries, stables in ((8, 8), (8, 200)):
        canary = np.arange(canaries + stables) < canaries
        logs = random.normal(size=len(canary))
        found = compare(
            logs,
            canary,
            np.zeros(len(canary), int),
            np.zeros((len(canary), 0)),
            np.arange(len(canary)),
        )
        parts = 1 / canaries, 1 / stables  # variances of the means, with equal sigma
        welch = sum(parts) ** 2 / (parts[0] ** 2 / (canaries - 1) + parts[1] ** 2 / (stables - 1))
        assert found.degrees == pytest.approx(welch)


def test_an_hour_s_drift_and_a_rising_share_do_not_shift_the_ratio():
    random = np.random.default_rng(2)
    place = np.arange(2000) / 2000
    canary = random.random(2000) < np.where(place < 0.5, 0.05, 0.5)
    logs = -1.0 * (place > 0.5) + 0.1 * random.normal(size=2000)  # later hours are slower
    naive = logs[canary].mean() - logs[~canary].mean()
    found = compare(logs, canary, np.arange(2000) // 50, np.zeros((2000, 0)), np.arange(2000))
    assert naive < -0.3 and abs(found.difference) < 0.02


def test_load_that_does_not_overlap_gives_no_bounds():
    canary = np.arange(200) % 2 == 0
    load = np.where(canary, 0.0, 3.0)
    logs = np.random.default_rng(3).normal(size=200)
    cells = np.floor(load).astype(int)
    apart = compare(logs, canary, cells, load[:, None], np.arange(200)).bounds(0.05, 0.05)
    together = compare(logs, canary, cells * 0, load[:, None], np.arange(200)).bounds(0.05, 0.05)
    for found in (apart, together):
        assert math.isnan(found.value) and (found.low, found.high) == (0.0, math.inf)


@pytest.mark.parametrize("cells", [1, 3])
def test_a_covariate_that_does_not_vary_changes_nothing(cells):
    logs, canary, cell, covariates, session = example()
    plain = compare(logs, canary, cell % cells, covariates[:, :1], session)
    more = np.column_stack([covariates[:, :1], np.full(len(logs), 7.0)])
    assert compare(logs, canary, cell % cells, more, session) == plain


def test_one_arm_alone_has_no_ratio():
    logs, canary, cell, covariates, session = example()
    for arm in (canary, ~canary, canary & False):
        found = compare(logs[arm], canary[arm], cell[arm], covariates[arm], session[arm])
        assert math.isnan(found.difference)


def test_few_canary_sessions_miss_the_truth_at_any_look_in_five_percent_at_most():
    """5 % of the sessions, 3 alike requests each, skewed noise, 7 looks from 3 sessions on."""
    missed = np.zeros(2)
    trials = 100
    for trial in range(trials):
        random = np.random.default_rng([4, trial])
        session = np.arange(1500) // 3
        canary = (random.random(500) < 0.06)[session]
        own = random.standard_exponential(500)[session] * 0.2
        logs = own + 0.2 * random.standard_exponential(1500) + np.sin(np.arange(1500) / 200)
        cells, no_covariates = np.arange(1500) // 60, np.zeros((1500, 0))
        wrong = np.zeros((2, 7), bool)
        for look, end in enumerate(np.geomspace(150, 1500, 7).astype(int)):
            found = compare(
                logs[:end], canary[:end], cells[:end], no_covariates[:end], session[:end]
            ).bounds(0.05, 0.05)
            wrong[:, look] = found.low > 1, found.high < 1
        missed += wrong.any(axis=1)
    assert (missed / trials <= 0.05).all()
