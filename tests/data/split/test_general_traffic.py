"""General traffic: mixed into training by its share; the later, different rest is held out."""

import random

from datasets import Dataset

from outrider.data.config import SplitConfig
from outrider.data.split.split import add_general


def words(rng, count=40):
    return " ".join(f"w{rng.randrange(10**6)}" for _ in range(count))


def table(prefix, count, session_of=lambda number: number, seed=0):
    rng = random.Random(seed)
    return Dataset.from_dict(
        {
            "sequence_id": [f"{prefix}{number}" for number in range(count)],
            "session": [f"{prefix}s{session_of(number)}" for number in range(count)],
            "time": [float(number) for number in range(count)],
            "prompt_text": [words(rng) for _ in range(count)],
        }
    )


def mixed(customers, general, general_share=0.2, **limits):
    parts = {"train": customers["sequence_id"][:], "validation": [], "heldout": []}
    summary = {}
    split = SplitConfig(general_share=general_share, **limits)
    add_general(parts, summary, customers, general, split)
    return parts, summary["general"]


def test_the_share_is_of_the_whole_training_part_and_the_latest_is_measured():
    customers, general = table("0-", 80), table("g0-", 100, seed=1)
    parts, noted = mixed(customers, general)
    trained = [name for name in parts["train"] if name.startswith("g")]
    assert len(parts["train"]) == 100 and len(trained) == 20  # 20 %
    assert parts["general"] == [f"g0-{number}" for number in range(80, 100)]  # a fifth, the latest
    assert not set(trained) & set(parts["general"])
    assert noted == {"sequences": 100, "trained_on": 20, "wanted": 20, "measured_on": 20}
    assert mixed(customers, general)[0] == parts


def test_sessions_stay_on_one_side_and_copies_of_training_prompts_are_not_measured():
    customers = table("0-", 80)
    general = table("g0-", 100, session_of=lambda number: number // 8, seed=1)
    prompts = general["prompt_text"][:]
    prompts[99] = customers["prompt_text"][3]
    general = general.remove_columns("prompt_text").add_column("prompt_text", prompts)
    parts, _ = mixed(customers, general, general_share=0.45)
    sessions = dict(zip(general["sequence_id"], general["session"], strict=True))
    trained = {sessions[name] for name in parts["train"] if name.startswith("g")}
    assert len(trained) >= 9 and not trained & {sessions[name] for name in parts["general"]}
    assert "g0-99" not in parts["general"] and "g0-98" in parts["general"]
