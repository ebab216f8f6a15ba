"""Messages and answers in traces, lists of calls, and rows that PostgreSQL escaped."""

import json

import pytest

from outrider.data.exchange import Exchange
from outrider.data.files.rows import parse_row
from outrider.data.files.sources import log_files
from outrider.data.formats.calls.message_sides import message_sides, nest_lists
from tests.data.formats.test_elsewhere import read_rows
from tests.data.logs import pair, read_exchanges, write_log

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
ANSWER = {"role": "assistant", "reasoning_content": "r\n", "content": "\n\na"}
CHOICE = {"index": 0, "message": ANSWER, "finish_reason": "stop"}


def flattened(key: str, prefix: str, messages) -> dict[str, str]:
    return {
        f"{key}.{at}.{prefix}{name}": value
        for at, message in enumerate(messages)
        for name, value in message.items()
    }


SIDES = {
    "lists": {"input": ASKED, "output": [ANSWER]},
    "a message": {"history": ASKED, "reply": ANSWER},
    "choices": {"input": {"messages": ASKED, "x": 1}, "output": [CHOICE]},
    "JSON text": {"input": json.dumps(ASKED), "output": json.dumps([ANSWER])},
    "LiteLLM in PostHog": {"$ai_input": ASKED, "$ai_output_choices": {"choices": [CHOICE]}},
    "OpenInference": {
        **flattened("llm.input_messages", "message.", ASKED),
        **flattened("llm.output_messages", "message.", [ANSWER]),
    },
    "Arize": {
        "attributes.llm.input_messages": [
            {f"message.{name}": value for name, value in message.items()} for message in ASKED
        ],
        "attributes.llm.output_messages": [
            {f"message.{name}": value for name, value in ANSWER.items()}
        ],
    },
    "OpenLLMetry": {
        **flattened("gen_ai.prompt", "", ASKED),
        **flattened("gen_ai.completion", "", [ANSWER]),
    },
    "text": {"messages": ASKED, "output": "\n\na", "reasoning": "r\n"},
    "inner objects": {"call": {"sent": {"value": ASKED}, "got": {"value": [ANSWER]}}},
}
SAMPLING = {
    "flat": {"temperature": 0.7, "topP": 0.9},
    "inside": {"model_parameters": {"temperature": 0.7, "top_p": 0.9}},
    "JSON text": {"llm.invocation_parameters": '{"temperature": 0.7, "top_p": 0.9}'},
    "attributes": {"gen_ai.request.temperature": 0.7, "gen_ai.request.top_p": 0.9},
    "PostHog": {"$ai_model_parameters": {"temperature": 0.7, "top_p": 0.9}},
}


def read(folder, rows):
    return list(read_exchanges(log_files(str(write_log(folder / "log.jsonl", rows)))))


@pytest.mark.parametrize("parameters", SAMPLING)
@pytest.mark.parametrize("sides", SIDES)
def test_messages_are_found_under_any_names(tmp_path, sides, parameters):
    row = {"sessionId": "s", **SAMPLING[parameters], **SIDES[sides]}
    for rows in ([row], [{"result": {"page": 1, "items": [row]}}]):
        (exchange,) = read(tmp_path, rows)
        assert isinstance(exchange, Exchange), exchange
        assert exchange.messages == ASKED
        assert (exchange.reasoning, exchange.content) == ("r\n", "\n\na")
        assert (exchange.temperature, exchange.top_p) == (0.7, 0.9)
        assert (exchange.session, exchange.finish_reason) == ("s", "stop")


def test_a_customers_text_is_no_answer():
    quoted = {"role": "user", "content": json.dumps(ANSWER)}
    assert message_sides({"input": [quoted], "comment": {"text": "x"}}) is None
    assert message_sides({"prompt": ASKED, "chosen": [ANSWER], "rejected": [ANSWER]}) is None


@pytest.mark.parametrize(
    ("logged", "end"),
    [
        ({"max_tokens": 9, "output_tokens": 9}, "length"),
        ({"max_tokens": 9, "output_tokens": 8}, "stop"),
        ({"max_tokens": 9, "output_tokens": 9, "finish_reason": "stop"}, "stop"),
        ({"max_tokens": 9}, "stop"),  # the tokens decide
        ({"error": "timeout"}, "error_response"),
        ({"$ai_is_error": True}, "error_response"),
        ({"span_kind": "workflow"}, "not_a_generation"),
    ],
)
def test_the_end_of_a_traced_call(tmp_path, logged, end):
    (outcome,) = read(tmp_path, [{"input": ASKED, "output": [ANSWER], **logged}])
    found = outcome.finish_reason if isinstance(outcome, Exchange) else outcome.reason
    assert found == end


def test_flattened_lists_are_nested_in_order():
    logged = {"a.1.b": 2, "a.0.b": 1, "a.0.c.1.d": 4, "a.0.c.0.d": 3, "e": 5}
    assert nest_lists(logged) == {"a": [{"b": 1, "c": [{"d": 3}, {"d": 4}]}, {"b": 2}], "e": 5}


@pytest.mark.parametrize("key", ["data", "records", "logEvents", "hits", "runs"])
def test_calls_in_a_list_have_the_fields_around_it(tmp_path, key):
    calls = [pair(ASKED, "r", "a", response__id=f"c{number}") for number in range(3)]
    row = {
        "user_id": "ada",
        "outer": {key: [{"id": number, **call} for number, call in enumerate(calls)]},
    }
    exchanges = read(tmp_path, [row])
    assert [exchange.response_id for exchange in exchanges] == ["c0", "c1", "c2"]
    assert [exchange.call for exchange in exchanges] == [0, 1, 2]
    assert {exchange.user for exchange in exchanges} == {"ada"}


@pytest.mark.parametrize(
    "row",
    [
        {"request": json.dumps({"a": 'quotes " and\nlines\n'}), "x": 1},
        {"text": "two\nlines\nand a C:\\path"},
    ],
)
def test_rows_of_postgresqls_copy(row):
    text = json.dumps(row).encode()
    assert parse_row(text.replace(b"\\", b"\\\\")) == parse_row(text) == row


def test_backslashes_of_a_customer_stay():
    row = {"text": "\\nabla f", "path": "C:\\"}
    assert parse_row(json.dumps(row).encode()) == row


def test_a_data_sets_solution_is_no_answer(tmp_path):
    asked = [{"role": "user", "content": "What is 2+2?"}]
    rows = [{"data_source": "dapo", "messages": asked, "answer": "4", "id": 1}]
    assert not any(isinstance(outcome, Exchange) for outcome in read_rows(tmp_path, rows))
    logged = {"ai_log": {"messages": asked, "answer": "4", "reasoning": "r\n", "output_token": 3}}
    (exchange,) = read_rows(tmp_path, [logged])
    assert isinstance(exchange, Exchange)
    assert (exchange.reasoning, exchange.content, exchange.completion_tokens) == ("r\n", "4", 3)


@pytest.mark.parametrize("thought", ["r", "on", "r\n"])
def test_reasoning_in_the_text_is_not_doubled(tmp_path, thought):
    asked = [{"role": "user", "content": "Hi"}]
    row = {"input": asked, "output": "<think>\nr\n</think>\n\na", "reasoning": thought}
    (exchange,) = read_rows(tmp_path, [row])
    assert isinstance(exchange, Exchange)
    assert (exchange.reasoning, exchange.content) == (None, "<think>\nr\n</think>\n\na")


def langchain(name: str, **arguments):
    """A message as `langchain_core.load.dumpd` writes it."""
    path = ["langchain", "schema", "messages", name]
    return {"lc": 1, "type": "constructor", "id": path, "kwargs": arguments}


GENERATED = {
    "content": "a",
    "additional_kwargs": {"reasoning_content": "r\n"},
    "response_metadata": {"finish_reason": "stop", "model_name": "deepseek-r1"},
}
SERIALIZED = [
    (langchain("HumanMessage", content="Hi"), langchain("AIMessageChunk", **GENERATED)),
    ({"type": "human", "data": {"content": "Hi"}}, {"type": "ai", "data": GENERATED}),
]


@pytest.mark.parametrize(("asked", "answer"), SERIALIZED)
def test_runs_of_langchain(tmp_path, asked, answer):
    """LangSmith's runs; the lists are of prompts, and of messages or samples."""
    run = {
        "run_type": "llm",
        "inputs": {"messages": [[asked]]},
        "outputs": {"generations": [[{"text": "a", "message": answer}]]},
        "extra": {"invocation_params": {"temperature": 0.6}, "metadata": {"thread_id": "t1"}},
    }
    (exchange,) = read_rows(tmp_path, [run])
    assert isinstance(exchange, Exchange)
    assert exchange.messages == [{"role": "user", "content": "Hi"}]
    assert (exchange.reasoning, exchange.content) == ("r\n", "a")
    assert (exchange.finish_reason, exchange.session) == ("stop", "t1")
    assert exchange.temperature == 0.6


def test_a_conversation_of_langchain_with_tools():
    called = {"content": "", "tool_calls": [{"id": "c1", "name": "now", "args": {"zone": "UTC"}}]}
    asked = [
        langchain("SystemMessage", content="s"),
        langchain("HumanMessage", content="Hi"),
        langchain("AIMessage", **called),
        langchain("ToolMessage", content="12:00", tool_call_id="c1"),
    ]
    sides = message_sides({"in": [asked], "out": langchain("AIMessage", content="Noon.")})
    assert [message["role"] for message in sides.asked] == ["system", "user", "assistant", "tool"]
    function = {"name": "now", "arguments": '{"zone": "UTC"}'}
    assert sides.asked[2]["tool_calls"] == [{"id": "c1", "type": "function", "function": function}]
    assert sides.asked[3]["tool_call_id"] == "c1"
    assert sides.answers[0]["message"]["content"] == "Noon."


def test_escapes_of_nginx():
    """Without `escape=json`, nginx writes quotation marks and bytes beyond ASCII as \\xHH."""
    body = json.dumps({"content": 'Grüße, "电"\n\\'}, ensure_ascii=False)
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02X}"
        for byte in body.encode()
    )
    expected = {"status": "200", "request_body": body}
    assert parse_row(f'{{"status":"200","request_body":"{escaped}"}}'.encode()) == expected
    assert parse_row(f' {{ "status": "200", "request_body": "{escaped}" }}'.encode()) == expected


RESULT = {"testCase": {}, "promptIdx": 0, "response": {"output": "a"}}


@pytest.mark.parametrize(
    ("raw", "asked"),
    [
        ("Hi", [{"role": "user", "content": "Hi"}]),
        (json.dumps(ASKED), ASKED),
        ("- role: user\n  content: Hi", None),
        ('[{"role": "user"', None),
    ],
)
def test_a_prompt_of_promptfoo_is_a_text_or_messages(raw, asked):
    sides = message_sides({**RESULT, "prompt": {"raw": raw, "label": "x"}})
    assert (None if sides is None else sides.asked) == asked


def test_another_rows_raw_prompt_is_not_its_question():
    row = {"prompt": {"raw": "TEMPLATE"}, "question": "Hi", "output": "a"}
    assert message_sides(row) is None


def test_a_table_s_row_may_have_messages_and_an_answer_without_a_role(tmp_path):
    row = {"request_id": "x", "messages": ASKED, "reasoning_content": "r\n", "content": "\n\na"}
    row |= {"finish_reason": "length", "max_tokens": "600", "completion_tokens": "161"}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.messages == ASKED
    assert (outcome.reasoning, outcome.content) == ("r\n", "\n\na")
    assert (outcome.finish_reason, outcome.completion_tokens) == ("length", 161)


@pytest.mark.parametrize(
    "more",
    [{"instruction": "Translate."}, {"history": [["a", "b"]]}, {"tool_calls": [{"id": "c"}]}],
)
def test_a_row_with_more_of_the_prompt_is_no_short_answer(more):
    row = {"input": "Hi", "reasoning_content": "r", "content": "a"}
    assert message_sides(row) is not None
    assert message_sides(row | more) is None


@pytest.mark.parametrize("name", ["input", "question", "prompt", "query"])
def test_a_distilled_row_has_its_question_under_any_name(tmp_path, name):
    row = {name: "Hi", "reasoning_content": "r\n", "content": "\n\na", "content_tokens_len": 1}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.messages == [{"role": "user", "content": "Hi"}]
    assert (outcome.reasoning, outcome.content) == ("r\n", "\n\na")
    assert outcome.end_is_assumed
