"""Advice on a log: sessions that last, small traffic, rows without token ids."""

from outrider.data.config import SplitConfig, TrafficConfig
from outrider.data.ingest.inspection import inspect
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import pair, screenings, write_log

DAY = 86_400.0


def look(target, tmp_path, rows, **split):
    log = write_log(tmp_path / "log.jsonl", rows)
    traffic, scratch = TrafficConfig(path=str(log)), tmp_path / "scratch"
    return inspect(target, traffic, SplitConfig(**split), scratch)


def rows(count, every=60.0, **fields):
    """Three exchanges in a row, every day."""
    return [
        pair(
            messages,
            reasoning,
            answer,
            timestamp=1_714_564_800 + DAY * (index // 3) + every * (index % 3),
            **{name: value(index) for name, value in fields.items()},
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(count))
    ]


def none(index):
    return None


def user(index):
    return f"user-{index // 3 % 4}"


def test_users_are_cut_into_sessions_and_small_traffic_is_named(text_target, tmp_path):
    found = look(text_target, tmp_path, rows(60, request__metadata=none, request__user=user))
    assert found["sessions"]["exchanges"] == {"user": 60} and found["sessions"]["distinct"] == 4
    assert found["split"]["left_out"] == {} and found["split"]["heldout"]["sessions"] == 4
    small, *_ = found["advice"]
    assert "60 exchanges, 4 held-out sessions" in small and "undecided" in small
    assert "at least 5 held-out sessions, about 25 in the log" in small and "about 150" in small
    assert not [text for text in found["advice"] if "leaves out" in text]


def test_a_split_that_leaves_out_more_than_a_tenth_is_named_with_its_key(text_target, tmp_path):
    lasting = rows(60, request__metadata__session_id=lambda index: f"s{index % 7}")
    found = look(text_target, tmp_path, lasting, heldout_fraction=0.4)
    [text] = [text for text in found["advice"] if "leaves out" in text]
    assert "session_began_in_an_earlier_part" in text and "split.session_gap_minutes = 30" in text


def test_users_without_times_are_named(text_target, tmp_path):
    timeless = rows(30, request__metadata=none, request__user=lambda index: f"user-{index // 3}")
    for row in timeless:
        del row["timestamp"]
        row["response"].pop("created", None)
    found = look(text_target, tmp_path, timeless)
    assert "neither a conversation id nor a time" in found["advice"][0]


def test_rows_without_token_ids_are_named_with_what_they_cost(text_target, tmp_path):
    logged = rows(240, request__metadata__session_id=lambda index: f"s{index}")
    builder = SequenceBuilder(text_target)
    for index, row in enumerate(logged):
        message = row["response"]["choices"][0]["message"]
        text = message["reasoning"] + "\n</think>\n\n" + message["content"]
        ids = builder._encode(text)
        wrong = 1 if index % 4 == 0 else 0
        row["response"]["usage"] = {"completion_tokens": len(ids) + 1 + wrong}
    found = look(text_target, tmp_path, logged)
    [text] = [text for text in found["advice"] if "token ids" in text]
    different = found["retokenized_against_usage"]["different"]
    assert 0 < different <= 60 and f"{different:,} of the 240" in text
    assert "240 of 240 exchanges have no token ids" in text and "`return_token_ids: true`" in text
