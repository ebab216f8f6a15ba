"""Messages, calls and tools of Vercel's AI SDK, as its provider sends them."""

import json

import pytest

from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.calls.vercel import vercel_messages, vercel_tools
from tests.data.logs import pair, read_exchanges, write_log

CALL = {"type": "tool-call", "toolCallId": "c9", "toolName": "draw"}
SENT = {"id": "c9", "type": "function"}


def result(**output) -> dict:
    return {"type": "tool-result", "toolCallId": "c9", "toolName": "draw", **output}


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ({"output": {"type": "text", "value": "ok"}}, "ok"),
        ({"output": {"type": "json", "value": {"é": 1}}}, '{"é":1}'),
        ({"output": {"type": "error-text", "value": "no"}}, "no"),
        ({"result": {"a": [1]}}, '{"a":[1]}'),  # AI SDK 4
        ({"result": "ok"}, '"ok"'),
        ({"output": {"type": "execution-denied", "reason": "no"}}, "no"),
        ({"output": {"type": "execution-denied"}}, "Tool execution denied."),
    ],
)
def test_each_result_is_a_message(output, content):
    converted = vercel_messages({"role": "tool", "content": [result(**output)] * 2})
    assert converted == [{"role": "tool", "tool_call_id": "c9", "content": content}] * 2


def test_an_assistants_parts_become_text_reasoning_and_calls():
    parts = [
        {"type": "reasoning", "text": "Hm."},
        {"type": "text", "text": "I draw"},
        {"type": "text", "text": " it."},
        {**CALL, "input": {"shape": "circle"}},
        {**CALL, "args": '{"shape": "dot"}'},
    ]
    (message,) = vercel_messages({"role": "assistant", "content": parts})
    assert message["content"] == "I draw it."
    assert message["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [
        '{"shape":"circle"}',
        '{"shape": "dot"}',
    ]
    (silent,) = vercel_messages({"role": "assistant", "content": [{**CALL, "input": {}}]})
    assert silent["content"] == ""


def test_an_earlier_answers_reasoning_is_not_text():
    parts = [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Yes."}]
    assert vercel_messages({"role": "assistant", "content": parts}) == [
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "output_text", "text": "hi"},
        {"type": "reasoning", "reasoning": "Hm."},
        {"type": "file", "data": "aGk="},
        {"type": "tool-result", "toolCallId": "c9", "output": {"type": "text", "value": "ok"}},
    ],
)
def test_parts_that_the_sdk_would_send_otherwise_stay_as_they_are(part):
    parts = [{"type": "reasoning", "text": "Hm."}, {"type": "text", "text": "Yes."}, part]
    message = {"role": "assistant", "content": parts}
    assert vercel_messages(message) == [message]


@pytest.mark.parametrize("call", [{"type": "tool-call", "input": {}}, {**CALL, "input": None}])
def test_a_call_without_a_name_or_input_is_rejected(call):
    with pytest.raises(Reject):
        vercel_messages({"role": "assistant", "content": [call]})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "tool-result"}]},
        {"role": "user", "content": [CALL]},
        {"role": "tool", "content": "ok", "tool_call_id": "c9"},
        "tool-call",
    ],
)
def test_other_messages_stay(message):
    assert vercel_messages(message) == [message]


def test_tools_are_texts_in_a_list():
    tool = {"type": "function", "name": "draw", "description": "d", "inputSchema": {"type": "x"}}
    function = {"name": "draw", "description": "d", "parameters": {"type": "x"}}
    assert vercel_tools([json.dumps(tool)]) == [{"type": "function", "function": function}]
    assert vercel_tools(["not JSON"]) == ["not JSON"]
    assert vercel_tools([{"type": "function"}]) == [{"type": "function"}]
    sent = {"type": "function", "function": function}
    assert vercel_tools([json.dumps(sent)]) == [sent]
    assert vercel_tools([json.dumps(tool), "null"]) == [json.dumps(tool), "null"]


def test_a_spans_call_has_the_conversation_and_the_tools(tmp_path):
    tool = {"type": "function", "name": "draw", "inputSchema": {"type": "object"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "draw"}]},
        {"role": "assistant", "content": [{**CALL, "input": {}}]},
        {"role": "tool", "content": [result(output={"type": "text", "value": "ok"})]},
    ]
    attributes = {
        "ai.operationId": "ai.streamText.doStream",
        "ai.prompt.messages": json.dumps(messages),
        "ai.prompt.tools": json.dumps([json.dumps(tool)]),
        "gen_ai.request.temperature": "1",
        "ai.response.text": "Done.",
        "ai.response.finishReason": "stop",
    }
    row = {"Timestamp": "2026-07-01 10:00:00", "SpanId": "s", "SpanAttributes": attributes}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.messages
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "tool"]
    assert outcome.messages[1]["tool_calls"][0]["function"]["name"] == "draw"
    assert outcome.template_arguments["tools"][0]["function"]["name"] == "draw"
    assert (outcome.content, outcome.temperature) == ("Done.", 1.0)


RESULT = {
    "text": "\n\na",
    "reasoningText": "r\n",
    "finishReason": "length",
    "usage": {"inputTokens": 7, "outputTokens": 9},
    "request": {"body": json.dumps({"messages": [{"role": "user", "content": "Hi"}]})},
    "response": {"id": "chatcmpl-1", "modelId": "deepseek-r1", "timestamp": "2026-07-01T10:00:00Z"},
}
EARLIER = {"reasoning": "r\n", "usage": {"promptTokens": 7, "completionTokens": 9}}
LATER = {"reasoning": [{"type": "reasoning", "text": "r"}, {"type": "reasoning", "text": "\n"}]}


@pytest.mark.parametrize("around", [{}, {"msg": "done", "userId": "u1"}])
@pytest.mark.parametrize("changes", [{}, EARLIER, LATER])
def test_the_result_of_a_call_is_its_response(tmp_path, around, changes):
    result = {name: RESULT[name] for name in RESULT if not changes or name != "reasoningText"}
    row = {**around, "llm": result | changes} if around else result | changes
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.messages == [{"role": "user", "content": "Hi"}]
    assert (outcome.reasoning, outcome.content) == ("r\n", "\n\na")
    assert (outcome.finish_reason, outcome.response_id) == ("length", "1")
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (7, 9)


def test_the_endpoint_s_own_response_comes_before_the_result_s(tmp_path):
    body = pair([], "R\n", "A")["response"]
    row = RESULT | {"response": RESULT["response"] | {"body": body}}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.reasoning == "R\n"


def test_calls_of_a_result_stay_calls(tmp_path):
    row = RESULT | {"text": "", "finishReason": "tool-calls", "toolCalls": [CALL | {"input": {}}]}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "x.jsonl", [row]))))
    assert isinstance(outcome, Exchange) and outcome.tool_calls
