"""Step-0 parity: no false stop at any size of the validation part, and every fault is found."""

from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.config import ParityConfig, SpeculatorConfig
from outrider.training.step0_parity import complaint
from tests.training.corpus import make_corpus
from tests.training.step0_cases import (
    FAULTS,
    base,
    batches,
    compared,
    found,
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
    assert complaint(found(sum(compared(of_base, prepared, row) for row in sequences)), PARITY) is (
        None
    )


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_every_fault_is_found_on_three_sequences(nano_r1: Path, small, fault) -> None:
    of_base, sequences = small
    prepared = fault(nano_r1)
    why = complaint(found(sum(compared(of_base, prepared, row) for row in sequences)), PARITY)
    assert why is not None and "usual causes" in why.lower()


def bf16_run(folder: Path, **settings: object) -> dict:
    """With limits that bf16 cannot meet: no other draft at all, no near tie."""
    corpus = make_corpus(folder / "corpus", train_sequences=4, validation_sequences=2)
    parity = ParityConfig(min_agreement=1.0, near_tie_nats=0.0)
    speculator = SpeculatorConfig(depth=3, parity=parity)
    return corpus.train(folder / "run", speculator=speculator, compute="bf16", epochs=1, **settings)


def test_a_run_stops_before_its_first_update(tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=r"step-0 parity: .* \(0.00% allowed\).*parity=warn"):
        bf16_run(tmp_path)
    assert not (tmp_path / "run" / "speculator").exists()
