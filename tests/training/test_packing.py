"""Packing: no piece is lost or doubled, rows are full, the order depends on the seed alone."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import SequenceLength
from outrider.training.packing import (
    cut_at_rows,
    make_samples,
    pack,
    plan_epoch,
    rows_of_process,
    samples_of_part,
)
from tests.fuzzing import examples


@given(st.lists(st.integers(1, 100), max_size=60))
@examples(50)
def test_every_piece_is_in_exactly_one_row_that_has_room(lengths: list[int]) -> None:
    rows = pack(list(enumerate(lengths)), row_tokens=100)
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in row) <= 100 for row in rows)
    # If rows are filled as well as possible, no two of them are at most half full.
    assert sum(sum(lengths[index] for index in row) <= 50 for row in rows) <= 1


def fullest(lengths: list[int], room: int) -> int:
    """The largest sum of some of the lengths that fits, by trying all of them."""
    choices = itertools.product([False, True], repeat=len(lengths))
    sums = (sum(itertools.compress(lengths, choice)) for choice in choices)
    return max(total for total in sums if total <= room)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(30, 50))
@examples(50)
def test_the_first_row_of_each_order_is_as_full_as_it_can_be(
    lengths: list[int], row_tokens: int
) -> None:
    rows = pack(list(enumerate(lengths)), row_tokens)
    filled = sum(lengths[index] for index in rows[0])
    first_in_order = lengths[0] + fullest(lengths[1:], row_tokens - lengths[0])
    longest, *rest = sorted(lengths, reverse=True)
    assert filled in (first_in_order, longest + fullest(rest, row_tokens - longest))


def test_equally_full_rows_have_the_earliest_pieces() -> None:
    # After the 6, both 4s fill the row; so do 3 + 1 and the last 4.
    pieces = list(enumerate([6, 3, 4, 1, 4]))
    assert pack(pieces, row_tokens=10)[0] == (0, 2)


def test_anchors_start_at_the_state_before_the_first_completion_token() -> None:
    rows = [
        *[("a", 10, 4), ("b", 300, 5), ("c", 10, 9), ("d", 300, 120)],
        *[("shortest", 3, 1), ("without prompt", 3, 0), ("full", 100, 99)],
    ]
    samples, left_out = make_samples([SequenceLength(*row) for row in rows], row_tokens=100)
    assert [(sample.sequence_id, sample.length, sample.first_anchor) for sample in samples] == [
        ("a", 10, 3),
        ("b", 100, 4),
        ("shortest", 3, 0),  # one draft: token 2, after the prefill's token 1
        ("without prompt", 3, 0),
    ]
    # Sequence a: completion 4..9; the prefill returns token 4; drafts predict 5..9 at depth 0 and
    # 7..9 at depth 2.
    assert [samples[0].targets(s) for s in range(7)] == [5, 4, 3, 2, 1, 0, 0]
    assert "shorter than two tokens" in left_out["c"]
    assert "fills a row" in left_out["d"]
    assert "shorter than two tokens" in left_out["full"]  # it fits the row


def test_a_part_without_states_or_samples_names_the_first(tmp_path) -> None:
    sequences = {name: SequenceLength(name, 10, start) for name, start in [("a", 4), ("b", 9)]}

    def of_part(*ids: str) -> list[str]:
        samples, _ = samples_of_part(
            sequences, ids, row_tokens=100, part="validation", features_dir=tmp_path
        )
        return [sample.sequence_id for sample in samples]

    assert of_part("b", "a") == ["a"]
    with pytest.raises(
        OutriderError, match=r"no states for 2 sequences of the validation.* first x;"
    ):
        of_part("a", "x", "y")
    with pytest.raises(OutriderError, match=r"validation part was left out.*shorter than two"):
        of_part("b")


def test_responses_that_lose_their_end_are_counted_as_the_samples_are_cut() -> None:
    rows = [("a", 10, 4), ("b", 300, 5), ("c", 150, 98), ("d", 300, 99), ("e", 101, 20)]
    sequences = [SequenceLength(*row) for row in rows]
    samples, left_out = make_samples(sequences, row_tokens=100)
    counts = cut_at_rows(sequences, row_tokens=100)
    assert counts.cut == sum(sample.length == 100 for sample in samples) == 3
    assert (counts.cut_tokens, counts.dropped) == (200 + 50 + 1, len(left_out))
    assert counts.describe() == (
        "training.row_tokens = 100: of 5 responses 3 are cut off (251 tokens lost) and 1 are left"
        " out; raise it by 200 to keep all"
    )
    assert cut_at_rows([SequenceLength("a", 100, 20)], row_tokens=100).describe() == ""


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    sequences = [SequenceLength(str(i), 20 + i * 37 % 400, 10) for i in range(2000)]
    samples, _ = make_samples(sequences, row_tokens=1024)

    def plan(seed: int, epoch: int) -> list:
        return plan_epoch(samples, row_tokens=1024, rows_per_step=4, seed=seed, epoch=epoch)

    assert plan(0, 0) == plan(0, 0)
    assert plan(0, 0) != plan(0, 1) != plan(1, 1)
    rows = list(itertools.chain.from_iterable(plan(0, 3)))
    assert sorted(itertools.chain.from_iterable(rows)) == list(range(2000))
    assert sum(sample.length for sample in samples) > 0.97 * 1024 * len(rows)  # little padding


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_processes_share_the_rows_of_every_remaining_step(world: int) -> None:
    """A short step repeats its first row in the turns without one."""
    steps = [[(4 * step + turn,) for turn in range(4)] for step in range(5)] + [[(20,), (21,)]]
    shares = [
        rows_of_process(steps=steps, first_step=2, rows_per_step=4, rank=rank, world=world)
        for rank in range(world)
    ]
    merged = [row for turn in zip(*shares, strict=True) for row in turn]
    computed = -(-4 // world) * world
    repeated = [(steps[step] + steps[step][:1] * computed)[:computed] for step in (2, 3, 4, 5)]
    assert merged == [row for rows in repeated for row in rows]
