"""Responses that lack text, found by the engine's counts."""

import pytest

from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.ingest.test_copies import run
from tests.data.logs import pair

WORDS = "the candidate has worked in sales and writes reports every week "


def rows_with(counts, text_target):
    """Rows of one answer; `counts` are added to their number of tokens."""
    ids = SequenceBuilder(text_target)._encode(f"r\n</think>\n\n{WORDS * 4}")
    for number, added in enumerate(counts):
        messages = [{"role": "user", "content": f"Question {number}"}]
        usage = {"prompt_tokens": 0, "completion_tokens": len(ids) + 1 + added}
        row = pair(messages, "r\n", f"\n\n{WORDS * 4}", response__id=f"id-{number}")
        row["response"]["usage"] = usage
        yield row


@pytest.mark.parametrize(
    ("counts", "truncated"),
    [
        ([0, 0, 0, 40], 1),  # a column of limited width has cut one
        ([0, 0, 0, 40, 90, 50], 3),
        ([0, 0, 0, 3], 0),  # the same text, tokenized differently
        ([0, 0, 0, -30], 0),
        ([0, 0, 40], 0),  # too few to know whose counts these are
        ([40, 35, 52, 0, 0, 0, 44], 0),  # estimates of another tokenizer
    ],
)
def test_a_response_with_fewer_tokens_than_counted_is_truncated(
    text_target, tmp_path, counts, truncated
):
    rows = list(rows_with(counts, text_target))
    summary, table, rejects = run(text_target, tmp_path, {"a.jsonl": rows}, max_reject_fraction=0.9)
    assert summary["rejects"] == ({"truncated": truncated} if truncated else {})
    assert len(table) == len(counts) - truncated
    assert summary["retokenized_against_usage"]["equal"] == counts.count(0)
    for reject in rejects:
        assert reject["detail"].startswith("the engine counted ")


def test_a_copy_of_such_a_response_is_a_copy(text_target, tmp_path):
    rows = list(rows_with([0, 0, 0, 40], text_target))
    summary, _, _ = run(
        text_target, tmp_path, {"a.jsonl": [*rows, rows[-1]]}, max_reject_fraction=0.9
    )
    assert summary["rejects"] == {"truncated": 1, "duplicate": 1}
