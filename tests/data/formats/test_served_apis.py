"""Anthropic's Messages and the Responses API become what vLLM makes of them."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats import parse_record
from outrider.data.formats.calls.finish_reasons import end_by_limit, token_limit
from outrider.data.formats.calls.served_apis import as_chat, message_of_items
from outrider.data.formats.calls.text_parts import text_messages
from tests.data.logs import read_exchanges, write_log
from tests.fuzzing import damaged, examples

MODEL = "deepseek-ai/DeepSeek-R1"

TEXTS = st.sampled_from(["Hi", "a\nb", "x-anthropic-billing-header: cch=1;", "", "ü 🙂"])


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


BLOCKS = st.one_of(
    TEXTS.map(text_block),
    TEXTS.map(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}),
    st.just({"type": "redacted_thinking", "data": "AAAA"}),
    TEXTS.map(lambda text: {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": text}}),
    st.one_of(TEXTS, st.lists(TEXTS.map(text_block), max_size=3)).map(
        lambda content: {"type": "tool_result", "tool_use_id": "t1", "content": content}
    ),
)

OF_USER = BLOCKS.filter(lambda block: block["type"] in ("text", "tool_result"))
OF_ASSISTANT = BLOCKS.filter(lambda block: block["type"] != "tool_result")


def message_of(role: str, blocks: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    content = st.one_of(TEXTS, st.lists(blocks, max_size=4))
    return content.map(lambda one: {"role": role, "content": one})


TOOLS = [{"name": "f", "description": "F.", "input_schema": {"type": "object", "properties": {}}}]

ANTHROPIC = st.fixed_dictionaries(
    {
        "model": st.just(MODEL),
        "max_tokens": st.just(4000),
        "messages": st.lists(
            st.one_of(
                message_of("user", OF_USER),
                message_of("assistant", OF_ASSISTANT),
                message_of("system", TEXTS.map(text_block)),
            ),
            min_size=1,
            max_size=5,
        ),
    },
    optional={
        "system": st.one_of(TEXTS, st.lists(TEXTS.map(text_block), max_size=3)),
        "temperature": st.sampled_from([0.0, 0.6]),
        "top_p": st.just(0.95),
        "top_k": st.just(40),
        "stop_sequences": st.just(["END"]),
        "tools": st.just(TOOLS),
        "tool_choice": st.sampled_from(
            [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f"}]
        ),
        "thinking": st.sampled_from(
            [{"type": "enabled", "budget_tokens": 2048}, {"type": "disabled"}]
        ),
        "output_config": st.just({"effort": "low"}),
    },
)

ANSWERED: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [
        {"type": "thinking", "thinking": "Two and two make four.\n", "signature": "s"},
        {"type": "text", "text": "\n\nIt is 4."},
    ],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 6, "cache_read_input_tokens": 16, "output_tokens": 18},
}

FORMATS = ("openai_pairs", "litellm", "langfuse", "message_pairs")

NUMBERS = ("temperature", "top_p", "top_k", "reasoning_effort", "thinking_token_budget")


def rendered(messages: list[Any]) -> list[Any]:
    """Messages as the template gets them: empty fields and ids of calls aside."""
    whole = text_messages([dict(message) for message in messages])
    return json.loads(
        json.dumps(
            [
                {key: value for key, value in message.items() if value not in (None, [])}
                for message in whole
            ],
            default=list,
        )
    )


@examples(200)
@given(ANTHROPIC)
def test_a_request_of_anthropics_is_the_chat_that_vllm_makes_of_it(
    request_body: dict[str, Any],
) -> None:
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

    by_vllm = AnthropicServingMessages.to_chat_completion_request(
        AnthropicMessagesRequest.model_validate(copy.deepcopy(request_body))
    )
    chat, _ = as_chat(request_body, ANSWERED)
    assert rendered(chat["messages"]) == rendered(list(by_vllm.messages))
    for name in NUMBERS:
        assert chat.get(name) == getattr(by_vllm, name), name
    assert (chat.get("stop") or []) == (by_vllm.stop or [])
    tools = [tool.model_dump(exclude_none=True) for tool in by_vllm.tools or []]
    assert (chat["tools"] or []) == tools
    if tools and "tool_choice" in chat:
        choice = by_vllm.tool_choice
        assert chat["tool_choice"] == (choice if isinstance(choice, str) else choice.model_dump())


ITEMS = st.one_of(
    TEXTS.map(lambda text: {"role": "user", "content": text}),
    TEXTS.map(lambda text: {"role": "user", "content": [{"type": "input_text", "text": text}]}),
    TEXTS.map(lambda text: {"role": "system", "content": text}),
    TEXTS.map(lambda text: {"role": "assistant", "content": text}),
    TEXTS.map(
        lambda text: {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    ),
    TEXTS.map(
        lambda text: {
            "type": "reasoning",
            "id": "r1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": text}],
        }
    ),
    st.just({"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}),
    TEXTS.map(lambda text: {"type": "function_call_output", "call_id": "c1", "output": text}),
)

RESPONSES = st.fixed_dictionaries(
    {"model": st.just(MODEL), "input": st.one_of(TEXTS, st.lists(ITEMS, min_size=1, max_size=6))},
    optional={"instructions": TEXTS, "temperature": st.just(0.6)},
)

GIVEN: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_782_900_000,
    "status": "completed",
    "model": MODEL,
    "output": [
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Two and two make four.\n"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "\n\nIt is 4.", "annotations": []}],
        },
    ],
    "usage": {"input_tokens": 22, "output_tokens": 18},
}


@examples(200)
@given(RESPONSES)
def test_a_request_to_the_responses_api_is_the_chat_that_vllm_makes_of_it(
    request_body: dict[str, Any],
) -> None:
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages

    parsed = ResponsesRequest.model_validate(copy.deepcopy(request_body))
    by_vllm = construct_input_messages(
        request_instructions=parsed.instructions, request_input=parsed.input
    )
    chat, _ = as_chat(request_body, GIVEN)
    assert rendered(chat["messages"]) == rendered(list(by_vllm))


ASKED_ANTHROPIC = {
    "model": MODEL,
    "system": "You answer briefly.",
    "messages": [{"role": "user", "content": "What is 2+2?"}],
    "max_tokens": 800,
    "temperature": 0.5,
    "metadata": {"user_id": "user_7f_account_9_session_s-1"},
}

ASKED_RESPONSES = {
    "model": MODEL,
    "instructions": "You answer briefly.",
    "input": "What is 2+2?",
    "temperature": 0.5,
    "user": "user_7f_account_9",
    "metadata": {"session_id": "s-1"},
}

START = {**ANSWERED, "content": [], "stop_reason": None}

OF_ANTHROPIC: list[dict[str, Any]] = [
    {"type": "message_start", "message": START},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
    *(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": piece},
        }
        for piece in ("Two and two ", "make four.\n")
    ),
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "text_delta", "text": "\n\nIt is 4."},
    },
    {"type": "ping"},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 18},
    },
    {"type": "message_stop"},
]

OF_RESPONSES: list[dict[str, Any]] = [
    {"type": "response.created", "response": {**GIVEN, "status": "in_progress", "output": []}},
    {"type": "response.output_text.delta", "delta": "It"},
    {"type": "response.completed", "response": GIVEN},
]


def as_sse(events: list[dict[str, Any]]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def outcomes_of(folder: Path, request: Any, response: Any) -> list[Exchange | Reject]:
    row = {"request": request, "response": response}
    return list(read_exchanges(log_files(str(write_log(folder / "log.jsonl", [row])))))


@pytest.mark.parametrize(
    ("request_body", "response"),
    [
        (ASKED_ANTHROPIC, ANSWERED),
        (ASKED_ANTHROPIC, as_sse(OF_ANTHROPIC)),
        (ASKED_ANTHROPIC, OF_ANTHROPIC),
        (ASKED_RESPONSES, GIVEN),
        (ASKED_RESPONSES, as_sse(OF_RESPONSES)),
        (json.dumps(ASKED_RESPONSES), json.dumps(GIVEN)),
    ],
)
def test_a_row_of_one_of_these_apis_is_read(
    tmp_path: Path, request_body: Any, response: Any
) -> None:
    (exchange,) = outcomes_of(tmp_path, request_body, response)
    assert isinstance(exchange, Exchange)
    assert exchange.messages == [
        {"role": "system", "content": "You answer briefly."},
        {"role": "user", "content": "What is 2+2?"},
    ]
    assert (exchange.reasoning, exchange.content) == ("Two and two make four.\n", "\n\nIt is 4.")
    assert (exchange.prompt_tokens, exchange.completion_tokens) == (22, 18)
    assert (exchange.temperature, exchange.finish_reason) == (0.5, "stop")
    assert (exchange.user, exchange.session) == ("user_7f_account_9", "s-1")


@pytest.mark.parametrize(
    ("request_body", "response", "reason"),
    [
        (ASKED_ANTHROPIC, {**ANSWERED, "model": "claude-sonnet-4-5"}, "not_a_generation"),
        (ASKED_ANTHROPIC, {**ANSWERED, "stop_reason": None}, "not_finished"),
        (ASKED_ANTHROPIC, as_sse(OF_ANTHROPIC[:-1]), "stream_cut"),
        (ASKED_RESPONSES, {**GIVEN, "model": "gpt-5.2"}, "not_a_generation"),
        (ASKED_RESPONSES, {**GIVEN, "status": "in_progress"}, "not_finished"),
        (ASKED_RESPONSES, as_sse(OF_RESPONSES[:-1]), "stream_cut"),
        ({**ASKED_RESPONSES, "previous_response_id": "resp_0"}, GIVEN, "prompt_not_messages"),
    ],
)
def test_what_is_not_whole_or_another_models_is_set_aside(
    tmp_path: Path, request_body: Any, response: Any, reason: str
) -> None:
    (reject,) = outcomes_of(tmp_path, request_body, response)
    assert isinstance(reject, Reject) and reject.reason == reason


@pytest.mark.parametrize(
    ("response", "end", "stopped_by"),
    [
        ({**ANSWERED, "stop_reason": "max_tokens"}, "length", None),
        ({**ANSWERED, "stop_reason": "stop_sequence", "stop_sequence": "END"}, "stop", "END"),
        ({**GIVEN, "status": "incomplete"}, "length", None),
    ],
)
def test_the_end_of_a_response(
    tmp_path: Path, response: dict[str, Any], end: str, stopped_by: str | None
) -> None:
    request = ASKED_RESPONSES if "object" in response else ASKED_ANTHROPIC
    (exchange,) = outcomes_of(tmp_path, request, response)
    assert isinstance(exchange, Exchange)
    assert (exchange.finish_reason, exchange.stop_reason) == (end, stopped_by)


def test_a_tool_s_schema_is_found_in_both_apis() -> None:
    function = {"name": "f", "description": "F.", "parameters": TOOLS[0]["input_schema"]}
    expected = [{"type": "function", "function": function}]
    anthropic, _ = as_chat({**ASKED_ANTHROPIC, "tools": TOOLS}, ANSWERED)
    responses, _ = as_chat({**ASKED_RESPONSES, "tools": [{"type": "function", **function}]}, GIVEN)
    assert anthropic["tools"] == responses["tools"] == expected


def litellm_row(response: dict[str, Any], call_type: str) -> dict[str, Any]:
    """A payload of LiteLLM, which has the Responses API's input as messages."""
    return {
        "id": "resp_1",
        "call_type": call_type,
        "status": "success",
        "startTime": 1_782_900_000.0,
        "model": "deepseek-r1",
        "messages": "What is 2+2?",
        "response": response,
        "model_parameters": {"instructions": "You answer briefly.", "temperature": 0.5},
        "metadata": {},
    }


@pytest.mark.parametrize("call_type", ["responses", "aresponses"])
def test_litellm_s_calls_of_the_responses_api_are_read(tmp_path: Path, call_type: str) -> None:
    log = write_log(tmp_path / "log.jsonl", [litellm_row(GIVEN, call_type)])
    (exchange,) = read_exchanges(log_files(str(log)))
    assert isinstance(exchange, Exchange)
    assert [message["role"] for message in exchange.messages or []] == ["system", "user"]
    assert (exchange.reasoning, exchange.temperature) == ("Two and two make four.\n", 0.5)


def test_litellm_s_calls_of_other_apis_are_set_aside(tmp_path: Path) -> None:
    embedded = {"object": "list", "data": [{"object": "embedding"}]}
    rows = [
        litellm_row(embedded, "aembedding"),
        litellm_row({**GIVEN, "model": "o3"}, "aresponses"),
    ]
    outcomes = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows))))
    assert {outcome.reason for outcome in outcomes if isinstance(outcome, Reject)} == {
        "not_a_generation"
    }


@pytest.mark.parametrize(
    "row",
    [
        {  # Langfuse's wrapper of the client puts the instructions before the input
            "type": "GENERATION",
            "traceId": "t",
            "startTime": "2026-11-01T10:00:00Z",
            "input": [
                {"role": "system", "content": "You answer briefly."},
                {"role": "user", "content": "What is 2+2?"},
            ],
            "output": GIVEN["output"],
        },
        {
            "messages": [
                {"role": "system", "content": "You answer briefly."},
                {"role": "user", "content": [{"type": "input_text", "text": "What is 2+2?"}]},
            ],
            "output": json.dumps(GIVEN["output"]),
        },
    ],
    ids=["Langfuse", "own names"],
)
def test_the_items_of_an_output_are_one_answer(tmp_path: Path, row: dict[str, Any]) -> None:
    log = write_log(tmp_path / "log.jsonl", [row])
    (exchange,) = read_exchanges(log_files(str(log)))
    assert isinstance(exchange, Exchange) and exchange.messages is not None
    assert [message["content"] for message in exchange.messages] == [
        "You answer briefly.",
        "What is 2+2?",
    ]
    assert (exchange.reasoning, exchange.content) == ("Two and two make four.\n", "\n\nIt is 4.")


@pytest.mark.parametrize(
    "items",
    [
        [],
        GIVEN["output"][:1],
        [*GIVEN["output"], {"type": "web_search_call"}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        [{"role": "assistant", "content": "Hi"}],
    ],
)
def test_other_lists_are_no_answer(items: list[Any]) -> None:
    assert message_of_items(items) is None


ROWS: list[dict[str, Any]] = [
    {"request": {**ASKED_ANTHROPIC, "tools": TOOLS}, "response": ANSWERED},
    {"request": ASKED_ANTHROPIC, "response": OF_ANTHROPIC},
    {
        "request": {**ASKED_RESPONSES, "input": [{"type": "reasoning", "summary": []}]},
        "response": {**GIVEN, "output": [*GIVEN["output"], {"type": "function_call"}]},
    },
    {"request": ASKED_RESPONSES, "response": OF_RESPONSES},
    {"type": "GENERATION", "traceId": "t", "input": [], "output": GIVEN["output"]},
    litellm_row(GIVEN, "aresponses"),
]


@examples(300)
@given(st.sampled_from(ROWS).flatmap(damaged))
def test_a_damaged_row_is_read_or_rejected(row: Any) -> None:
    """No other exception ends the worker that reads it."""
    for name in FORMATS:
        for outcome in parse_record(name, Record(Place("log.jsonl", 1), json.dumps(row).encode())):
            assert isinstance(outcome, Exchange | Reject)


def test_a_limit_in_a_log_s_own_end_is_no_limit_of_ours() -> None:
    for limit in ("x", 10**400, None, [1]):
        assert token_limit({"type": "assumed_stop", "limit": limit}) is None
    assert token_limit(end_by_limit(800.0, None)) == 800.0
