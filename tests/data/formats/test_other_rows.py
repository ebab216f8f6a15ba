"""Failed requests and other APIs in a gateway's log, as their producers write them."""

import json

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.ingest.chunks import Tally
from tests.data.logs import pair, read_exchanges, write_log

ASKED = {"model": "r1", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "bge", "input": ["Hi", "there"]}
ANSWERED = pair(ASKED["messages"], "r", "a")["response"]
USAGE = {"prompt_tokens": 2, "total_tokens": 2}

FAILED = {
    "OpenAI": {"request": ASKED, "response": {"error": {"message": "no", "code": 429}}},
    "vLLM before 0.10, SGLang": {
        "request": ASKED,
        "response": {"object": "error", "message": "no", "type": "BadRequest", "code": 400},
    },
    "TGI": {"request": ASKED, "response": {"error": "overloaded", "error_type": "overloaded"}},
    "FastAPI": {"request": ASKED, "response": {"detail": [{"loc": ["body"], "msg": "no"}]}},
    "Databricks": {
        "status_code": 429,
        "request": json.dumps(ASKED),
        "response": json.dumps({"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "no"}),
    },
    "Databricks, no body": {"status_code": 504, "request": json.dumps(ASKED), "response": None},
    "Databricks, no status": {
        "request": json.dumps(ASKED),
        "response": json.dumps({"error_code": "NOT_FOUND", "message": "no"}),
    },
    "Portkey": {
        "request": ASKED,
        "response": {"status": "failure", "message": "no"},
        "response_status_code": 500,
        "is_success": False,
    },
    "HTTP": {
        "request": {"headers": {}, "body": ASKED},
        "response": {"status": 503, "headers": {}, "body": {"message": "no"}},
    },
    "HTTP, status as text": {
        "request": {"headers": {}, "body": json.dumps(ASKED)},
        "response": {"status": "401", "headers": {}, "body": ""},
    },
    "Kong": {"request": ASKED, "response": {"message": "API rate limit exceeded"}},
    "Envoy, no upstream": {"request": ASKED, "response": "no healthy upstream"},
    "Envoy, reset": {
        "request": ASKED,
        "response": "upstream connect error or disconnect/reset before headers",
        "response_code": "503",
    },
    "Envoy, client gone": {"request": ASKED, "response": None, "response_code": 0},
    "nginx": {"request": ASKED, "response": "<html><head><title>502 Bad Gateway</title>"},
    "AWS": {"request": ASKED, "response": {"__type": "ThrottlingException", "Message": "no"}},
    "an exception": {"request": ASKED, "response": None, "error": "ReadTimeout"},
    "Anthropic": {
        "request": ASKED,
        "response": {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
    },
    "a stream's error": {
        "request": ASKED,
        "chunks": [{"error": {"message": "no", "code": 500}}],
    },
    "joined, bare": {"id": "req-1", "error": {"message": "no"}},
    "joined": {"request_id": "req-1", "response": {"error": {"message": "no"}}},
}

OTHER = {
    "embeddings": {
        "request": TEXT,
        "response": {
            "object": "list",
            "data": [{"object": "embedding", "embedding": [0.1], "index": 0}],
            "usage": USAGE,
        },
    },
    "embeddings, no body kept": {"path": "/v1/embeddings", "request": TEXT, "response": None},
    "moderation": {"request": TEXT, "response": {"id": "modr-1", "results": [{"flagged": False}]}},
    "images": {
        "request": {"model": "flux", "prompt": "a cat"},
        "response": {"created": 1, "data": [{"b64_json": "AAAA"}]},
    },
    "transcription": {"request": {"model": "whisper"}, "response": {"text": "Hi"}},
    "rerank": {
        "request": {"model": "bge", "query": "Hi", "documents": ["a"]},
        "response": {"id": "rerank-1", "results": [{"index": 0, "relevance_score": 0.9}]},
    },
    "score": {
        "request": {"model": "bge", "text_1": "a", "text_2": "b"},
        "response": {"object": "list", "data": [{"object": "score", "score": 1.0}]},
    },
    "tokenize": {"request": ASKED, "response": {"count": 2, "max_model_len": 9, "tokens": [1, 2]}},
    "models": {"request": {}, "response": {"object": "list", "data": [{"object": "model"}]}},
    "Responses API": {
        "request": {"model": "gpt-5.2", "input": "Hi"},
        "response": {"object": "response", "model": "gpt-5.2", "status": "completed", "output": []},
    },
    "Anthropic": {
        "request": ASKED | {"max_tokens": 9},
        "response": {
            "model": "anthropic/claude-sonnet-4-5",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "Hi"}],
            "stop_reason": "end_turn",
        },
    },
    "Anthropic, streamed": {
        "request": ASKED,
        "response": "event: message_start\ndata: "
        '{"type": "message_start", "message": {"type": "message", "model": "claude-opus-4-1"}}\n\n'
        'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    },
    "Responses API, streamed": {
        "request": ASKED,
        "chunks": [
            {"type": "response.created", "response": {}},
            {"type": "response.completed", "response": {"object": "response", "model": "o3"}},
        ],
    },
    "Cohere": {
        "request": ASKED,
        "response": {"id": "1", "message": {"role": "assistant", "content": [{"text": "a"}]}},
    },
    "HTTP": {
        "request": {"url": "/v1/rerank", "body": {"query": "Hi", "documents": ["a"]}},
        "response": {"status": 200, "body": {"results": []}},
    },
    "joined": {"id": "embd-1", "object": "list", "data": [{"object": "embedding"}]},
    "joined, Responses API": {
        "id": "resp_1",
        "object": "response",
        "model": "o4-mini",
        "output": [],
    },
}

GOOD = {
    "status": {"request": ASKED, "response": ANSWERED, "status_code": 200, "error": None},
    "any path": {"request": ASKED, "response": ANSWERED, "path": "/serving-endpoints/r1/run"},
    "HTTP": {
        "request": {"method": "POST", "headers": {}, "body": ASKED},
        "response": {"status": 200, "headers": {}, "body": json.dumps(ANSWERED)},
    },
}

DAMAGED = {
    "no choices": {"request": ASKED, "response": {"object": "chat.completion", "id": "1"}},
    "empty choices": {"request": ASKED, "response": ANSWERED | {"choices": []}},
}


def outcome(tmp_path, row):
    log = write_log(tmp_path / "log.jsonl", [row])
    name = "openai_pairs" if "request" in row else "openai_joined"
    (read,) = read_exchanges(log_files(str(log)), name)
    return "exchange" if isinstance(read, Exchange) else read.reason


@pytest.mark.parametrize(
    ("reason", "row"),
    [
        pytest.param(reason, row, id=f"{reason}: {name}")
        for reason, rows in (
            ("error_response", FAILED),
            ("not_a_generation", OTHER),
            ("exchange", GOOD),
            ("no_choices", DAMAGED),
        )
        for name, row in rows.items()
    ],
)
def test_a_row_is_what_its_producer_means(tmp_path, reason, row):
    assert outcome(tmp_path, row) == reason


def test_other_rows_of_a_joined_log_take_their_requests_with_them(tmp_path):
    rows = [
        {"id": "r1", **ASKED},
        {"id": "r2", **TEXT},
        {"id": "r1", "error": {"message": "no"}},
        {"id": "r2", "object": "list", "data": []},
    ]
    log = write_log(tmp_path / "log.jsonl", rows)
    reasons = [one.reason for one in read_exchanges(log_files(str(log)), "openai_joined")]
    assert reasons == ["error_response", "not_a_generation"]


HIGRESS = {"method": "POST", "path": "/v1/chat/completions", "response_code": "200"}


@pytest.mark.parametrize(
    ("logged", "about", "reason"),
    [
        ({"answer": "a", "output_token": 3}, {}, ""),
        ({"answer": None, "output_token": 3}, {}, "incomplete_pair"),
        ({"output_token": 3}, {"response_code": "504"}, "error_response"),
        ({"answer": "a", "output_token": 3}, {"response_code": 503}, "error_response"),
    ],
)
def test_a_row_of_higress_with_messages(tmp_path, logged, about, reason):
    asked = {"messages": [{"role": "user", "content": "Hi"}], "consumer": "team"}
    read = {**HIGRESS, "ai_log": json.dumps({**asked, "answer": "a", "output_token": 3})}
    row = {**HIGRESS, "ai_log": json.dumps({**asked, **logged}), **about}
    _, outcome = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [read, row]))))
    assert getattr(outcome, "reason", "") == reason
    assert not reason or isinstance(outcome, Reject)
    assert reason or (isinstance(outcome, Exchange) and outcome.user == "team")


def test_rows_of_higress_without_messages(tmp_path):
    rows = [
        {**HIGRESS, "ai_log": '{"model": "r1", "output_token": 3}'},
        {**HIGRESS, "ai_log": '{"model": "e", "input_token": 3}', "path": "/v1/embeddings"},
        {**HIGRESS, "ai_log": "-", "path": "/healthz"},
    ]
    used = {"messages": [{"role": "user", "content": "Hi"}], "answer": "a", "output_token": 3}
    rows.append({**HIGRESS, "ai_log": json.dumps(used)})
    outcomes = list(read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows)))))
    reasons = [getattr(outcome, "reason", "") for outcome in outcomes]
    assert reasons == ["content_not_logged", "not_a_generation", "not_a_generation", ""]


def test_an_answer_that_is_a_tool_call_alone(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    logged = {"messages": [{"role": "user", "content": "Hi"}], "answer": None, "reasoning": "Hm."}
    row = {**HIGRESS, "ai_log": json.dumps({**logged, "tool_calls": [call], "output_token": 3})}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert isinstance(outcome, Exchange)
    assert (outcome.reasoning, outcome.tool_calls) == ("Hm.", [call])


MESSAGES = [{"role": "user", "content": "Hi"}]


def outcomes_of(tmp_path, *rows):
    return list(read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows)))))


def test_nginx_logs_a_request_at_its_end(tmp_path):
    """`request_time` is the duration next to nginx's times, and a time for others."""
    row = {"request": ASKED, "response": ANSWERED, "request_time": "5.25", "msec": "1790000005.5"}
    (exchange,) = outcomes_of(tmp_path, row)
    assert (exchange.time, exchange.seconds) == (1790000000.25, 5.25)
    other = {"request": ASKED, "response": ANSWERED, "request_time": 1790000005.5}
    (exchange,) = outcomes_of(tmp_path, other)
    assert (exchange.time, exchange.seconds) == (1790000005.5, None)


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        ("<fully masked due to failed mask function>", "redacted"),
        ("<truncated due to size exceeding limit>", "truncated"),
    ],
)
@pytest.mark.parametrize("is_input", [True, False])
def test_what_langfuse_writes_instead_of_a_text_is_none(tmp_path, mark, reason, is_input):
    row = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "model": "r1",
        "input": mark if is_input else MESSAGES,
        "output": {"role": "assistant", "content": "a"} if is_input else mark,
    }
    (reject,) = outcomes_of(tmp_path, row)
    assert isinstance(reject, Reject) and reject.reason == reason
    quoted = {**row, "input": [{"role": "user", "content": f"What is {mark}?"}], "output": "a mark"}
    (exchange,) = outcomes_of(tmp_path, quoted)
    assert isinstance(exchange, Exchange)


def test_a_row_with_fewer_messages_than_it_counts_is_cut(tmp_path):
    reply = {"raw": "so\n</think>\n\na", "finish_reason": "stop"}
    row = {"messages": MESSAGES, "reply": reply}
    for total, is_cut in ((1, False), (2, False), (3, True)):  # some count the answer
        (outcome,) = outcomes_of(tmp_path, {**row, "messages_total": total})
        assert isinstance(outcome, Reject) == is_cut
    assert outcome.reason == "truncated"


def test_an_applications_event_of_a_cache_hit_is_cached(tmp_path):
    row = {"messages": MESSAGES, "answer": "a", "completion_tokens": 2, "finish_reason": "stop"}
    kept, cached = outcomes_of(
        tmp_path, {**row, "event": "llm.completion"}, {**row, "event": "llm.cache_hit"}
    )
    assert isinstance(kept, Exchange) and cached.reason == "cached"


def test_items_of_a_table_that_are_no_calls_are_no_damage(tmp_path):
    call = {"pk": "c1", "messages": MESSAGES, "answer": "a", "completion_tokens": 2}
    user = {"pk": "u1", "plan": "pro", "created_at": 1790000000}
    half = {"pk": "c2", "messages_s3": "s3://bucket/key", "answer": "a", "completion_tokens": 2}
    outcomes = outcomes_of(tmp_path, call, user, half)
    reasons = [getattr(outcome, "reason", "") for outcome in outcomes]
    assert reasons == ["", "not_a_generation", "incomplete_pair"]


def test_an_answer_of_null_was_cut_within_its_reasoning(tmp_path):
    row = {"messages": MESSAGES, "answer": None, "reasoning": "Hm", "finish_reason": "length"}
    (exchange,) = outcomes_of(tmp_path, {**row, "completion_tokens": 1})
    assert isinstance(exchange, Exchange)
    assert (exchange.reasoning, exchange.finish_reason) == ("Hm", "length")


def test_the_proxys_own_user_is_nobody(tmp_path):
    payload = {
        "call_type": "acompletion",
        "model_parameters": {},
        "startTime": 1790000000.0,
        "messages": MESSAGES,
        "response": ANSWERED,
        "metadata": {},
        "end_user": "",
    }
    rows = [{**payload, "user": user} for user in ("default_user_id", "ada")]
    assert [one.user for one in outcomes_of(tmp_path, *rows)] == [None, "ada"]


def test_spans_around_calls_are_not_counted_as_failed_requests(tmp_path):
    """OpenInference's tables have a chain and a retriever for each call."""
    call = {"request": ASKED, "response": ANSWERED, "span_kind": "LLM"}
    chain = {"request": ASKED, "response": ANSWERED, "span_kind": "CHAIN"}
    outcomes = outcomes_of(tmp_path, call, chain, chain, chain)
    tally = Tally()
    for outcome in outcomes[1:]:
        assert outcome.reason == "not_a_generation"
        tally.add_reject(outcome, "openai_pairs")
    assert tally.not_generations == 0
    tally.add_reject(Reject("not_a_generation", "another API"), "openai_pairs")
    assert tally.not_generations == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_ids_of_sglang_count_where_its_text_is_cut(tmp_path, is_whole):
    """Level 2 keeps 2,048 characters of a text and as many ids."""
    text = "a" * 1024 + " ... " + "b" * 1024
    ids = list(range(1500)) if is_whole else [*range(1024), "...", *range(1024)]
    row = {
        "event": "request.finished",
        "timestamp": "2026-10-06T08:00:00Z",
        "rid": "r1",
        "obj": {"rid": "r1", "text": text, "input_ids": ids, "sampling_params": {}},
        "out": {
            "text": "a",
            "output_ids": [5, 6],
            "meta_info": {"finish_reason": {"type": "stop"}, "completion_tokens": 2},
        },
    }
    (outcome,) = outcomes_of(tmp_path, row)
    if is_whole:
        assert outcome.prompt_token_ids == ids
    else:
        assert outcome.reason == "truncated_log"


@pytest.mark.parametrize("name", ["expected", "reference", "feedback"])
def test_an_answer_of_someone_else_is_none(tmp_path, name):
    row = {"messages": MESSAGES, name: {"answer": {"text": "gold"}}, "output": None}
    (outcome,) = outcomes_of(tmp_path, row)
    assert isinstance(outcome, Reject)


def test_rows_whose_messages_are_not_understood_are_damage(tmp_path):
    call = {"messages": MESSAGES, "answer": "a", "completion_tokens": 2}
    other = {"messages": [{"author": "user", "text": "hi"}], "output": [{"author": "assistant"}]}
    _, reject = outcomes_of(tmp_path, call, other)
    assert reject.reason == "incomplete_pair"


def test_hits_of_a_prefix_cache_are_no_cached_answers(tmp_path):
    row = {"messages": MESSAGES, "answer": "a", "completion_tokens": 2}
    for event in ("prefix_cache_hit", "prompt_cache_hit", "kv-cache-hit"):
        (outcome,) = outcomes_of(tmp_path, {**row, "event": event})
        assert isinstance(outcome, Exchange)


def test_nginxs_end_is_not_another_time(tmp_path):
    """Filebeat's `@timestamp` is when it read the line, and `started_at` is the start."""
    ended = {"msec": "1790000010.5", "request_time": "5.5"}
    row = {"request": ASKED, "response": ANSWERED, **ended}
    for other in ({}, {"@timestamp": 1790000020}, {"started_at": 1790000005.0}):
        (exchange,) = outcomes_of(tmp_path, {**row, **other})
        assert (exchange.time, exchange.seconds) == (1790000005.0, 5.5)
    (exchange,) = outcomes_of(tmp_path, {**row, "msec": 12, "date": 1790000000})
    assert exchange.time == 1790000000
