"""The profile of a small log against hand-computed numbers."""

from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from tests.data.logs import pair, screenings, write_log

NOON = 1_714_564_800
"""Start of a minute."""


def test_lengths_are_those_of_the_table(text_target, builder, tmp_path):
    """Ten minutes with two exchanges each, five in the fourth.

    The last three share one prompt; one was cut in its reasoning.
    """
    times = [*range(NOON, NOON + 600, 30), NOON + 181, NOON + 182, NOON + 183]
    conversations = list(screenings(20))
    conversations += [conversations[0]] * 3
    rows = [
        pair(*conversation, timestamp=time)
        for conversation, time in zip(conversations, times, strict=True)
    ]
    rows[7]["response"]["choices"][0] |= {
        "message": {"role": "assistant", "reasoning": conversations[7][1], "content": None},
        "finish_reason": "length",
    }
    log = write_log(tmp_path / "log.jsonl", rows)
    summary = ingest(text_target, TrafficConfig(path=str(log)), tmp_path / "out", workers=0)
    table = load_sequences(tmp_path / "out" / "sequences")
    end_of_reasoning = builder.tokenizer.convert_tokens_to_ids("</think>")
    completions = [row["token_ids"][row["completion_start"] :] for row in table]
    expected = {
        "prompt": table["completion_start"][:],
        "completion": [len(completion) for completion in completions],
        "reasoning": [
            c.index(end_of_reasoning) if end_of_reasoning in c else len(c) for c in completions
        ],
    }
    for name, lengths in expected.items():
        measured_lengths = summary["lengths"][name]
        assert (measured_lengths["n"], measured_lengths["max"]) == (len(lengths), max(lengths))
        assert measured_lengths["p50"] == sorted(lengths)[(len(lengths) - 1) // 2]
    assert summary["time"]["busiest_minute"] == 5
    assert (summary["duplicates"]["identical"], summary["duplicates"]["most_copies"]) == (3, 4)
