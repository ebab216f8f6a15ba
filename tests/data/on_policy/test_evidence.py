"""Evidence in closed form: three sequences with given sums."""

import numpy as np
import pytest

from outrider.data.on_policy.evidence import HEAD, REST, ROUNDING_NATS, Evidence
from outrider.serving.token_scores import COLUMNS, TEMPERATURES

SUMS = {  # (head, rest) of each sequence
    "tokens": [(8, 92), (8, 12), (4, 0)],
    "logprob": [(-4.0, -46.0), (-8.0, -12.0), (-2.0, 0.0)],
    "sampled_logprob": [(-2.0, -30.0), (-6.0, -9.0), (-1.0, 0.0)],
    "expected": [(-2.5, -27.5), (-3.0, -4.0), (-1.0, 0.0)],
    "variance": [(1.0, 8.0), (0.5, 0.5), (0.0, 0.0)],
    "top": [(6, 80), (4, 6), (4, 0)],
    "rare": [(0, 1), (2, 3), (0, 0)],
    "rare_difference": [(0.0, -2.0), (-3.0, -4.0), (0.0, 0.0)],
    "outside": [(0, 1), (2, 4), (0, 0)],
    "unlikely": [(0, 3), (2, 4), (0, 0)],
    "unlikely_expected": [(0.0, 5.0), (0.5, 0.5), (0.0, 0.0)],
    "sure": [(4, 36), (4, 6), (4, 0)],
    "sure_missed": [(0, 1), (1, 2), (0, 0)],
    "sure_missed_expected": [(0.0, 0.5), (0.0, 0.1), (0.0, 0.0)],
    "fitted": [(2, 18), (2, 4), (0, 0)],
    "logged_fit": [(-2.0, -20.0), (-3.0, -5.0), (0.0, 0.0)],
}


@pytest.fixture
def evidence():
    sums_SPC = np.zeros((3, 2, len(COLUMNS)))
    for name, sums in SUMS.items():
        sums_SPC[:, :, COLUMNS.index(name)] = sums
    for index, temperature in enumerate(
        TEMPERATURES
    ):  # most likely at 0.8 with the cut, at 0.5 without it
        distances = abs(index - TEMPERATURES.index(0.8)), abs(index - TEMPERATURES.index(0.5))
        sums_SPC[0, REST, COLUMNS.index(f"fit_{temperature:g}")] = -25.0 - distances[0]
        sums_SPC[0, REST, COLUMNS.index(f"uncut_{temperature:g}")] = -24.0 - distances[1]
        sums_SPC[1, HEAD, COLUMNS.index(f"stray_{temperature:g}")] = 13.0 - index
    return Evidence(
        list(COLUMNS),
        sums_SPC,
        np.array([0.6, 0.6, 1.0]),
        np.full(3, 0.95),
        np.array([False, True, False]),
    )


def rounding(tokens):
    return ROUNDING_NATS**2 * tokens


def test_z_is_the_difference_in_standard_errors(evidence):
    expected = [-2 / np.sqrt(9 + rounding(100)), -8 / np.sqrt(1 + rounding(20)), 0.0]
    np.testing.assert_allclose(evidence.z(), expected)


def test_difference_and_its_error_are_a_token_s(evidence):
    assert evidence.difference() == pytest.approx((-48 + 38) / 124)
    assert evidence.difference(HEAD) == pytest.approx((-9 + 6.5) / 20)
    assert evidence.difference(REST) == pytest.approx((-39 + 31.5) / 104)
    assert evidence.standard_error() == pytest.approx(np.sqrt(10 + rounding(124)) / 124)


def test_own_share_lacks_what_is_unlikely_beyond_what_is_expected(evidence):
    # The first has fewer unlikely tokens than on-policy text; its share is still capped at 1.
    np.testing.assert_allclose(evidence.own_share(), [1.0, 1 - 5 / 20, 1.0])


def test_the_temperature_that_fits_best_is_the_likeliest_of_the_grid(evidence):
    fit = evidence.fit_temperature()
    assert (fit.best, fit.tokens) == (0.8, 26)
    assert fit.gain == pytest.approx(-25 + 30)
    assert fit.stray_share == pytest.approx((13 - TEMPERATURES.index(0.8)) / 26)
    assert evidence.take(np.array([2])).fit_temperature() is None
