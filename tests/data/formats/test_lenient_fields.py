"""Times, numbers, ends and text parts, as producers write them."""

import json

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from outrider.data.formats.calls.finish_reasons import CUT, FINISHED
from outrider.data.formats.calls.openai import reasoning_and_content
from outrider.data.formats.fields import take_time
from outrider.data.formats.rows.row_fields import fields
from tests.data.logs import pair, read_exchanges, write_log

MESSAGES = [{"role": "user", "content": "Hi"}]
TEN = 1782900000.0
"""2026-07-01 10:00:00 UTC."""


def read(tmp_path, row, name="auto"):
    log = write_log(tmp_path / "log.jsonl", [row])
    (outcome,) = read_exchanges(log_files(str(log)), name)
    return outcome


TIMES = {
    "2026-07-01 10:00:00.1 UTC": TEN + 0.1,  # BigQuery
    "1782900000.123": TEN + 0.123,  # Envoy, nginx
    "1782900000123": TEN + 0.123,
    "2026-07-01T10:00:00.123456789Z": TEN + 0.123456,
    "2026-07-01T12:00:00+02:00": TEN,
    "2026-07-01 12:00:00.000 +0200": TEN,
    "2026-07-01 10:00:00 +0000 UTC": TEN,  # Go
    "2026-07-01 10:00:00+00": TEN,  # PostgreSQL
    "2026/07/01 10:00:00": TEN,  # nginx's error log
    "01/Jul/2026:10:00:00 +0000": TEN,  # nginx, Apache
    "[01/Jul/2026:12:00:00 +0200]": TEN,
    "Wed, 01 Jul 2026 10:00:00 GMT": TEN,  # HTTP
    "a while ago": None,
    "": None,
}


@pytest.mark.parametrize("text", TIMES)
def test_spellings_of_a_time(tmp_path, text):
    assert take_time({"time": text}, "time") == pytest.approx(TIMES[text], abs=1e-6)
    outcome = read(tmp_path, pair(MESSAGES, "r", "a", timestamp=text, response__created=None))
    assert outcome.time == pytest.approx(TIMES[text], abs=1e-6)


def test_an_event_named_after_its_trace_has_no_user():
    """PostHog's SDKs name an event without a user after its trace."""
    event = {"distinct_id": "t1", "properties": {"$ai_trace_id": "t1"}}
    assert fields(event)["user"] is None
    assert fields(event | {"user_email": "bo@x.org"})["user"] == "bo@x.org"
    assert fields(event | {"distinct_id": "u1"})["user"] == "u1"


def test_a_mongodb_time():
    assert take_time({"time": {"$date": {"$numberLong": "1782900000000"}}}, "time") == TEN


def test_numbers_written_as_text(tmp_path):
    row = pair(
        MESSAGES,
        "r",
        "a",
        request__temperature="0.6",
        request__top_k="20",
        response__usage={"completion_tokens": "16", "prompt_tokens": 12.0, "cost": "much"},
    )
    outcome = read(tmp_path, row)
    assert (outcome.temperature, outcome.top_k) == (0.6, 20)
    assert (outcome.completion_tokens, outcome.prompt_tokens) == (16, 12)


@pytest.mark.parametrize("usage", [7, "a lot", [], {"completion_tokens": "many"}, None])
def test_an_unreadable_count_costs_no_row(tmp_path, usage):
    outcome = read(tmp_path, pair(MESSAGES, "r", "a", response__usage=usage))
    assert isinstance(outcome, Exchange) and outcome.completion_tokens is None


def test_numbers_that_are_no_json_elsewhere_in_the_row(tmp_path):
    row = pair(MESSAGES, "r", "a", cost=float("nan"), response__score=float("-inf"))
    assert isinstance(read(tmp_path, row), Exchange)
    row = pair(MESSAGES, "r", "a", request__temperature=float("nan"))
    assert read(tmp_path, row).reason == "wrong_type"


SPELLED = [
    *(("stop", name) for name in ("STOP", "FinishReason.STOP", "end-turn", "FINISH_REASON_STOP")),
    *(("length", name) for name in ("MAX_TOKENS", "max-tokens", "Length")),
    *(("stop", name) for name in sorted(FINISHED)),
    *(("length", name) for name in sorted(CUT)),
]


@pytest.mark.parametrize(("ended", "name"), SPELLED)
def test_spellings_of_an_end(tmp_path, ended, name):
    row = pair(MESSAGES, "r", "a", response__choices__0__finish_reason=name)
    assert read(tmp_path, row).finish_reason == ended


@pytest.mark.parametrize("name", ["error", "abort", "SAFETY", "content_filter", "", None, 1])
def test_other_ends_are_no_end(tmp_path, name):
    row = pair(MESSAGES, "r", "a", response__choices__0__finish_reason=name)
    assert read(tmp_path, row).reason == "not_finished"


def test_a_stop_sequence_is_the_requests_only_stop_string(tmp_path):
    row = pair(
        MESSAGES,
        "r",
        "a",
        request__stop=["END"],
        response__choices__0__finish_reason="stop_sequence",
    )
    assert read(tmp_path, row).stop_reason == "END"


PARTS = {
    "strings": (["Read this.", "2+2?"], "Read this.\n2+2?"),
    "input_text": ([{"type": "input_text", "text": "2+2?"}], "2+2?"),
    "refusal": ([{"type": "refusal", "refusal": "No."}], "No."),
    "thinking": ([{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "a"}], "T\na"),
    "null": ([{"type": "text", "text": None}, {"type": "output_text", "text": "a"}], "a"),
}


@pytest.mark.parametrize("parts", PARTS)
def test_text_parts_are_joined_as_in_vllm(tmp_path, parts):
    content, text = PARTS[parts]
    outcome = read(tmp_path, pair([{"role": "user", "content": content}], "r", "a"))
    assert outcome.messages[0]["content"] == text


TWO = [{"role": "user", "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]}]


def test_text_parts_are_joined_as_in_sglang(tmp_path):
    """`matched_stop` is SGLang's; otherwise the recipe names the server."""
    outcome = read(tmp_path, pair(TWO, "r", "a", response__choices__0__matched_stop=1))
    assert outcome.messages[0]["content"] == "A B"
    outcome = read(tmp_path, pair(TWO, "r", "a"))
    assert outcome.messages[0]["content"] == "A\nB"
    assert outcome.joined_by_sglang[0]["content"] == "A B"


@pytest.mark.parametrize("matched", [1, "END"])
def test_sglangs_matched_stop_is_the_reason(tmp_path, matched):
    row = pair(MESSAGES, "r", "a", request__stop="END")
    choice = row["response"]["choices"][0]
    del choice["stop_reason"]
    choice["matched_stop"] = matched
    outcome = read(tmp_path, row)
    assert (outcome.stop_reason, outcome.stop_strings) == (matched, ())


def test_a_response_of_parts(tmp_path):
    content = [{"type": "thinking", "thinking": [{"text": "r"}]}, {"type": "text", "text": "a"}]
    outcome = read(tmp_path, pair(MESSAGES, None, content))
    assert (outcome.reasoning, outcome.content) == ("r", "a")


CUT_TEXTS = {
    "Let me... (litellm_truncated skipped 9000 chars. Truncation is a DB storage safeguard. Full"
    " data is in callbacks) ... so.": "MAX_STRING_LENGTH_PROMPT_IN_DB",
    "Let me... (litellm_truncated 9000 chars) ...": "MAX_STRING_LENGTH_PROMPT_IN_DB",
    "a... (litellm_truncated skipped 9 chars. Truncation is a stdout logging safeguard. F": (
        "MAX_STRING_LENGTH_STDOUT_LOG"
    ),
    "Let me...truncated by litellm, this logger does not support large content": "Datadog",
    "[truncated by litellm]...so it is": "AZURE_SENTINEL_TRUNCATE_BYTES",
}


@pytest.mark.parametrize("side", ["prompt", "part", "reasoning", "content", "completion"])
@pytest.mark.parametrize("text", CUT_TEXTS)
def test_a_mark_of_truncation_is_rejected_with_the_remedy(tmp_path, text, side):
    row = pair(
        [{"role": "user", "content": text if side == "prompt" else "Hi"}],
        text if side == "reasoning" else "r",
        text if side == "content" else "a",
    )
    if side == "part":
        row["request"]["messages"] = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    if side == "completion":
        row["request"] = {"model": "r1", "prompt": text}
        row["response"]["choices"] = [{"text": "a", "finish_reason": "stop"}]
    reject = read(tmp_path, row)
    assert reject.reason == "truncated" and CUT_TEXTS[text] in reject.detail


def test_text_about_truncation_is_kept(tmp_path):
    about = "What does `litellm_truncated` mean? Was this truncated by litellm?"
    row = pair([{"role": "user", "content": about}], "r", "a")
    assert isinstance(read(tmp_path, row), Exchange)


SPEND_LOG = {
    "request_id": "chatcmpl-1",
    "call_type": "acompletion",
    "startTime": "2026-07-01T10:00:00.000Z",
    "completion_tokens": 16,
    "model": "hosted_vllm/deepseek-r1",
    "model_group": "deepseek-r1",
    "metadata": json.dumps({"user_api_key_team_alias": "acme"}),
    "cache_hit": "False",
    "end_user": "u1",
    "session_id": "s1",
    "status": "success",
    "messages": "{}",
    "response": json.dumps(pair(MESSAGES, "r\n", "\n\na")["response"]),
    "proxy_server_request": json.dumps({"messages": MESSAGES, "temperature": 0.5}),
}


def test_litellms_spend_logs(tmp_path):
    outcome = read(tmp_path, SPEND_LOG)
    assert (outcome.messages, outcome.reasoning, outcome.content) == (MESSAGES, "r\n", "\n\na")
    assert (outcome.session, outcome.user, outcome.tenant) == ("s1", "u1", "acme")
    assert (outcome.time, outcome.temperature, outcome.route) == (TEN, 0.5, "deepseek-r1")


@pytest.mark.parametrize("name", ["session_id", "conversation_id", "thread_id"])
def test_a_conversation_is_that_of_litellm_s_client(tmp_path, name):
    metadata = json.dumps({"requester_metadata": {name: "c-1"}})
    assert read(tmp_path, SPEND_LOG | {"metadata": metadata}).session == "c-1"


SPEND_LOG_REJECTS = [
    ({"cache_hit": "True"}, "cached"),
    ({"status": "failure", "response": "{}"}, "error_response"),
    ({"call_type": "aembedding"}, "not_a_generation"),
    ({"proxy_server_request": "{}"}, "content_not_logged"),
    ({"proxy_server_request": '{"litellm_truncated": true}'}, "truncated"),
]


@pytest.mark.parametrize(("changes", "reason"), SPEND_LOG_REJECTS)
def test_spend_logs_that_are_no_exchange(tmp_path, changes, reason):
    assert read(tmp_path, SPEND_LOG | changes, "litellm").reason == reason


CACHED = [
    {"cache_hit": True},
    {"cache_hit": "true"},
    {"cache_status": "HIT"},
    {"cache_status": "SEMANTIC HIT"},
    {"cached": True},
    {"cache_hit": "t"},
    {"from_cache": 1},
    {"metadata": '{"cache_hit": true}'},
    {"tags": ["prod", "cache_hit:True"]},
    {"ai.cache.cache_status": "Hit"},
    {"ai": {"cache": {"cache_status": "Hit"}}},
    {"response_headers": {"x-portkey-cache-status": "HIT"}},
    {"response_headers": {"Helicone-Cache": "HIT"}},
    {"extra_fields": {"cache_debug": {"cache_hit": True}}},
    {"cache_reference_id": "10000000-0000-4000-8000-000000000001"},
]
GENERATED = [
    {"cache_hit": None},
    {"cache_hit": "False"},
    {"cache_hit": "f"},
    {"cache_hit": 0},
    {"cache_status": "MISS"},
    {"cache_status": "SEMANTIC MISS"},
    {"cache_status": "DISABLED"},
    {"cached": False},
    {"cached_tokens": 12},
    {"cache_key": "abc"},
    {"cache_reference_id": "00000000-0000-0000-0000-000000000000"},
]


@pytest.mark.parametrize("field", CACHED)
def test_answers_from_a_gateways_cache_are_set_aside(tmp_path, field):
    assert read(tmp_path, pair(MESSAGES, "r", "a") | field).reason == "cached"


@pytest.mark.parametrize("field", GENERATED)
def test_answers_that_were_generated_are_kept(tmp_path, field):
    usage = {"completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    row = pair(MESSAGES, "r", "a", response__usage=usage) | field
    assert isinstance(read(tmp_path, row), Exchange)


def test_sharegpt_is_read_and_rewritten_reasoning_is_refused(tmp_path):
    turns = [
        {"from": "human", "value": "2+2?"},
        {"from": "gpt", "value": "<think>\nr\n</think>\n4"},
    ]
    outcome = read(tmp_path, {"system": "Be brief.", "conversations": turns})
    assert [message["role"] for message in outcome.messages] == ["system", "user"]
    assert outcome.content == turns[1]["value"]
    turns[1]["value"] = "<|begin_of_thought|>r<|end_of_thought|>4"
    reject = read(tmp_path, {"conversations": turns})
    assert reject.reason == "reasoning_missing" and "R1 did not write" in reject.detail


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Session-Id": "s-7", "X-OpenWebUI-User-Id": "ada"},
        {"x-session-id": ["s-7"], "x-openwebui-user-id": ["ada"]},
        [{"key": "x-session-id", "value": "s-7"}, {"key": "x-user-id", "value": "ada"}],
        [{"name": "X-Session-Id", "value": "s-7"}, {"name": "X-User-Id", "value": "ada"}],
    ],
)
def test_session_and_user_may_be_headers(headers):
    assert fields({"request": {"headers": headers}})["session"] == "s-7"
    assert fields({"headers": headers})["user"] == "ada"
    assert fields({"session_id": "s-1", "headers": headers})["session"] == "s-1"


def test_reasoning_that_is_also_in_the_content_is_read_once():
    message = {"reasoning_content": "r", "content": "<think>\nr\n</think>\n\na"}
    assert reasoning_and_content(message) == (None, message["content"])
    other = {"reasoning_content": "r", "content": "about </think> tags"}
    assert reasoning_and_content(other) == ("r", "about </think> tags")
