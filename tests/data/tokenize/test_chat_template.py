"""Input of the chat template and its rendering of tool calls, with templates like R1's two."""

import pytest
from transformers import AutoTokenizer

from outrider.data.exchange import Reject
from outrider.data.tokenize.chat_template import ChatTemplate, as_the_engine_reads

BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE_CALL = (
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call['function']['name'] + "
    "'\n```json\n' + ARGUMENTS + '\n```<｜tool▁call▁end｜>"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] in ('system', 'user', 'tool') %}"
    "{{ '<｜User｜>' + message['content'] }}{% endif %}"
    "{% if message['role'] == 'assistant' %}ASSISTANT{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
CALLS = (
    f"{{{{ '{BEGIN}' }}}}{{% for call in message['tool_calls'] %}}{{{{ '{ONE_CALL}' }}}}"
    "{% if not loop.last %}{{ '\n' }}{% endif %}{% endfor %}"
)
FIRST = TURNS.replace(
    "ASSISTANT",
    "{% if message['content'] is none %}{{ '<｜Assistant｜>' }}"
    + CALLS.replace("ARGUMENTS", "call['function']['arguments']")
    # As in R1's first template: the end only after several calls.
    + "{% if message['tool_calls'] | length > 1 %}"
    + f"{{{{ '{END}<｜end▁of▁sentence｜>' }}}}{{% endif %}}"
    "{% else %}{{ '<｜Assistant｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}{% endif %}",
)
LATER = TURNS.replace(
    "ASSISTANT",
    "{{ '<｜Assistant｜>' + message['content'] }}{% if message['tool_calls'] %}"
    + CALLS.replace("ARGUMENTS", "(call['function']['arguments'] | tojson)")
    + f"{{{{ '{END}' }}}}{{% endif %}}{{{{ '<｜end▁of▁sentence｜>' }}}}",
)
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


def written(*calls):
    return (
        BEGIN
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        + END
    )


@pytest.mark.parametrize("text", [FIRST, LATER], ids=["first", "later"])
def test_tool_calls_are_written_as_the_template_writes_them(template_of, text):
    template = template_of(text)
    # The arguments are the model's text with its spacing, not the result of parsing and printing.
    one = ("find", '{"name":  "Ines \\"Go\\" Maro", "years": 5}')
    two = ("note", "{}")
    assert template.tool_calls(MESSAGES, {}, [call(*one)]) == written(one)
    assert template.tool_calls(MESSAGES, {}, [call(*one), call(*two)]) == written(one, two)


@pytest.mark.parametrize(
    "broken", ["x", {}, {"function": {"name": "f", "arguments": {"a": 1}}}, {"function": "f"}]
)
def test_calls_that_are_not_the_models_text(template_of, broken):
    with pytest.raises(Reject) as caught:
        template_of(LATER).tool_calls(MESSAGES, {}, [broken])
    assert caught.value.reason == "tool_calls_without_ids"


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
