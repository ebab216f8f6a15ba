"""The judge's error rates in small: `make test-long`. At length: benchmarks/results/judge.md."""

import numpy as np
import pytest

from benchmarks.canary_decisions import shares
from benchmarks.judge import judged

TRIALS = 300
CANARY = {"canary_slow_promoted": 0.05, "canary_equal_rolled_back": 0.05}
MOST = {
    "false_ship": 0.025,
    "false_ship_cut": 0.025,
    "false_ship_no_ids": 0.03,
    "adapt_false_rounds": 0.05,
} | CANARY


@pytest.mark.slow
def test_the_judge_is_wrong_as_rarely_as_it_must_be():
    found = judged(TRIALS) | shares(np.random.default_rng(0), trials=100)
    for name, most in MOST.items():
        chance = 3 * np.sqrt(most * (1 - most) / 100)
        assert found[name] <= most + chance, (name, found)
    assert found["power_110"] >= 0.6 and found["power_110_quiet"] >= 0.75, found
    assert found["slower_than_none_refused"] >= 0.6 and found["coverage_worst"] >= 0.85, found
