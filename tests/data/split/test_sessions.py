"""Sessions: conversations last, users' sessions end after a pause; the split by them."""

import itertools
import random

import numpy as np
import pytest

from outrider.data.config import SplitConfig
from outrider.data.sequences import load_sequences, log_order, session_names
from outrider.data.split.split import BEGAN_EARLIER, PARTS, split
from tests.data.split.test_split import prompt, table

GAP = 30 * 60


def named(tmp_path, rows, kinds):
    sequences = load_sequences(table(tmp_path, rows, kinds))
    return session_names(sequences, log_order(sequences["time"]), gap_minutes=30)


@pytest.mark.parametrize(
    ("kind", "sessions"), [("user", 3), ("first_question", 3), ("conversation", 1), ("", 1)]
)
def test_a_pause_ends_a_session_without_a_conversation_id(tmp_path, kind, sessions):
    times = [0.0, GAP, 2 * GAP + 1, 2 * GAP + 2, 9 * GAP]
    names = named(tmp_path, [("ada", time, prompt(0)) for time in times], [kind] * 5)
    assert len(set(names)) == sessions
    if sessions == 3:
        assert names == ["ada", "ada", "session 0-2", "session 0-2", "session 0-4"]


def test_sessions_equal_those_of_a_slow_reference(tmp_path):
    rng = random.Random(0)
    rows = [(f"u{rng.randrange(4)}", rng.uniform(0, 40) * GAP, prompt(i)) for i in range(200)]
    names = named(tmp_path, rows, ["user"] * 200)
    for (one, first), (two, second) in itertools.combinations(zip(names, rows, strict=True), 2):
        same_user = first[0] == second[0]
        low, high = sorted((first[1], second[1]))
        between = sorted(row[1] for row in rows if row[0] == first[0] and low <= row[1] <= high)
        assert (one == two) == (same_user and not any(np.diff(between) > GAP))


def lasting_users(count=300, users=12, weeks=2, seed=0):
    """Users who come back every day or so, with some exchanges each time."""
    rng = random.Random(seed)
    rows = []
    while len(rows) < count:
        user, start = f"u{rng.randrange(users)}", rng.uniform(0, weeks * 7 * 86400.0)
        times = itertools.accumulate(rng.uniform(10, 600) for _ in range(rng.randint(1, 5)))
        rows += [(user, start + time, prompt(len(rows) + turn)) for turn, time in enumerate(times)]
    return rows[:count]


def test_users_who_last_for_weeks_are_not_left_out(tmp_path):
    rows = lasting_users()
    of_users = split(table(tmp_path / "a", rows, ["user"] * len(rows)), SplitConfig(), tmp_path)
    assert of_users["summary"]["left_out"].get(BEGAN_EARLIER, 0) < 0.02 * len(rows)
    for earlier, later in itertools.pairwise(PARTS):
        times = [[rows[int(i[2:])][1] for i in of_users[part]] for part in (earlier, later)]
        assert max(times[0]) < min(times[1])
    named_by = {**{f"0-{n}": row[0] for n, row in enumerate(rows)}, **of_users["sessions"]}
    kept = [{named_by[i] for i in of_users[part]} for part in PARTS]
    assert not kept[0] & kept[1] and not kept[1] & kept[2] and not kept[0] & kept[2]
    assert [len(names) for names in kept] == [
        of_users["summary"][part]["sessions"] for part in PARTS
    ]
    # With ids of conversations that last as long, most are.
    lasting = table(tmp_path / "b", rows, ["conversation"] * len(rows))
    left_out = split(lasting, SplitConfig(), tmp_path)["summary"]["left_out"]
    assert left_out[BEGAN_EARLIER] > 0.5 * len(rows)


def test_heldout_prompts_are_kept_apart_from_validation(tmp_path):
    rows = [(f"s{index}", float(index), prompt(index)) for index in range(100)]
    rows[85] = ("s85", 85.0, prompt(75))
    rows[95] = ("s95", 95.0, prompt(3).replace("w", "W") + " thanks")
    result = split(table(tmp_path, rows), SplitConfig(), tmp_path)
    assert result["left_out"] == {
        "0-85": "near_identical_to_a_validation_prompt",
        "0-95": "near_identical_to_a_training_prompt",
    }
    assert "0-75" in result["validation"]
    # A prompt that was not sampled for validation has chosen nothing.
    few = split(table(tmp_path / "few", rows), SplitConfig(max_validation_sequences=1), tmp_path)
    assert ("0-85" in few["left_out"]) == ("0-75" in few["validation"])
