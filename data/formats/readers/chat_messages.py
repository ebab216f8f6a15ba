"""Conversation data sets: `messages` without a separate response.

Together and Fireworks fine-tune on such rows; the Hugging Face Hub has many such data sets.

    {"messages": [{"role": "user", "content": "..."},
                  {"role": "assistant", "reasoning_content": "...", "content": "..."}],
     "weight": 0.5}

The last message, from the assistant, is the completion. Sampling settings are known only if the row
has them (`temperature`, `top_p`, `response_format`, ...), itself or in an object. A row is not
trained on if its weight, or the weight of its last message, is 0 or less. ShareGPT's
`conversations` with `from` and `value` are read as messages, with the row's `system`. If each
message has its time, an application stored the conversation, and every answer is an exchange
(message_rows.py).

`hf://datasets/OWNER/NAME[@REVISION][/data/train-*.parquet]` reads from the Hub (private data sets
need `HF_TOKEN`); folders written by `save_to_disk` can be read directly. Sampling, finish reason
and time are often missing, and only the on-policy check shows whether the target wrote the text.
"""

from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.finish_reasons import ASSUMED
from outrider.data.formats.calls.message_parts import openai_messages
from outrider.data.formats.calls.message_sides import THOUGHTS, sent_parameters
from outrider.data.formats.calls.openai import exchanges
from outrider.data.formats.calls.sampling import CONSTRAINTS, NUMBERS
from outrider.data.formats.fields import first_value, take, take_json, take_number
from outrider.data.formats.readers.message_rows import CONTENTS, answers_in
from outrider.data.formats.rows.other_rows import FAILURES
from outrider.data.formats.rows.paths import normalize_key
from outrider.data.formats.rows.row_fields import FIELDS, fields
from outrider.data.formats.wrappers import open_row

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant"}
"""ShareGPT's names of roles; others are used unchanged."""

OTHER_REASONING = "<|begin_of_thought|>"
"""Mark of reasoning in OpenThoughts and Sky-T1, whose answers are rewritten."""


GENERATOR = "generator"
"""Key of the model that wrote the answer: NVIDIA's Nemotron data sets."""

OF_DATA_SETS = frozenset({"weight", "documents", "generations"})
"""Keys of a data set's rows."""

OF_MESSAGES = frozenset({"messages", "role", *CONTENTS, *THOUGHTS, *FIELDS["time"]})
"""Names of what a stored message has itself, and its conversation does not lend it."""


def recognizes(sample: FileSample) -> bool:
    """Whether half of the conversations end with an assistant turn; requests end with a user's."""
    conversations = [messages for messages in map(_conversation, sample.rows) if messages]
    answered = sum(map(_ends_with_answer, conversations))
    return answered > 0 and 2 * answered >= len(conversations)


def _conversation(row: dict[str, Any]) -> list[Any] | None:
    """Returns a row's messages; None if it has none."""
    messages = row.get("messages")
    if isinstance(messages, list):
        return messages
    turns = row.get("conversations")
    if not isinstance(turns, list):
        return None
    system = row.get("system")
    first_message = [{"role": "system", "content": system}] if system else []
    return [*first_message, *map(_of_sharegpt, turns)]


def _of_sharegpt(turn: Any) -> Any:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn
    speaker = turn["from"]
    role = SHAREGPT_ROLES.get(speaker, speaker) if isinstance(speaker, str) else speaker
    unchanged = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": role, "content": turn.get("value"), **unchanged}


def _ends_with_answer(messages: list[Any]) -> bool:
    last = messages[-1] if messages else None
    return isinstance(last, dict) and last.get("role") == "assistant"


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    if isinstance(row.get("messages"), str):
        row = {**row, "messages": take_json(row, "messages", "row")}
    take(row, "messages", list, "row")
    messages = _conversation(row)
    if not messages:
        raise Reject("no_messages")
    if str(row.get("status")).lower() in FAILURES:
        raise Reject("error_response", f"status is {row['status']}")
    if _is_stored(row, messages):
        return _stored_answers(row, messages, record)
    if not _ends_with_answer(messages):
        raise Reject("no_response", "the last message is not from the assistant")
    if OTHER_REASONING in str(messages[-1].get("content")):
        detail = "the answer has other marks of reasoning than <think>: R1 did not write this text"
        raise Reject("reasoning_missing", detail)
    weights = (take_number(row, "weight", "row"), take_number(messages[-1], "weight", "message"))
    if any(weight is not None and weight <= 0 for weight in weights):
        raise Reject("weighted_out", "its training weight is 0 or less")
    *asked, answer = openai_messages(messages, "row.messages")
    keys = ("model", "chat_template_kwargs", "documents", "user", *NUMBERS, *CONSTRAINTS)
    request = sent_parameters(row) | {key: row[key] for key in keys if key in row}
    if request.get("model") is None and isinstance(row.get(GENERATOR), str):
        request["model"] = row[GENERATOR]
    request["tools"] = take_json(row, "tools", "row")  # tables store them as text
    request["messages"] = [
        {key: value for key, value in message.items() if key != "weight"} for message in asked
    ]
    ended = row.get("finish_reason") or _end_of_generation(row, answer) or ASSUMED
    choice = {"message": answer, "finish_reason": ended}
    return exchanges(request, {"choices": [choice]}, record.place, **fields(row))


def _is_stored(row: dict[str, Any], messages: list[Any]) -> bool:
    """Whether an application stored the messages as they came, each with its time.

    A data set's row, which has weights or the like, is one exchange.
    """
    if not all(isinstance(message, dict) for message in messages):
        return False
    if not OF_DATA_SETS.isdisjoint(row) or any("weight" in message for message in messages):
        return False
    if any(OTHER_REASONING in str(message.get("content")) for message in messages):
        return False
    said = [message for message in messages if message.get("role") != "system"]
    return len(said) > 1 and all(fields(message)["time"] is not None for message in said)


def _stored_answers(
    row: dict[str, Any], messages: list[dict[str, Any]], record: Record
) -> list[Exchange | Reject]:
    """Returns each answer of a stored conversation, as of a table of its messages."""
    around = fields(row)
    names = {normalize_key(key) for message in messages for key in message} | OF_MESSAGES
    outer = {key: value for key, value in row.items() if normalize_key(key) not in names}
    session = first_value(around["session"], around["log_id"])
    return answers_in([{**message, **outer} for message in messages], record.place, session)


def _end_of_generation(row: dict[str, Any], answer: dict[str, Any]) -> str | None:
    """Returns how an answer ended that is one of a row's generations (OpenR1-Math).

    Where the reasons are null, a generation without `</think>` is marked as incomplete.
    """
    generations = row.get("generations")
    if not isinstance(generations, list) or answer.get("content") not in generations:
        return None
    at = generations.index(answer["content"])
    reasons = row.get("finish_reasons")
    if isinstance(reasons, list) and at < len(reasons) and reasons[at]:
        return str(reasons[at])
    complete = row.get("is_reasoning_complete")
    is_cut = isinstance(complete, list) and at < len(complete) and complete[at] is False
    return "length" if is_cut else None
