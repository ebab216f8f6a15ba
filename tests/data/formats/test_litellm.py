import json
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import format_of, read_exchanges
from outrider.data.ingest.sources import log_files
from tests.data.logs import write_log

GOLDEN = Path(__file__).parents[1] / "golden" / "litellm"


def read(path):
    return list(read_exchanges(log_files(str(path))))


@pytest.fixture(scope="module")
def rows():
    return read(GOLDEN / "payloads.jsonl")


def test_date_folders_of_one_payload_a_file():
    files = log_files(str(GOLDEN / "2026-07-01"))
    assert [format_of(file) for file in files] == ["litellm", "litellm"]
    first, second = read(GOLDEN / "2026-07-01")
    assert (first.reasoning, first.content, first.finish_reason) == (
        "She codes.\n",
        "\n\nYes.",
        "stop",
    )
    assert (first.session, first.tenant, first.route) == ("s-1", "acme", "screening")
    assert (first.model, first.time, first.completion_tokens) == ("deepseek-r1", 1782907201.25, 12)
    assert (first.temperature, first.top_p) == (0.6, 0.95)
    assert [message["role"] for message in second.messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_what_a_call_gave(rows):
    tool, cut, inline = (row for row in rows if isinstance(row, Exchange))
    assert (
        tool.tool_calls[0]["function"]["name"] == "get_weather" and tool.template_arguments["tools"]
    )
    assert (tool.finish_reason, tool.temperature) == ("stop", 0.0)
    assert (cut.finish_reason, cut.reasoning, cut.content) == ("length", "The résumé of", "")
    assert (inline.reasoning, inline.content) == (None, "Hm.\n</think>\n\nYes.")


def test_what_is_no_use_has_its_reason(rows):
    assert [row.reason for row in rows if isinstance(row, Reject)] == [
        "cache_hit",
        "redacted",
        "redacted",
        "prompts_only",
        "prompts_only",
        "error_response",
        "not_a_generation",
        "wrong_type",
        "not_json",
    ]


def test_a_callback_that_logs_all_its_arguments(tmp_path):
    payload = json.loads(next((GOLDEN / "2026-07-01").glob("*-1.json")).read_text())
    (row,) = read(
        write_log(tmp_path / "log.jsonl", [{"model": "x", "standard_logging_object": payload}])
    )
    assert row.reasoning == "She codes.\n"


def test_the_extra_body_reaches_the_template(tmp_path):
    payload = json.loads(next((GOLDEN / "2026-07-01").glob("*-1.json")).read_text())
    payload["model_parameters"]["extra_body"] = {"chat_template_kwargs": {"thinking": True}}
    payload["model_parameters"]["stop"] = ["END"]
    (row,) = read(write_log(tmp_path / "log.jsonl", [payload]))
    assert row.template_arguments == {"thinking": True} and row.stop_strings == ("END",)
