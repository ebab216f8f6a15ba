import random
from collections import Counter, defaultdict

from outrider.data.sequences import load_sequences
from outrider.data.split.rounds import choose_sequences, held_back, training_parts, unseen
from tests.data.split.test_split import prompt, table

NOBODY = defaultdict(str)


def names(prefix, count):
    return [f"{prefix}{index}" for index in range(count)]


def test_a_round_takes_the_latest_and_a_share_of_older_ones():
    chosen = choose_sequences(names("n", 500), names("o", 900), 200, 0.3, seed=1, owners=NOBODY)
    assert len(chosen) == 200 and len(set(chosen)) == 200
    assert chosen[60:] == names("n", 500)[-140:]
    older = [name for name in chosen if name[0] == "o"]
    assert len(older) == 60 and older == sorted(older, key=lambda name: int(name[1:]))
    assert chosen != choose_sequences(
        names("n", 500), names("o", 900), 200, 0.3, seed=2, owners=NOBODY
    )


def test_the_share_of_older_ones_holds_where_few_are_new_or_few_are_old():
    few_new = choose_sequences(names("n", 70), names("o", 900), 2000, 0.3, seed=1, owners=NOBODY)
    assert len(few_new) == 100 and sum(name[0] == "o" for name in few_new) == 30
    few_old = choose_sequences(names("n", 500), names("o", 3), 200, 0.3, seed=1, owners=NOBODY)
    assert len(few_old) == 200 and sum(name[0] == "o" for name in few_old) == 3
    assert choose_sequences(names("n", 5), [], 200, 0.3, seed=1, owners=NOBODY) == names("n", 5)
    assert choose_sequences(names("n", 5), names("o", 5), 200, 0.0, seed=1, owners=NOBODY) == names(
        "n", 5
    )


def sessions_of(data):
    return dict(zip(data["sequence_id"], data["session"], strict=True))


def test_no_owner_has_more_than_its_share_while_others_have_sequences():
    newer, older = names("n", 400), names("o", 400)
    owners = {name: "large" if int(name[1:]) % 10 else "small" for name in newer + older}
    chosen = choose_sequences(newer, older, 100, 0.3, seed=1, owners=owners)
    counts = Counter(owners[name] for name in chosen)
    assert len(chosen) == 100 and counts["small"] == 50
    assert [name for name in chosen if name[0] == "n"][-1] == "n399"
    alone = dict.fromkeys(newer, "large")
    assert choose_sequences(newer, [], 100, 0.3, seed=1, owners=alone) == newer[-100:]


def test_no_round_trains_on_sessions_that_are_held_back(tmp_path):
    rng = random.Random(0)
    rows = [(f"s{s}", rng.uniform(0, 1000), prompt(4 * s + t)) for s in range(40) for t in range(4)]
    rng.shuffle(rows)
    data = load_sequences(table(tmp_path / "a", rows))
    parts = training_parts(data, validation_fraction=0.1, gap_minutes=30)
    of = sessions_of(data)
    trained, validating = ({of[name] for name in parts[part]} for part in ("train", "validation"))
    assert set(parts["validation"]) == set(held_back(data, 0.1))
    assert 1 <= len(validating) <= 9 and not trained & validating
    assert len(parts["train"]) + len(parts["validation"]) == len(rows)
    # Also in another window.
    other = load_sequences(table(tmp_path / "b", rows[:80]))
    again = {sessions_of(other)[name] for name in held_back(other, 0.1)}
    assert again == validating & set(other["session"])


def test_one_long_session_is_cut_by_time(tmp_path):
    data = load_sequences(table(tmp_path, [("only", float(t), prompt(t)) for t in range(20)]))
    parts = training_parts(data, validation_fraction=0.1, gap_minutes=30)
    assert parts["validation"] == ["0-18", "0-19"] and len(parts["train"]) == 18


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
    found = unseen(trained, load_sequences(table(tmp_path / "b", newest)), 30, 0.9)
    assert found.ids == ["0-2", "0-3"]
    assert sorted(found.left_out.values()) == [1, 1]
    assert found.sessions == {"0-2": "t1", "0-3": "t2"}


def test_a_new_template_does_not_make_its_prompts_look_alike(tmp_path):
    """Long instructions that are in a minority of the trained prompts."""
    instructions = " ".join(f"i{n}" for n in range(400))
    receipts = [(f"r{n}", 100.0 + n, f"{instructions} {prompt(n)[-60:]}") for n in range(30)]
    resumes = [(f"s{n}", float(n), prompt(n)) for n in range(60)]
    trained = load_sequences(table(tmp_path / "a", resumes + receipts[:10]))
    newest = load_sequences(table(tmp_path / "b", receipts[10:]))
    assert len(unseen(trained, newest, 30, 0.9).ids) == 20
