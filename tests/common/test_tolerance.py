import pytest

from outrider.common.tolerance import Tolerance


@pytest.mark.parametrize(
    ("control", "allowed"),
    [(0.0, 0.02), (0.01, 0.02), (0.015, 0.025), (0.2, 0.06), (float("nan"), 0.02)],
)
def test_an_engine_that_reproduces_itself_has_the_recipe_s_limit(control, allowed):
    tolerance = Tolerance(limit=0.02, control=control, margin=0.01)
    assert tolerance.allowed == pytest.approx(allowed)
