"""Step-0 parity: no false stop at any size of the validation part, and every fault is found."""

from pathlib import Path

import pytest

from outrider.speculators.config import ParityConfig
from outrider.speculators.parity import complaint
from tests.training.step0_cases import (
    FAULTS,
    base,
    batches,
    compared,
    healthy,
)

PARITY = ParityConfig()


@pytest.fixture(scope="module")
def small(nano_r1: Path):
    """The base, and three sequences: the smallest validation part."""
    return base(nano_r1), list(batches(nano_r1, "general", 3, every=50))


def test_the_prepared_speculator_passes_on_three_sequences(nano_r1: Path, small) -> None:
    of_base, sequences = small
    prepared = healthy(nano_r1)
    assert complaint(sum(compared(of_base, prepared, row) for row in sequences), PARITY) is None


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_every_fault_is_found_on_three_sequences(nano_r1: Path, small, fault) -> None:
    of_base, sequences = small
    prepared = fault(nano_r1)
    why = complaint(sum(compared(of_base, prepared, row) for row in sequences), PARITY)
    assert why is not None and "Usual causes" in why
