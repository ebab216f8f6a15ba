"""What a check allows, by the recipe's limit and the engine's own noise."""

import pytest

from outrider.common.tolerance import Tolerance


@pytest.mark.parametrize(
    ("control", "found", "outcome"),
    [
        (0.0, 0.02, "passed"),
        (0.0, 0.021, "failed"),
        (0.03, 0.039, "passed"),
        (0.03, 0.041, "failed"),
        (0.2, 0.06, "passed"),
        (0.2, 0.07, "undecided"),  # a noisy engine does not let everything pass
        (0.2, 0.22, "failed"),
        (float("nan"), 0.03, "failed"),
        (0.0, float("nan"), "failed"),
    ],
)
def test_what_only_the_engine_s_own_noise_explains_is_undecided(control, found, outcome):
    assert Tolerance(limit=0.02, control=control, margin=0.01).outcome(found) == outcome
