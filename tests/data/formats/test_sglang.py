from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import format_of, read_exchanges
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder

GOLDEN = Path(__file__).parents[1] / "golden" / "sglang"


def read(path):
    (file,) = log_files(str(path))
    assert format_of(file) == "sglang"
    return list(read_exchanges([file]))


@pytest.fixture(scope="module")
def rows():
    return read(GOLDEN / "level3.jsonl")


def test_finished_requests_at_level_3(rows):
    normal, multi, tool, cut, raw = (row for row in rows if isinstance(row, Exchange))
    assert normal.prompt_token_ids == [0, 11, 12, 13, 14]
    assert normal.completion_token_ids == [51, 52, 128799, 54, 1]
    assert (normal.content, normal.prompt_text) == ("She codes.\n</think>\n\nYes.", None)
    assert (normal.finish_reason, normal.stop_reason, normal.completion_tokens) == ("stop", 1, 5)
    assert (normal.session, normal.tenant, normal.time) == ("s-1", "acme", 1782907209.25 - 4.5)
    assert (normal.temperature, normal.top_p) == (0.6, 0.95)
    assert multi.completion_token_ids == [41, 128799, 43, 1]
    assert "<｜tool▁calls▁begin｜>" in tool.content and tool.tool_calls is None
    assert (cut.finish_reason, cut.stop_reason) == ("length", None)
    assert (raw.prompt_text, raw.prompt_is_raw, raw.stop_reason) == (
        "Say hi, then END",
        True,
        "END",
    )


def test_what_is_no_use_has_its_reason_and_its_lines(rows):
    assert [(row.place.line, row.reason, row.rows) for row in rows if isinstance(row, Reject)] == [
        (1, "not_a_generation", 4),
        (6, "not_a_generation", 1),
        (11, "partial_response", 1),
        (12, "not_finished", 1),
        (13, "not_a_generation", 1),
        (14, "not_text", 1),
        (15, "not_json", 1),
    ]


def test_lower_levels_are_recognized():
    whole, *rejects = read(GOLDEN / "level2.jsonl")
    assert whole.content == "Hm\n</think>\n\nYes."  # shorter than level 2 cuts
    assert [row.reason for row in rejects] == [
        "truncated_log",
        "truncated_log",
        "text_not_logged",
        "text_log",
    ]
    assert "--log-requests-level 3" in rejects[0].detail and "obj.text" in rejects[0].detail


def test_a_clients_own_prompt_is_opened_by_the_tokenizer(rows, text_target):
    builder = SequenceBuilder(text_target)
    raw = next(row for row in rows if isinstance(row, Exchange) and row.prompt_is_raw)
    sequence = builder.build(raw)
    expected = builder.tokenizer.encode(raw.prompt_text, add_special_tokens=True)
    assert sequence.token_ids[: sequence.completion_start] == expected
