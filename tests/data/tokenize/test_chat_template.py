"""Messages as the engine passes them to the chat template."""

import pytest
from transformers import AutoTokenizer

from outrider.data.tokenize.chat_template import ChatTemplate, as_the_engine_reads

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look her up."}]


def call(name, arguments):
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.fixture(scope="module")
def tokenizer(nano_r1):
    return AutoTokenizer.from_pretrained(nano_r1)


@pytest.fixture
def template_of(tokenizer, monkeypatch):
    def make(text):
        monkeypatch.setattr(tokenizer, "chat_template", text)
        return ChatTemplate(tokenizer)

    return make


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
    template_of, tokenizer
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
    knowing = template_of(
        "{% for m in messages %}{{ m['role'] == 'developer' and m['content'] or '' }}{% endfor %}"
    )
    assert knowing.render(messages, {}) == "two"


def test_a_prefilled_turn_is_left_open(tokenizer):
    template = ChatTemplate(tokenizer)
    prefilled = [*MESSAGES, {"role": "assistant", "content": '{"verdict":'}]
    assert template.render(
        prefilled, {"continue_final_message": True, "add_generation_prompt": False}
    ).endswith('<｜User｜>Look her up.<｜Assistant｜>{"verdict":')
    assert template.render(prefilled, {"continue_final_message": True}).endswith(
        '<｜Assistant｜>{"verdict":'
    )
    assert template.render(prefilled, {}).endswith(
        '{"verdict":<｜end▁of▁sentence｜><｜Assistant｜><think>\n'
    )
