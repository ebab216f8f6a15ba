"""What training prints about a step: columns with names, within 120 characters."""

from typing import Any

import pytest

from outrider.training.metrics import step_line, validation_line


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("share", [0.0, 0.31])
def test_lines_fit_and_name_their_columns(depth: int, share: float) -> None:
    rates = [0.642, 0.566, 0.514, *[0.4] * 5][:depth]
    values: dict[str, Any] = {
        "loss": 10.4227,
        "expected_acceptance": rates,
        "learning_rate": 4.9e-5,
        "tokens_per_s": 104_713.0,
        "wait_share": 0.0,
        "padding_share": share,
    }
    if share:
        values["mfu"] = share
    step = step_line(1_980, 15_000, values, 1.8)
    profile = {"acceptance": rates, "acceptance_length": [2.025] * depth, "sequences": 1_064}
    validation = validation_line(1_980, 15_000, profile, 26.1)
    for line in (step, validation):
        assert len(line) <= 120
        assert f"(drafts 1-{depth})" in line
    assert ("padding 31%" in step) is bool(share)
    assert "waiting" not in step
