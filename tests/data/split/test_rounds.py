import random

from outrider.data.sequences import load_sequences
from outrider.data.split.rounds import choose_sequences, training_parts, unseen
from tests.data.split.test_split import prompt, table


def names(prefix, count):
    return [f"{prefix}{index}" for index in range(count)]


def test_a_round_takes_the_latest_and_a_share_of_older_ones():
    chosen = choose_sequences(names("n", 500), names("o", 900), 200, 0.3, seed=1)
    assert len(chosen) == 200 and len(set(chosen)) == 200
    assert chosen[60:] == names("n", 500)[-140:]
    older = [name for name in chosen if name[0] == "o"]
    assert len(older) == 60 and older == sorted(older, key=lambda name: int(name[1:]))
    assert chosen != choose_sequences(names("n", 500), names("o", 900), 200, 0.3, seed=2)


def test_the_share_of_older_ones_holds_where_few_are_new_or_few_are_old():
    few_new = choose_sequences(names("n", 70), names("o", 900), 2000, 0.3, seed=1)
    assert len(few_new) == 100 and sum(name[0] == "o" for name in few_new) == 30
    few_old = choose_sequences(names("n", 500), names("o", 3), 200, 0.3, seed=1)
    assert len(few_old) == 200 and sum(name[0] == "o" for name in few_old) == 3
    assert choose_sequences(names("n", 5), [], 200, 0.3, seed=1) == names("n", 5)
    assert choose_sequences(names("n", 5), names("o", 5), 200, 0.0, seed=1) == names("n", 5)


def sessions_of(data):
    return dict(zip(data["sequence_id"], data["session"], strict=True))


def test_the_latest_sessions_validate_and_none_is_in_both_parts(tmp_path):
    rng = random.Random(0)
    starts = [rng.uniform(0, 1000) for _ in range(40)]
    rows = [(f"s{s}", starts[s] + t, prompt(4 * s + t)) for s in range(40) for t in range(4)]
    rng.shuffle(rows)
    data = load_sequences(table(tmp_path, rows))
    parts = training_parts(data, validation_fraction=0.1, gap_minutes=30)
    of = sessions_of(data)
    trained, validating = ({of[name] for name in parts[part]} for part in ("train", "validation"))
    assert len(validating) == 4 and not trained & validating and len(trained) == 36
    assert sorted(starts[int(name[1:])] for name in validating) == sorted(starts)[-4:]
    assert len(parts["train"]) + len(parts["validation"]) == len(rows)


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
