"""Regenerated responses: each is generated once, whatever interrupts; a stub engine counts."""

import stat

import pytest

from outrider.data.privacy.regenerate import FILE, regenerate
from outrider.serving.engine import AskedRow

ROWS = [
    AskedRow(
        row_id=f"0-{number}", token_ids=[7] * number, temperature=0.6, top_p=0.95, max_tokens=10
    )
    for number in range(1, 8)
]
SOURCE = {"target": "a", "sequences": "b"}


class Answering:
    """Responds to each prompt with its length; interrupted before batch `stops_at`."""

    def __init__(self, stops_at=None):
        self.batches = []
        self.stops_at = stops_at

    def answer(self, rows):
        if len(self.batches) == self.stops_at:
            raise KeyboardInterrupt
        self.batches.append([row.row_id for row in rows])
        return [[len(row.token_ids), 1] for row in rows]


def plain(answers):
    return {name: ids.tolist() for name, ids in answers.items()}


EXPECTED = {f"0-{number}": [number, 1] for number in range(1, 8)}


def test_every_response_is_asked_for_once_across_interrupts(tmp_path):
    first = Answering(stops_at=2)
    second = Answering()
    third = Answering()
    with pytest.raises(KeyboardInterrupt):
        regenerate(first.answer, ROWS, tmp_path, SOURCE, batch_tokens=8)
    assert (
        plain(
            regenerate(
                answer=second.answer, rows=ROWS, out_dir=tmp_path, source=SOURCE, batch_tokens=8
            )
        )
        == EXPECTED
    )
    asked = [name for batch in first.batches + second.batches for name in batch]
    assert asked == list(EXPECTED) and len(first.batches) == 2
    assert (
        plain(
            regenerate(
                answer=third.answer, rows=ROWS, out_dir=tmp_path, source=SOURCE, batch_tokens=8
            )
        )
        == EXPECTED
        and not third.batches
    )
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
