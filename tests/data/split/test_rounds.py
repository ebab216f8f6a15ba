import random
from collections import Counter, defaultdict

from outrider.data.sequences import load_sequences
from outrider.data.split.rounds import (
    choose_sequences,
    held_back_ids,
    select_unseen,
    training_parts,
)
from tests.data.split.test_split import prompt, table

NOBODY = defaultdict(str)


def names(prefix, count):
    return [f"{prefix}{index}" for index in range(count)]


def test_a_round_takes_the_latest_and_a_share_of_older_ones():
    chosen = choose_sequences(
        names("n", 500), names("o", 900), most=200, older_share=0.3, seed=1, owners=NOBODY
    )
    assert len(chosen) == 200 and len(set(chosen)) == 200
    assert chosen[60:] == names("n", 500)[-140:]
    older = [name for name in chosen if name[0] == "o"]
    assert len(older) == 60 and older == sorted(older, key=lambda name: int(name[1:]))


def sessions_of(data):
    return dict(zip(data["sequence_id"], data["session"], strict=True))


def test_no_owner_has_more_than_its_share_while_others_have_sequences():
    newer = names("n", 400)
    older = names("o", 400)
    owners = {name: "large" if int(name[1:]) % 10 else "small" for name in newer + older}
    chosen = choose_sequences(newer, older, most=100, older_share=0.3, seed=1, owners=owners)
    counts = Counter(owners[name] for name in chosen)
    assert len(chosen) == 100 and counts["small"] == 50
    assert [name for name in chosen if name[0] == "n"][-1] == "n399"
    alone = dict.fromkeys(newer, "large")
    assert (
        choose_sequences(newer, [], most=100, older_share=0.3, seed=1, owners=alone) == newer[-100:]
    )


def test_no_round_trains_on_sessions_that_are_held_back(tmp_path):
    rng = random.Random(0)
    rows = [(f"s{s}", rng.uniform(0, 1000), prompt(4 * s + t)) for s in range(40) for t in range(4)]
    rng.shuffle(rows)
    data = load_sequences(table(tmp_path / "a", rows))
    parts = training_parts(data, validation_fraction=0.1, gap_minutes=30)
    of = sessions_of(data)
    trained, validating = ({of[name] for name in parts[part]} for part in ("train", "validation"))
    assert set(parts["validation"]) == set(held_back_ids(data, 0.1))
    assert 1 <= len(validating) <= 9 and not trained & validating
    assert len(parts["train"]) + len(parts["validation"]) == len(rows)
    # Also in another window.
    window = load_sequences(table(tmp_path / "b", rows[:80]))
    again = {sessions_of(window)[name] for name in held_back_ids(window, 0.1)}
    assert again == validating & set(window["session"])


def test_the_gate_leaves_out_trained_sessions_and_prompts(tmp_path):
    trained = load_sequences(
        table(tmp_path / "a", [(f"s{n}", float(n), prompt(n)) for n in range(30)])
    )
    newest = [
        ("s29", 31.0, prompt(100)),  # goes on
        ("t1", 32.0, prompt(3)),  # asked before
        ("t1", 33.0, prompt(101)),
        ("t2", 34.0, prompt(102)),
    ]
    selection = select_unseen(trained, load_sequences(table(tmp_path / "b", newest)), 30, 0.9)
    assert sorted(selection.left_out.values()) == [1, 1]
    assert selection.sessions == {"0-2": "t1", "0-3": "t2"}
