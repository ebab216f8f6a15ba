import itertools
import random

from datasets import Dataset, Features, Value

from outrider.data.config import SplitConfig
from outrider.data.ingest.chunks import SCHEMA
from outrider.data.split.split import PARTS, split

COLUMNS = Features.from_arrow_schema(SCHEMA)


def prompt(index):
    rng = random.Random(index)
    return "Screen the résumé below against the posting. " + " ".join(
        f"w{rng.randrange(10**6)}" for _ in range(60)
    )


def table(tmp_path, rows, kinds=None):
    """`rows`: (session, time, prompt); `kinds`: what each session identifies."""
    columns = {
        "sequence_id": [f"0-{index}" for index in range(len(rows))],
        "session": [session for session, _, _ in rows],
        "time": [time for _, time, _ in rows],
        "prompt_text": [text for _, _, text in rows],
        "token_ids": [[1, 2, 3, 4]] * len(rows),
        "completion_start": [2] * len(rows),
        "session_kind": kinds or ["conversation"] * len(rows),
    }
    for name, feature in COLUMNS.items():
        columns.setdefault(name, ["" if feature == Value("string") else 1.0] * len(rows))
    Dataset.from_dict(columns, features=COLUMNS).save_to_disk(str(tmp_path / "sequences"))
    return tmp_path / "sequences"


def shuffled_sessions(sessions=50, seed=0):
    rng = random.Random(seed)
    rows = []
    for session in range(sessions):
        start = rng.uniform(0, 1000)
        rows += [
            (f"s{session}", start + rng.uniform(0, 60) * turn, prompt(len(rows) + turn))
            for turn in range(rng.randint(1, 4))
        ]
    rng.shuffle(rows)
    return rows


def test_parts_follow_each_other_in_time_and_share_no_session(tmp_path):
    rows = shuffled_sessions()
    result = split(table(tmp_path, rows), SplitConfig(), tmp_path)
    of = {part: [rows[int(sequence_id[2:])] for sequence_id in result[part]] for part in PARTS}
    for earlier, later in itertools.pairwise(PARTS):
        assert max(time for _, time, _ in of[earlier]) < min(time for _, time, _ in of[later])
        assert not {session for session, _, _ in of[earlier]} & {
            session for session, _, _ in of[later]
        }
    for part in PARTS:
        times = [time for _, time, _ in of[part]]
        assert times == sorted(times)
    assert len({session for session, _, _ in of["heldout"]}) == 10
    assert len({session for session, _, _ in of["validation"]}) == 5
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
