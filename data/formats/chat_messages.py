"""Conversation data sets: `messages` without a separate response.

Together and Fireworks fine-tune on such rows; the Hugging Face Hub has many such data sets.

    {"messages": [{"role": "user", "content": "..."},
                  {"role": "assistant", "reasoning_content": "...", "content": "..."}],
     "weight": 0.5}

The last message, from the assistant, is the completion. Sampling settings are known only if the row
has them (`temperature`, `top_p`, `response_format`, `finish_reason`, ...). A row is not trained on
if its weight, or the weight of its last message, is 0 or less.

`hf://datasets/OWNER/NAME[@REVISION][/data/train-*.parquet]` reads from the Hub (private data sets
need `HF_TOKEN`); folders written by `save_to_disk` can be read directly. Sampling, finish reason
and time are often missing, and only the on-policy check shows whether the target wrote the text.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.formats.fields import take, take_number, unpacked
from outrider.data.formats.message_parts import openai_messages
from outrider.data.formats.openai import exchanges, gateway_fields
from outrider.data.formats.rows import Sample, parse_row
from outrider.data.formats.sampling import CONSTRAINTS, NUMBERS


def recognizes(sample: Sample) -> bool:
    """Whether most conversations end with an assistant turn; requests end with a user turn."""
    conversations = [
        row["messages"] for row in sample.rows if isinstance(row.get("messages"), list)
    ]
    return sum(map(_ends_with_answer, conversations)) > len(conversations) / 2


def _ends_with_answer(messages: list[Any]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def parse(record: Record) -> list[Exchange | Reject]:
    row = parse_row(record.payload)
    messages = take(row, "messages", list, "row")
    if not messages:
        raise Reject("no_messages")
    if not _ends_with_answer(messages):
        raise Reject("no_response", "the last message is not from the assistant")
    weights = (take_number(row, "weight", "row"), take_number(messages[-1], "weight", "message"))
    if any(weight is not None and weight <= 0 for weight in weights):
        raise Reject("weighted_out", "its training weight is 0 or less")
    *asked, answer = openai_messages(messages, "row.messages")
    keys = ("model", "chat_template_kwargs", "documents", "user", *NUMBERS, *CONSTRAINTS)
    request = {key: row[key] for key in keys if key in row}
    request["tools"] = unpacked(row, "tools", "row")  # tables store them as text
    for message in asked:
        message.pop("weight", None)
    request["messages"] = asked
    choice = {"message": answer, "finish_reason": row.get("finish_reason") or "stop"}
    return exchanges(request, {"choices": [choice]}, record.place, **gateway_fields(row))
