"""Capture survives kill -9: no piece on disk is captured twice; the store is the same.

    python -m pytest tests/data/features/test_capture_kills.py -m slow        # twenty kills

A stand-in engine computes states from the sequence and records its requests. All other code is
the capture's, in a separate process.
"""

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider.data.features.capture_plan import capture_batches, unfinished_batches
from outrider.data.features.feature_store import JOURNAL, MANIFEST, FeatureStore
from outrider.serving.engine import LoggedRow
from tests.data.features.stand_in_capture import BATCH_TOKENS, SEQUENCES

STAND_IN = "tests.data.features.stand_in_capture"


def start(directory: Path, asked: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", STAND_IN, str(directory), str(asked)], stderr=subprocess.DEVNULL
    )


def on_disk(directory: Path) -> set[str]:
    """Sequences of the shards that the journal, or in the end the manifest, vouches for."""
    if (directory / MANIFEST).exists():
        return {row["id"] for row in json.loads((directory / MANIFEST).read_text())["sequences"]}
    if not (directory / JOURNAL).exists():
        return set()
    whole = (directory / JOURNAL).read_text().split("\n")[:-1]
    return {row["id"] for line in whole[1:] for row in json.loads(line)["sequences"]}


@pytest.mark.parametrize(
    "kills",
    [pytest.param(2), pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_killed_at_random_moments_a_capture_ends_with_the_same_store(
    kills: int, tmp_path: Path
) -> None:
    rows = [
        LoggedRow(
            row_id=f"0-{index}",
            token_ids=range(3 + index % 5),
            completion_start=1,
            temperature=1.0,
            top_p=1.0,
        )
        for index in range(SEQUENCES)
    ]
    plan = list(capture_batches(rows, BATCH_TOKENS))
    whole = tmp_path / "whole"
    killed = tmp_path / "killed"
    chance = random.Random(kills)
    assert start(whole, tmp_path / "asked-whole").wait() == 0
    durable: set[str] = set()
    for run in itertools.count():
        log = tmp_path / f"asked-{run}"
        process = start(killed, log)
        if run < kills:
            while not log.exists() and process.poll() is None:
                time.sleep(0.002)
            time.sleep(chance.uniform(0, 0.002 * 2 * SEQUENCES / kills))
            process.kill()
        code = process.wait()
        # The last line may be torn: that sequence was not yet on its way to the disk.
        again = log.read_text().split("\n")[:-1] if log.exists() else []
        allowed = {
            row_id for piece in unfinished_batches(plan, durable) for row_id in piece.row_ids
        }
        assert set(again) <= allowed, "a whole piece captured twice"
        durable = on_disk(killed)
        if code == 0:
            break
    store = FeatureStore.open(killed)
    expected = FeatureStore.open(whole)
    assert store.manifest == expected.manifest, "other shards, or their bytes differ"
    assert store.sequence_ids == [f"0-{index}" for index in range(SEQUENCES)]
    assert not list(killed.glob(".*")), "a kill left a file behind"
