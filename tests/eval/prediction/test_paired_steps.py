"""Servers that take turns are compared within turns: the machine's speed cancels."""

import numpy as np

from outrider.eval.prediction.paired_steps import fit_paired
from outrider.eval.prediction.step_fit import fit_steps
from tests.eval.sample_kinds import STEPS_MS, sample_kind_steps

TRUE = np.log(STEPS_MS["eagle3"][3] / STEPS_MS["mtp"][3])
SIZE = 4


def log_ratio(seed: int, own_noise: float = 0.03) -> tuple[float, np.ndarray, float]:
    """Log of eagle3's time over mtp's at 4 drafts: paired, its draws, and fitted separately."""
    steps = sample_kind_steps(seed=seed, own_noise=own_noise)
    tables = {name: steps.tables(name) for name in steps.turns}
    paired = fit_paired(tables, 200, seed)
    one, other = paired["eagle3"], paired["mtp"]
    alone = {
        name: fit_steps({size: np.concatenate(own) for size, own in table.items()}, 10, seed)
        for name, table in tables.items()
    }
    return (
        float(np.log(one.step_s[SIZE][3] / other.step_s[SIZE][3])),
        np.log(one.draws_S[SIZE][:, 3] / other.draws_S[SIZE][:, 3]),
        float(np.log(alone["eagle3"].step_s[SIZE][3] / alone["mtp"].step_s[SIZE][3])),
    )


def test_the_ratio_of_two_servers_is_known_better_than_from_separate_fits() -> None:
    found = [log_ratio(seed) for seed in range(20)]
    paired = np.array([value for value, _, _ in found]) - TRUE
    separate = np.array([value for _, _, value in found]) - TRUE
    assert abs(paired.mean()) < 0.015
    assert paired.std() < 0.75 * separate.std()


def test_the_interval_has_the_noise_of_turns() -> None:
    covered = []
    for seed in range(30):
        _, drawn_S, _ = log_ratio(seed)
        low, high = np.quantile(drawn_S, [0.025, 0.975])
        covered.append(low <= TRUE <= high)
    assert 0.85 <= np.mean(covered) <= 1.0
    width = [
        np.ptp(np.quantile(log_ratio(seed, noise)[1], [0.025, 0.975]))
        for seed, noise in ((0, 0.01), (0, 0.1))
    ]
    assert width[1] > 2 * width[0]


def test_a_turn_that_a_server_missed_says_nothing_of_levels() -> None:
    steps = sample_kind_steps()
    tables = {name: steps.tables(name) for name in steps.turns}
    slow = {
        name: {size: list(own) for size, own in table.items()} for name, table in tables.items()
    }
    # mtp has no time in a turn in which the others met a machine ten times slower.
    for name, table in slow.items():
        width = tables[name][SIZE][0].shape[1]
        table[SIZE].append(np.empty((0, width)) if name == "mtp" else 10 * tables[name][SIZE][0])
    for name, fit in fit_paired(slow, 50, 0).items():
        before = fit_paired(tables, 50, 0)[name].step_s[SIZE]
        np.testing.assert_allclose(fit.step_s[SIZE], before, rtol=0.12)


def test_one_turn_has_no_noise_of_turns() -> None:
    steps = sample_kind_steps()
    tables = {
        name: {size: own[:1] for size, own in steps.tables(name).items()} for name in steps.turns
    }
    for fit in fit_paired(tables, 50, 0).values():
        assert all(np.isfinite(draws).all() for draws in fit.draws_S.values())
