"""Messages as the engine passes them to the chat template."""

import pytest
from transformers import AutoTokenizer

from outrider.data.tokenize.chat_template import as_the_engine_reads, render_prompt


def call(name, arguments):
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture(scope="module")
def tokenizer(nano_r1):
    return AutoTokenizer.from_pretrained(nano_r1)


def test_messages_as_the_engine_reads_them():
    """The expected lists are what vLLM 0.32 gave for these messages."""
    messages = [
        {"role": "user", "content": "hi", "name": "bob", "cache_control": {"type": "ephemeral"}},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "why",
            "refusal": None,
            "tool_calls": [
                call("f", '{"a": 1}'),
                call("g", "oops"),
                call("h", "[]"),
                call("i", None),
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "42"},
        {"role": "assistant", "content": "", "tool_calls": []},
    ]
    assert as_the_engine_reads(messages) == [
        {"role": "user", "content": "hi", "name": "bob"},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "why",
            "reasoning_content": "why",
            "tool_calls": [call("f", {"a": 1}), call("g", {}), call("h", {}), call("i", {})],
        },
        {"role": "tool", "content": "42", "tool_call_id": "call_0"},
        {"role": "assistant", "content": ""},
    ]


def test_a_developers_message_is_the_systems_where_the_template_knows_no_other(
    tokenizer, monkeypatch
):
    messages = [
        {"role": "system", "content": "one"},
        {"role": "user", "content": "hi"},
        {"role": "developer", "content": "two"},
    ]
    assert as_the_engine_reads(messages) == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "hi"},
    ]
    knowing = (
        "{% for m in messages %}{{ m['role'] == 'developer' and m['content'] or '' }}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", knowing)
    assert render_prompt(tokenizer, messages, {}) == "two"


def test_a_prefilled_turn_is_left_open(tokenizer):
    prefilled = [
        {"role": "user", "content": "Look her up."},
        {"role": "assistant", "content": '{"verdict":'},
    ]
    ended = '{"verdict":<｜end▁of▁sentence｜><｜Assistant｜><think>\n'
    for arguments, end in (
        ({"continue_final_message": True, "add_generation_prompt": False}, '{"verdict":'),
        ({"continue_final_message": True}, '{"verdict":'),
        ({}, ended),
    ):
        text = render_prompt(tokenizer, prefilled, arguments)
        assert text.endswith(f"<｜User｜>Look her up.<｜Assistant｜>{end}")
