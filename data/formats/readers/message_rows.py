"""Tables of messages: each row is one, and a conversation's id joins them.

    {"conversation_id": "c1", "role": "user", "content": "...", "created_at": "2025-09-02 08:14:11"}
    {"conversation_id": "c1", "role": "assistant", "content": "...", "model": "deepseek-r1",
     "temperature": 0.6, "created_at": "2025-09-02 08:14:29"}

Applications keep their conversations so. Each answer is an exchange, whose prompt are the messages
before it, in order of time, or of the log without times. If rows name the message that each one
follows (`parent_id`), the prompt are the messages that lead to the answer: another answer to the
same question is not among them. Failed answers are in no prompt. A system prompt that the
application adds when it sends a request is not in its table; the on-policy check shows whether the
target wrote the answers without it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.rows import FileSample, Row
from outrider.data.formats.calls.message_sides import THOUGHTS, MessageSides
from outrider.data.formats.fields import first_value, take_json_or_text
from outrider.data.formats.readers import message_pairs
from outrider.data.formats.rows.join import grouped_records
from outrider.data.formats.rows.paths import find_field
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.wrappers import open_row

ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool")},
    **dict.fromkeys(("human", "customer"), "user"),
    **dict.fromkeys(("ai", "bot", "gpt", "model"), "assistant"),
}
"""Names of roles in such tables, and OpenAI's."""

CONTENTS = ("content", "message", "text", "body")
"""Names of a message's text, in order of preference."""

IDS = ("message_id", "id", "uuid")
"""Names of a message's own id, in order of preference."""

PARENTS = ("parent_id", "parent_message_id")
"""Names of the id of the message that a message follows. A reply's question is another thing."""

RENDERED = '<details type="reasoning"'
"""How Open WebUI stores reasoning: quoted and escaped, for its pages."""

SYSTEMS = ("system", "developer")

UNLINKED = (
    "its parents do not lead to the conversation's first message: name each message's parent_id,"
    " or none"
)

KEPT = ("tool_calls", "tool_call_id", "name")
"""Other keys of a message that its prompt has."""

ERRORS = ("error", "metadata.error")
"""Paths of the error of an answer that failed."""

MOST_MESSAGES = 400
"""Messages of a conversation that is read; the prompts grow with their square."""

PIECE = "completion_id"
"""Key of New Relic's events, which are one call's messages and have not all of its texts."""


def recognizes(sample: FileSample) -> bool:
    roles = [_role(row) for row in sample.rows if _is_message(row)]
    return "assistant" in roles and 2 * len(roles) > len(sample.rows)


def _is_message(row: dict[str, Any]) -> bool:
    """Whether a row is a message of a named conversation."""
    is_text = _role(row) is not None and isinstance(_content(row), str)
    if not is_text or PIECE in row:
        return False
    try:
        return fields(row)["session"] is not None
    except Reject:  # a field that is no valid text
        return False


def _role(row: dict[str, Any]) -> str | None:
    role = row.get("role")
    return ROLES.get(role.lower()) if isinstance(role, str) else None


def _content(row: dict[str, Any]) -> Any:
    return first_value(*(row.get(name) for name in CONTENTS))


def _member_of(payload: Row | None) -> tuple[str, str, str | None]:
    row = open_row(payload)
    session = fields(row)["session"]
    if session is None:
        raise Reject("no_id", "no id of a conversation joins the message with the others")
    return str(session), "message", None


records = functools.partial(grouped_records, member_of=_member_of)


def parse(record: Record) -> list[Exchange | Reject]:
    return answers_in([open_row(row) for row in record.payload], record.place)


def answers_in(
    rows: Sequence[dict[str, Any]], place: Place, session: str | None = None
) -> list[Exchange | Reject]:
    """Returns an exchange or a reject for each answer in a conversation's messages."""
    if len(rows) > MOST_MESSAGES:
        detail = f"a conversation of more than {MOST_MESSAGES} messages"
        return [Reject("line_too_long", detail)]
    stored = [_Stored.of(row) for row in rows if row.get("role") is not None]
    if all(message.time is not None for message in stored):
        stored.sort(key=lambda message: message.time or 0.0)
    by_id: dict[str | None, _Stored] = {
        message.id: message for message in stored if message.id is not None
    }
    names_parents = any(message.parent in by_id for message in stored)
    roots = [message for message in stored if message.parent not in by_id]
    systems = [message for message in roots if message.message["role"] in SYSTEMS]
    begins = next((message for message in roots if message not in systems), None)
    outcomes: list[Exchange | Reject] = []
    for number, answer in enumerate(stored):
        if answer.message["role"] == "assistant":
            before = stored[:number]
            if names_parents:
                lineage = _lineage(answer, by_id)
                if not lineage or lineage[0] not in (begins, *systems):
                    outcomes.append(Reject("ambiguous_id", UNLINKED))
                    continue
                before = [*(system for system in systems if system not in lineage), *lineage]
            asked = [message for message in before if not message.has_failed]
            for outcome in _outcomes(answer, asked, place, session):
                if isinstance(outcome, Exchange):
                    outcome = replace(outcome, call=len(outcomes))
                outcomes.append(outcome)
    return outcomes or [Reject("no_response", "a conversation without an answer")]


@dataclass(frozen=True, eq=False)
class _Stored:
    """A stored message."""

    row: dict[str, Any]
    message: dict[str, Any]
    """As OpenAI writes it."""
    time: float | None
    user: str | None
    id: str | None
    parent: str | None
    """The id of the message that this one follows, where it is named."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> "_Stored":
        """Reads a row; its reasoning and calls may be in columns of their own."""
        known = fields(row)
        message = {"role": _role(row) or str(row.get("role")), "content": _content(row)}
        thoughts = (row[name] for name in sorted(THOUGHTS & row.keys()))
        thought = next((text for text in thoughts if isinstance(text, str) and text), None)
        if thought is not None:
            message["reasoning_content"] = thought
        for key in KEPT:
            if row.get(key):
                message[key] = take_json_or_text(row, key, "row")
        return cls(
            row=row,
            message=message,
            time=known["time"],
            user=known["user"],
            id=_first_id(row, IDS),
            parent=_first_id(row, PARENTS),
        )

    @property
    def has_failed(self) -> bool:
        """Whether this is an answer with an error, or with neither a text nor calls."""
        if self.message["role"] != "assistant":
            return False
        errors = (find_field(self.row, path) for path in ERRORS)
        has_answer = self.message["content"] or self.message.get("tool_calls")
        return any(where and where.holder[where.key] for where in errors) or not has_answer


def _first_id(row: dict[str, Any], names: Sequence[str]) -> str | None:
    """The first id under one of the names, as text; None without one."""
    for where in filter(None, (find_field(row, name) for name in names)):
        value = where.holder[where.key]
        if isinstance(value, dict) and len(value) == 1:  # MongoDB's
            (value,) = value.values()
        if isinstance(value, str | int) and value != "":
            return str(value)
    return None


def _lineage(answer: _Stored, by_id: Mapping[str | None, _Stored]) -> list[_Stored]:
    """The messages that lead to an answer, the first one first."""
    lineage: dict[str | None, _Stored] = {}
    message = by_id.get(answer.parent)
    while message is not None and message.id not in lineage:
        lineage[message.id] = message
        message = by_id.get(message.parent)
    return list(lineage.values())[::-1]


def _outcomes(
    answer: _Stored, asked: Sequence[_Stored], place: Place, session: str | None
) -> list[Exchange | Reject]:
    if answer.has_failed:
        return [Reject("error_response", "an answer with an error, or without text")]
    if not asked:
        return [Reject("no_messages", "an answer before the conversation's first message")]
    if not {message.message["role"] for message in asked} <= set(ROLES.values()):
        return [Reject("wrong_type", "a message before the answer has an unknown role")]
    texts = [str(message.message["content"]) for message in (*asked, answer)]
    if any(RENDERED in text for text in texts):
        return [Reject("text_not_logged", "Open WebUI's rendering of the reasoning, not its text")]
    sides = MessageSides(
        asked=[dict(message.message) for message in asked],
        answers=[{"message": answer.message, "finish_reason": None}],
        holders=[answer.row],
    )
    question = asked[-1]
    try:
        return message_pairs.outcomes(
            answer.row,
            sides,
            place,
            session=session,
            time=question.time,
            user=answer.user or question.user,
        )
    except Reject as reject:
        return [reject]
