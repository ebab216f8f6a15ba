"""The target's answers: each is generated once, whatever interrupts; a stub engine counts.

`on_policy/test_check.py` has a real engine answer.
"""

import collections
import stat

import numpy as np
import pytest
from datasets import Dataset

from outrider.data.config import MOST_FURTHER, further_answers
from outrider.data.features.answers import further_rows, logged_id, stored_answers, with_further
from outrider.data.features.capture_plan import capture_rows
from outrider.serving.engine import AskedRow, LoggedRow

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


def test_every_response_is_asked_for_once_across_interrupts(tmp_path):
    expected = {f"0-{number}": [number, 1] for number in range(1, 8)}
    path = tmp_path / "answers.json"

    def answers(engine):
        stored = stored_answers(
            answer=engine.answer, rows=ROWS, path=path, source=SOURCE, batch_tokens=8
        )
        return {name: ids.tolist() for name, ids in stored.items()}

    first = Answering(stops_at=2)
    second = Answering()
    third = Answering()
    with pytest.raises(KeyboardInterrupt):
        answers(first)
    assert answers(second) == expected
    asked = [name for batch in first.batches + second.batches for name in batch]
    assert asked == list(expected) and len(first.batches) == 2
    assert answers(third) == expected and not third.batches
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_requests_that_failed_are_no_answers_and_those_of_other_settings_go(tmp_path):
    path = tmp_path / "answers.json"

    def answer(rows):
        return [[] if row.row_id == "0-3" else [5] for row in rows]

    def stored(rows):
        return stored_answers(answer=answer, rows=rows, path=path, source=SOURCE, batch_tokens=8)

    assert stored(ROWS).keys() == {row.row_id for row in ROWS} - {"0-3"}
    assert stored([]) == {} and not path.exists()


END = 1


def logged(number, **changes):
    """A logged sequence: a prompt of `number` tokens, a response of 9 more and the end, END."""
    row = {
        "sequence_id": f"0-{number}",
        "token_ids": [7] * number + [8] * (number + 9) + [END],
        "completion_start": number,
        "fidelity": "exact",
        "finish_reason": "stop",
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "constraint": "",
        "grammar": "",
    }
    return row | changes


LOG = Dataset.from_list(
    [
        *map(logged, range(1, 9)),
        logged(10, temperature=0.0),
        logged(11, constraint="penalties"),
        logged(12, constraint="grammar", grammar="compiles"),
        logged(13, constraint="grammar", grammar="does not"),
        logged(14, constraint="grammar"),
        logged(15, top_k=1),
        logged(16, top_p=1e-6),
        logged(17, temperature=1e-5),
        logged(18, token_ids=[7] * 18 + [8] * 5),  # ended by a stop string
        logged(19, token_ids=[7] * 19 + [8] * 5, finish_reason="length"),
        logged(40),  # of the validation part
    ]
)
TRAIN = [name for name in LOG["sequence_id"] if name != "0-40"]
ASKED = {f"0-{number}" for number in [*range(1, 9), 12, 19]}


def asked(up_to, limit=100):
    return further_rows(
        table=LOG,
        train=TRAIN,
        up_to=up_to,
        limit=limit,
        end_ids={END},
        compiles=lambda text: text == "compiles",
    )


@pytest.mark.parametrize("up_to", [0, 17, 18, 19, 21, 28, 29, 35, 1000])
def test_a_small_log_is_filled_and_every_prompt_is_asked_equally_often(up_to):
    requests = asked(up_to)
    assert len(TRAIN) == 18
    assert len(requests) == min(max(up_to - 18, 0), MOST_FURTHER * len(ASKED))
    assert len({row.row_id for row in requests}) == len(requests)
    counts = collections.Counter(logged_id(row.row_id) for row in requests)
    assert set(counts) <= ASKED
    if requests:
        assert max(counts.values()) - min(counts.get(name, 0) for name in ASKED) <= 1


def test_a_round_that_is_not_whole_is_spread_over_the_log():
    numbers = [int(logged_id(row.row_id)[2:]) for row in asked(21)]
    assert numbers == [1, 5, 19]


def test_a_request_has_the_logged_sampling_and_room_for_the_longest_answer():
    of_prompt = {row.row_id: row for row in asked(1000, limit=30)}
    assert of_prompt["0-8+3"] == AskedRow(
        row_id="0-8+3", token_ids=[7] * 8, temperature=0.6, top_p=0.95, max_tokens=22, top_k=20
    )
    assert of_prompt["0-1+1"].max_tokens == 17 + 10
    assert of_prompt["0-12+1"].grammar == "compiles"


def test_a_prompt_that_fills_the_context_is_not_asked():
    assert {logged_id(row.row_id) for row in asked(1000, limit=8)} == ASKED - {
        "0-8",
        "0-12",
        "0-19",
    }


def test_further_answers_follow_the_logged_rows_and_regenerated_ones_replace_them():
    table = LOG.select([0, 1])
    answers = {"0-2": [5], "0-1+1": [4, 4], "0-2+1": [3] * 40, "0-1+2": [2]}
    answers = {name: np.asarray(ids, np.int32) for name, ids in answers.items()}

    def row(row_id, token_ids, start):
        return LoggedRow(row_id, token_ids, start, temperature=0.6, top_p=0.95, top_k=20)

    assert list(capture_rows(table, limit=20, answers=answers)) == [
        row("0-1", [7] + [8] * 10 + [END], 1),
        row("0-2", [7, 7, 5], 2),
        row("0-1+1", [7, 4, 4], 1),
        row("0-2+1", [7, 7] + [3] * 18, 2),
        row("0-1+2", [7, 2], 1),
    ]


def test_answers_to_a_prompt_are_next_to_each_other_in_the_training_part():
    """Else parts of it, which choose draft tokens, would share prompts."""
    captured = ["0-1", "0-2", "0-9", "0-3", "0-2+1", "0-9+1", "0-1+1", "0-2+2"]
    assert with_further(["0-2", "0-1", "0-3"], captured) == [
        *("0-2", "0-2+1", "0-2+2"),
        *("0-1", "0-1+1", "0-3"),
    ]


def test_the_number_of_answers_is_known_before_the_log_is_read():
    assert [further_answers(100, up_to) for up_to in (0, 100, 150, 5000)] == [0, 0, 50, 300]
