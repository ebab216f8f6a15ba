"""The pieces of a stream are those of a stored capture."""

from datasets import Dataset

from outrider.data.features.capture import _rows
from outrider.data.features.capture_plan import pieces, unfinished
from outrider.data.streaming.piece_plan import PiecePlan

LIMIT = 90
LENGTHS = [40, 10, 300, 95, 20, 20, 20, 20, 60, 60, 1, 99, 5]


def table() -> Dataset:
    return Dataset.from_list(
        [
            {
                "sequence_id": f"s{number}",
                "token_ids": list(range(length)),
                "completion_start": 1,
                "temperature": 0.6,
                "top_p": 0.95,
            }
            for number, length in enumerate(LENGTHS)
        ]
    )


def test_every_piece_is_that_of_a_capture_of_the_whole_table() -> None:
    expected = list(pieces(_rows(table(), LIMIT), 100))
    plan = PiecePlan(table(), LIMIT, 100)
    assert len(expected) > 5
    assert [plan.piece(number) for number in range(len(plan.tokens))] == expected
    assert plan.tokens == [piece.tokens for piece in expected]
    assert plan.piece_of == {name: piece.index for piece in expected for name in piece.row_ids}
    assert dict(zip(plan.ids, plan.lengths, strict=True))["s2"] == LIMIT


def test_some_rows_are_captured_in_their_whole_pieces() -> None:
    plan = list(pieces(_rows(table(), LIMIT), 100))
    wanted = {"s5", "s12"}
    chosen = list(unfinished(plan, (), wanted))
    assert [piece.index for piece in chosen] == sorted(
        {piece.index for piece in plan for name in piece.row_ids if name in wanted}
    )
    assert len(chosen) == 2
    assert [piece.index for piece in unfinished(plan, {"s5"}, wanted)] == [chosen[1].index]
    assert list(unfinished(plan, (), None)) == plan
