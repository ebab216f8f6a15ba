"""What the logs of each producer tell about how tokens were chosen."""

import json

import pytest

from outrider.data.exchange import Exchange, Place, Record
from outrider.data.formats import parse_record
from outrider.data.formats.sampling import constraint_of
from tests.data.formats.test_server_logs import WHOLE, log

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


def parsed(name, row) -> Exchange:
    (outcome,) = parse_record(name, Record(Place("log", 1), json.dumps(row).encode()))
    assert isinstance(outcome, Exchange), outcome
    return outcome


@pytest.mark.parametrize("name", ROWS)
def test_each_format_reads_all_parameters(name):
    one = parsed(name, ROWS[name](SET))
    assert {key: getattr(one, key) for key in SET} == SET and one.constraint is None
    forced = {"json_schema": "{}"} if name == "sglang" else {"response_format": JSON_SCHEMA}
    assert parsed(name, ROWS[name](forced)).constraint == "grammar"
    assert parsed(name, ROWS[name]({"min_tokens": 3})).constraint == "other_sampling"


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
