"""The split by session and time, sessions, and general traffic."""

import itertools
import random

import numpy as np
import pytest
from datasets import Dataset, Features, Value

from outrider.common.errors import OutriderError
from outrider.data.config import SplitConfig
from outrider.data.ingest.chunks import SCHEMA
from outrider.data.sequences import load_sequences, log_order, session_names
from outrider.data.split.split import PARTS, add_general, split

COLUMNS = Features.from_arrow_schema(SCHEMA)


def words(rng, count):
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(count))


def prompt(index):
    return f"Screen the résumé below against the posting. {words(random.Random(index), 60)}"


def table(tmp_path, rows, kinds=None, tokens=4):
    """`rows`: (session, time, prompt); `kinds`: what each session identifies."""
    columns = {
        "sequence_id": [f"0-{index}" for index in range(len(rows))],
        "session": [session for session, _, _ in rows],
        "time": [time for _, time, _ in rows],
        "prompt_text": [text for _, _, text in rows],
        "token_ids": [list(range(1, tokens + 1))] * len(rows),
        "completion_start": [tokens - 2] * len(rows),
        "session_kind": kinds or ["conversation"] * len(rows),
    }
    for name, feature in COLUMNS.items():
        columns.setdefault(name, ["" if feature == Value("string") else 1.0] * len(rows))
    Dataset.from_dict(columns, features=COLUMNS).save_to_disk(str(tmp_path / "sequences"))
    return tmp_path / "sequences"


def test_a_table_of_an_earlier_version_is_refused(tmp_path):
    directory = table(tmp_path, [("s", 1.0, prompt(0))])
    load_sequences(directory).remove_columns("grammar").save_to_disk(str(tmp_path / "old"))
    with pytest.raises(OutriderError, match=r"earlier version of Outrider.*rerun `outrider train`"):
        load_sequences(tmp_path / "old")


def test_parts_follow_each_other_in_time_and_share_no_session(tmp_path):
    rng = random.Random(0)
    starts = [rng.uniform(0, 1000) for _ in range(50)]
    rows = [
        (f"s{session}", start + rng.uniform(0, 60) * turn, prompt(4 * session + turn))
        for session, start in enumerate(starts)
        for turn in range(1 + session % 4)
    ]
    rng.shuffle(rows)
    result = split(table(tmp_path, rows), SplitConfig(), tmp_path)
    of = {part: [rows[int(sequence_id[2:])] for sequence_id in result[part]] for part in PARTS}
    times = [time for part in PARTS for _, time, _ in of[part]]
    assert times == sorted(times)
    sessions = {part: {session for session, _, _ in of[part]} for part in PARTS}
    assert len(set.union(*sessions.values())) == sum(map(len, sessions.values())), "shared ones"
    assert len(sessions["validation"]) == 5 and len(sessions["heldout"]) == 10
    everywhere = [*itertools.chain(*(result[part] for part in PARTS)), *result["left_out"]]
    assert sorted(everywhere) == sorted(f"0-{index}" for index in range(len(rows)))
    assert set(result["left_out"].values()) == {"session_began_in_an_earlier_part"}


def test_a_row_without_a_time_follows_the_row_before_it_in_the_log(tmp_path):
    times = [5.0, None, 9.0, None, None, 1.0, None, 7.0, 3.0, None]
    rows = [(f"s{index}", time, prompt(index)) for index, time in enumerate(times)]
    result = split(table(tmp_path, rows), SplitConfig(), tmp_path)
    in_order = [sequence_id for part in PARTS for sequence_id in result[part]]
    assert in_order == [f"0-{row}" for row in (5, 6, 8, 9, 0, 1, 7, 2, 3, 4)]
    summary = result["summary"]
    assert (summary["train"]["first_time"], summary["train"]["last_time"]) == (1.0, 7.0)
    assert (summary["heldout"]["first_time"], summary["heldout"]["last_time"]) == (None, None)


def test_limits_keep_a_seeded_sample_in_the_order_of_time(tmp_path):
    sequences = table(
        tmp_path, [(f"s{index}", float(index), prompt(index)) for index in range(100)]
    )
    limits = SplitConfig(
        max_train_sequences=20, max_validation_sequences=3, max_heldout_sequences=7
    )
    result = split(sequences, limits, tmp_path)
    assert [len(result[part]) for part in PARTS] == [20, 3, 7]
    assert result["summary"]["left_out"]["max_train_sequences"] == 50
    assert result["train"] == sorted(result["train"], key=lambda sequence_id: int(sequence_id[2:]))
    assert split(sequences, limits, tmp_path) == result


GAP = 30 * 60


def named(tmp_path, rows, kinds):
    sequences = load_sequences(table(tmp_path, rows, kinds))
    return session_names(sequences, log_order(sequences["time"]), gap_minutes=30)


@pytest.mark.parametrize("kind", ["user", "first_question", "conversation", ""])
def test_a_pause_ends_a_session_without_a_conversation_id(tmp_path, kind):
    times = [0.0, GAP, 2 * GAP + 1, 2 * GAP + 2, 9 * GAP]
    names = named(tmp_path, [("ada", time, prompt(0)) for time in times], [kind] * 5)
    cut = ["ada", "ada", "session 0-2", "session 0-2", "session 0-4"]
    assert names == (cut if kind in ("user", "first_question") else ["ada"] * 5)


def test_sessions_equal_those_of_a_slow_reference(tmp_path):
    rng = random.Random(0)
    rows = [(f"u{rng.randrange(4)}", rng.uniform(0, 40) * GAP, prompt(i)) for i in range(200)]
    names = named(tmp_path, rows, ["user"] * 200)
    for (one, first), (two, second) in itertools.combinations(zip(names, rows, strict=True), 2):
        same_user = first[0] == second[0]
        low, high = sorted((first[1], second[1]))
        between = sorted(row[1] for row in rows if row[0] == first[0] and low <= row[1] <= high)
        assert (one == two) == (same_user and not any(np.diff(between) > GAP))


def test_users_who_last_for_weeks_are_not_left_out(tmp_path):
    """Four users who come back every day, with three exchanges each time."""
    times = [86_400.0 * (index // 3) + 60 * (index % 3) for index in range(120)]
    rows = [(f"u{index // 3 % 4}", time, prompt(index)) for index, time in enumerate(times)]
    result = split(table(tmp_path, rows, ["user"] * len(rows)), SplitConfig(), tmp_path)
    assert result["summary"]["left_out"] == {}
    logged = {f"0-{index}": user for index, (user, *_) in enumerate(rows)}
    part_sessions = [
        {(logged | result["sessions"])[name] for name in result[part]} for part in PARTS
    ]
    assert sum(map(len, part_sessions)) == len(set.union(*part_sessions)) == 40


def test_heldout_prompts_are_kept_apart_from_validation(tmp_path):
    rows = [(f"s{index}", float(index), prompt(index)) for index in range(100)]
    rows[85] = ("s85", 85.0, prompt(75))
    rows[95] = ("s95", 95.0, prompt(3).replace("w", "W") + " thanks")
    result = split(table(tmp_path, rows), SplitConfig(), tmp_path)
    assert result["left_out"] == {
        "0-85": "near_identical_to_a_validation_prompt",
        "0-95": "near_identical_to_a_training_prompt",
    }
    # A prompt that was not sampled for validation has chosen nothing.
    few = split(table(tmp_path / "few", rows), SplitConfig(max_validation_sequences=1), tmp_path)
    assert ("0-85" in few["left_out"]) == ("0-75" in few["validation"])


def general_table(prefix, prompts, in_a_session=1):
    numbers = range(len(prompts))
    return Dataset.from_dict(
        {
            "sequence_id": [f"{prefix}{number}" for number in numbers],
            "session": [f"{prefix}s{number // in_a_session}" for number in numbers],
            "time": [float(number) for number in numbers],
            "prompt_text": prompts,
        }
    )


def mixed(general, general_share=0.2, customers_trained=None):
    """The parts of 80 exchanges of customers with general ones, and the numbers of these."""
    customers = general_table("0-", [prompt(number) for number in range(80)])
    parts = {"train": customers["sequence_id"][:], "validation": [], "heldout": []}
    summary = {}
    add_general(
        parts=parts,
        summary=summary,
        customers=customers,
        general=general,
        split=SplitConfig(general_share=general_share),
        customers_trained=customers_trained or len(parts["train"]),
    )
    return parts, summary["general"]


def test_the_share_is_of_the_whole_training_part_and_the_latest_is_measured():
    general = general_table("g0-", [prompt(number) for number in range(100, 200)])
    parts, noted = mixed(general)
    trained = [name for name in parts["train"] if name.startswith("g")]
    assert len(parts["train"]) == 100 and len(trained) == 20  # 20 %
    assert parts["general"] == [f"g0-{number}" for number in range(80, 100)]  # a fifth, the latest
    assert not set(trained) & set(parts["general"])
    assert noted == {"sequences": 100, "trained_on": 20, "wanted": 20, "measured_on": 20}
    assert mixed(general)[0] == parts


def test_further_answers_have_their_share_of_general_traffic():
    general = general_table("g0-", [prompt(number) for number in range(100, 300)])
    assert mixed(general, customers_trained=320)[1]["trained_on"] == 80


def test_sessions_stay_on_one_side_and_copies_of_training_prompts_are_not_measured():
    prompts = [prompt(number) for number in (*range(100, 199), 3)]
    general = general_table("g0-", prompts, in_a_session=8)
    parts, _ = mixed(general, general_share=0.45)
    sessions = dict(zip(general["sequence_id"], general["session"], strict=True))
    trained = {sessions[name] for name in parts["train"] if name.startswith("g")}
    assert len(trained) >= 9 and not trained & {sessions[name] for name in parts["general"]}
    assert "g0-99" not in parts["general"] and "g0-98" in parts["general"]
