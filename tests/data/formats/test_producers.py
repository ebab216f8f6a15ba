"""What producers' logs hold beyond the golden logs."""

import json
from datetime import UTC, datetime

import pytest
from datasets import Dataset, DatasetDict

from outrider.data.exchange import Exchange, Place, Record
from outrider.data.formats import format_of, parse_record
from outrider.data.formats.sampling import constraint_of
from outrider.data.formats.sources import log_files
from tests.data.formats.test_golden import GOLDEN
from tests.data.logs import read_exchanges, write_log

ASKED, ANSWERED = "When is the library open?", "From 10:00 to 13:00."
CONVERSATIONS = [
    {
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": f"{ANSWERED} {number}", "reasoning_content": "Hm."},
        ]
    }
    for number in range(5)
]


@pytest.mark.parametrize(
    "data_set",
    [
        Dataset.from_list(CONVERSATIONS),
        DatasetDict(
            train=Dataset.from_list(CONVERSATIONS[:3]), test=Dataset.from_list(CONVERSATIONS[3:])
        ),
    ],
)
def test_a_folder_of_save_to_disk(tmp_path, data_set):
    data_set.save_to_disk(tmp_path / "saved")
    files = log_files(str(tmp_path / "saved"))
    assert {file.path.rpartition(".")[2] for file in files} == {"arrow"}
    found = sorted(exchange.content for exchange in read_exchanges(files))
    assert found == [f"{ANSWERED} {number}" for number in range(5)]


PROMPT = "<｜User｜>When is it open?<｜Assistant｜><think>\n"
TEXT = "Hm.\n</think>\n\nOn Saturdays."


def test_halves_of_a_text_completion(tmp_path):
    request = {"id": "r1", "model": "r1", "prompt": PROMPT, "temperature": 0.5}
    choices = [{"text": TEXT, "finish_reason": "stop"}]
    response = {"id": "r1", "object": "text_completion", "choices": choices}
    write_log(tmp_path / "joined.jsonl", [request, response])
    (joined,) = read_exchanges(log_files(str(tmp_path / "joined.jsonl")))
    assert (joined.prompt_text, joined.content, joined.temperature) == (PROMPT, TEXT, 0.5)


def asked(key, text):
    body = {"model": "r1", "messages": [{"role": "user", "content": text}]}
    return {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": body}


def answered(key, text):
    choice = {"message": {"reasoning": "r", "content": text}, "finish_reason": "stop"}
    return {
        "custom_id": key,
        "response": {"status_code": 200, "body": {"choices": [choice]}},
        "error": None,
    }


def test_batches_that_count_their_ids_anew_are_joined_folder_by_folder(tmp_path):
    for day in ("monday", "tuesday"):
        (tmp_path / day).mkdir()
        write_log(tmp_path / day / "input.jsonl", [asked("1", day), asked("2", day)])
        write_log(tmp_path / day / "output.jsonl", [answered("2", day), answered("1", day)])
    found = list(read_exchanges(log_files(str(tmp_path))))
    assert len(found) == 4
    assert all(outcome.messages[0]["content"] == outcome.content for outcome in found)
    # In one folder it is unknown which request a response answers.
    for day in ("monday", "tuesday"):
        for name in ("input", "output"):
            (tmp_path / day / f"{name}.jsonl").rename(tmp_path / f"{day}_{name}.jsonl")
    found = list(read_exchanges(log_files(str(tmp_path))))
    assert [(outcome.reason, outcome.rows) for outcome in found] == [("ambiguous_id", 4)] * 2


def log(tmp_path, text):
    path = tmp_path / "server.log"
    path.write_bytes(text.encode())
    (file,) = log_files(str(path))
    assert format_of(file) == "vllm_log"
    return list(read_exchanges([file]))


DETAILS = (
    "DEBUG 07-01 12:00:00 [logger.py:42] Request chatcmpl-1 details: prompt: "
    f"{'<｜User｜> it is one, prompt_token_ids: [9], prompt_embeds shape: None.'!r}, "
    "prompt_token_ids: [0, 1], prompt_embeds shape: None.\n"
)
RECEIVED = (
    "INFO 07-01 12:00:00 [logger.py:42] Received request chatcmpl-1: params: SamplingParams(n=1, "
    "temperature=0.6, top_p=0.95, stop=[], stop_token_ids=[]), lora_request: None.\n"
)
GENERATED = (
    "DEBUG 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1 details: "
    "output_token_ids: [3, 4, 5]\n"
    "INFO 07-01 12:00:09 [logger.py:77] Generated response chatcmpl-1: output: 'x, "
    "output_token_ids: [7]', finish_reason: stop\n"
)
WHOLE = DETAILS + RECEIVED + GENERATED


def test_colors_process_names_and_texts_that_look_like_ids(tmp_path):
    text = WHOLE.replace("INFO", "\x1b[0;36m(APIServer pid=41)\x1b[0;0m \x1b[32mINFO\x1b[0m")
    (row,) = log(tmp_path, text)
    assert (row.prompt_token_ids, row.completion_token_ids) == ([0, 1], [3, 4, 5])


def test_without_token_ids_the_fix_is_named(tmp_path):
    info = RECEIVED + GENERATED.splitlines(keepends=True)[1]
    (row,) = log(tmp_path, info)
    assert row.reason == "no_token_ids" and "VLLM_LOGGING_LEVEL=DEBUG" in row.detail
    (row,) = log(tmp_path, DETAILS + info)
    assert row.reason == "no_token_ids"


def test_an_id_that_is_used_again_is_two_requests(tmp_path):
    rows = log(tmp_path, DETAILS + WHOLE + WHOLE)
    reasons = [getattr(row, "reason", "exchange") for row in rows]
    assert reasons == ["unmatched_request", "exchange", "exchange"]


TOOL = {"type": "function", "function": {"name": "opening_hours", "parameters": {}}}
MESSAGES = [{"role": "user", "content": "2+2?"}]
ANSWER = {"role": "assistant", "content": "4"}
SET = {
    "temperature": 0.5,
    "top_p": 0.8,
    "top_k": 20,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
STRICT = {**TOOL, "function": {**TOOL["function"], "strict": True}}


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "grammar"),
        ({"response_format": JSON_SCHEMA}, "grammar"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "grammar"),
        ({"guided_json": {"type": "object"}}, "grammar"),
        ({"guided_choice": None}, None),
        ({"regex": "a+"}, "grammar"),
        ({"tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [], "tool_choice": "required"}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, "grammar"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "grammar"),
        ({"tools": [STRICT]}, "grammar"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "grammar"),
        ({"logit_bias": {"5": -100}}, "other_sampling"),
        ({"logit_bias": {}, "min_tokens": 0, "use_beam_search": False}, None),
        ({"min_tokens": 8}, "other_sampling"),
        ({"logit_bias": {"5": 1}, "response_format": JSON_SCHEMA}, "grammar"),
    ],
)
def test_what_forces_tokens(request_fields, expected):
    assert constraint_of({"messages": MESSAGES, **request_fields}) == expected


def langfuse(fields):
    return {
        "type": "GENERATION",
        "trace_id": "t",
        "input": json.dumps(MESSAGES),
        "output": json.dumps(ANSWER),
        "model_parameters": json.dumps(fields),
    }


def litellm(fields):
    return {
        "call_type": "acompletion",
        "status": "success",
        "messages": MESSAGES,
        "response": {"choices": [{"message": ANSWER, "finish_reason": "stop"}]},
        "model_parameters": {"extra_body": fields},
        "metadata": {},
        "startTime": 1.0,
    }


ROWS = {
    "openai_pairs": lambda fields: {
        "request": {"messages": MESSAGES, **fields},
        "response": {"choices": [{"message": ANSWER, "finish_reason": "stop"}]},
    },
    "litellm": litellm,
    "langfuse": langfuse,
    "messages": lambda fields: {"messages": [*MESSAGES, ANSWER], **fields},
    "token_ids": lambda fields: {
        "prompt_token_ids": [1],
        "completion_token_ids": [2],
        **fields,
    },
    "sglang": lambda fields: {
        "event": "request.finished",
        "obj": {"input_ids": [1], "text": None, "sampling_params": fields},
        "out": {"text": "4", "output_ids": [2], "meta_info": {"finish_reason": {"type": "stop"}}},
    },
}


def one_exchange(name, row) -> Exchange:
    (outcome,) = parse_record(name, Record(Place("log", 1), json.dumps(row).encode()))
    assert isinstance(outcome, Exchange), outcome
    return outcome


@pytest.mark.parametrize("name", ROWS)
def test_each_format_reads_all_parameters(name):
    one = one_exchange(name, ROWS[name](SET))
    assert {key: getattr(one, key) for key in SET} == SET and one.constraint is None
    forced = {"json_schema": "{}"} if name == "sglang" else {"response_format": JSON_SCHEMA}
    assert one_exchange(name, ROWS[name](forced)).constraint == "grammar"
    assert one_exchange(name, ROWS[name]({"min_tokens": 3})).constraint == "other_sampling"


@pytest.mark.parametrize("logged", [{}, {"stop_reason": None}, {"stop_reason": 7}])
def test_stop_strings_are_for_logs_without_what_ended_the_response(logged):
    row = ROWS["openai_pairs"]({"stop": ["END"]})
    row["response"]["choices"][0] |= logged
    assert one_exchange("openai_pairs", row).stop_strings == (() if logged else ("END",))


def test_a_span_names_its_kind_of_output():
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(MESSAGES),
        "gen_ai.output.messages": json.dumps([{**ANSWER, "finish_reason": "stop"}]),
        "gen_ai.request.top_k": 20,
        "gen_ai.request.presence_penalty": 0.5,
        "gen_ai.output.type": "json",
    }
    row = {"Timestamp": "2026-07-01T10:00:00Z", "SpanAttributes": list(said.items())}
    (one,) = parse_record("otel_genai", Record(Place("spans.parquet", 1), row))
    assert (one.top_k, one.presence_penalty, one.constraint) == (20, 0.5, "grammar")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("structured_outputs=None, extra_args=None", None),
        ("structured_outputs=StructuredOutputsParams(json={}), extra_args=None", "grammar"),
        ("bad_words=['x']", "other_sampling"),
        ("bad_words=[], min_tokens=0", None),
        ("min_tokens=4", "other_sampling"),
    ],
)
def test_vllms_log_writes_the_resolved_parameters(tmp_path, end, expected):
    whole = WHOLE.replace(
        "temperature=0.6, top_p=0.95, stop=[], stop_token_ids=[]",
        "presence_penalty=0.2, frequency_penalty=0.3, repetition_penalty=1.1, temperature=0.5, "
        f"top_p=0.8, top_k=20, min_p=0.1, stop=[], stop_token_ids=[], {end}",
    )
    (one,) = log(tmp_path, whole)
    assert {key: getattr(one, key) for key in SET} == SET and one.constraint == expected


def parsed(name, row):
    payload = row if "Timestamp" in row else json.dumps(row).encode()
    return parse_record(name, Record(Place("log", 1), payload))


def test_roles_of_langchain_and_attributes_of_a_table_of_texts():
    said = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": (
            '[{"role": "Human", "parts": [{"type": "text", "content": "Hi"}]}]'
        ),
        "gen_ai.output.messages": (
            '[{"role": "AI", "parts": [{"type": "text", "content": "Ho"}], '
            '"finish_reason": "stop"}]'
        ),
        "gen_ai.request.temperature": "0.6",
        "gen_ai.usage.output_tokens": "3",
    }
    row = {"Timestamp": datetime(2026, 7, 1, 10, tzinfo=UTC), "SpanAttributes": list(said.items())}
    (outcome,) = parsed("otel_genai", row)
    assert outcome.messages == [{"role": "user", "content": "Hi"}] and outcome.content == "Ho"
    assert (outcome.temperature, outcome.completion_tokens, outcome.time) == (0.6, 3, 1782900000.0)


def test_a_span_that_cannot_be_read_spoils_none_of_the_others():
    messages = '[{"role": "user", "content": "Hi"}]'
    answers = '[{"role": "assistant", "content": "Ho", "finish_reason": "stop"}]'
    logged = {"gen_ai.input.messages": messages, "gen_ai.output.messages": answers}
    attributes = [attribute(key, text) for key, text in logged.items()]
    older = {"eventName": "gen_ai.user.message", "attributes": [attribute("gen_ai.system", "r1")]}
    spans = [{"attributes": [{"key": 17}]}, {"attributes": attributes}, older]
    row = {"resourceLogs": [{"scopeLogs": [{"logRecords": spans}]}]}
    reject, outcome, old = parsed("otel_genai", row)
    assert reject.reason == "wrong_type" and reject.detail.startswith("span 1: ")
    assert (outcome.messages, outcome.content) == ([{"role": "user", "content": "Hi"}], "Ho")
    assert old.reason == "content_not_logged" and "conventions 1.37" in old.detail


def attribute(key, text):
    return {"key": key, "value": {"stringValue": text}}


@pytest.mark.parametrize(
    "output, content",
    [
        ("[1] See the notice.", "[1] See the notice."),
        ('[{"open": true}]', '[{"open": true}]'),
        ('{"role": "librarian", "open": true}', '{"role": "librarian", "open": true}'),
        ('{"role": null, "content": "closed"}', "closed"),
        ('{"choices": [{"message": {"content": "closed"}, "finish_reason": "length"}]}', "closed"),
        ('{"role": "assistant", "parts": [{"type": "text", "content": "closed"}]}', "closed"),
    ],
)
def test_spellings_of_the_output(output, content):
    path = GOLDEN / "langfuse" / "observations_v2.jsonl"
    row = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    (outcome,) = parsed("langfuse", {**row, "output": output})
    assert isinstance(outcome, Exchange) and outcome.content == content
    assert outcome.finish_reason == ("length" if "length" in output else "stop")
