"""The step-0 gate."""

import pytest

from outrider.common.errors import OutriderError
from outrider.training.validation import check_parity


def test_parity_passes_within_its_tolerance_and_names_the_causes_beyond() -> None:
    base = {"acceptance": [0.81, 0.62]}
    check_parity(base, {"acceptance": [0.80, 0.63]}, tolerance=0.02)
    with pytest.raises(
        OutriderError,
        match=r"0\.810 0\.540.*0\.810 0\.620.*differ by 0\.080.*parity_tolerance=0\.02",
    ):
        check_parity(base, {"acceptance": [0.81, 0.54]}, tolerance=0.02)
