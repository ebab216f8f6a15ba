"""Step-0 parity: no false stop at any size of the validation part, and every fault is found."""

import json
from pathlib import Path

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.config import ParityConfig, SpeculatorConfig
from outrider.training.step0_parity import allowed, complaint
from tests.training.corpus import make_corpus
from tests.training.step0_cases import (
    FAULTS,
    MEASURED,
    base,
    batches,
    compared,
    found,
    healthy,
    measure,
)

PARITY = ParityConfig()
SIZES = (3, 4, 5, 7, 10, 20, 50, 200, 1000)
WORKLOADS = ("resume_screening", "general", "social_chat")


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


def stops(sums: np.ndarray, size: int, runs: int, seed: int = 0) -> float:
    """Share of `runs` validation parts of `size` sequences, drawn from measured ones, that stop."""
    rows = np.random.default_rng(seed).integers(len(sums), size=(runs, size))
    counts = np.stack([np.bincount(each, minlength=len(sums)) for each in rows]).astype(float)
    drawn_RK4 = np.einsum("rs,skc->rkc", counts, sums)
    return float(np.mean([complaint(found(each), PARITY) is not None for each in drawn_RK4]))


def recorded() -> dict[str, np.ndarray]:
    return {name: np.array(rows) for name, rows in json.loads(MEASURED.read_text()).items()}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_false_stop_in_a_thousand_runs_of_any_size(workload: str) -> None:
    measured = recorded()
    for size in SIZES:
        assert stops(measured[f"{workload} healthy"], size, runs=1000) == 0, size
        least = 0.95 if size < 7 else 0.999
        for fault in ("pre_norm", "positions_stay"):  # the faults that change drafts least
            assert stops(measured[f"{workload} {fault}"], size, runs=200) >= least, (size, fault)


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS)
def test_no_false_stop_measured_again(nano_r1: Path, workload: str) -> None:
    """As recorded, on more sequences, and for every fault."""
    sums, *faulty = measure(nano_r1, workload, 80, [healthy, *FAULTS])
    for size in SIZES:
        assert stops(sums, size, runs=1000) == 0, size
        for fault, of_fault in zip(FAULTS, faulty, strict=True):
            least = 0.95 if size < 7 else 0.999
            assert stops(of_fault, size, runs=200) >= least, (size, fault)


def test_the_limits_approach_the_configured_ones() -> None:
    shares, differences = zip(*(allowed(n, PARITY) for n in (100, 10**4, 10**8)), strict=True)
    assert list(shares) == sorted(shares, reverse=True)
    assert list(differences) == sorted(differences, reverse=True)
    assert shares[-1] == pytest.approx(1 - PARITY.min_agreement, rel=0.01)
    assert differences[-1] == pytest.approx(PARITY.max_difference, rel=0.01)


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


@pytest.mark.slow
def test_a_run_with_parity_warn_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert bf16_run(tmp_path, parity="warn")["steps"] > 0
    assert "warning: step-0 parity: before any update" in capfd.readouterr().out
