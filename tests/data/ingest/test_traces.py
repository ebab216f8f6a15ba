"""LiteLLM's trace ids: sessions of clients that several calls have, or UUIDs of one call each."""

import uuid
from typing import Any

from tests.data.ingest.test_copies import run
from tests.data.logs import pair

CONVERSATIONS = [str(uuid.UUID(int=(number << 80) | 0x4000_8000 << 48)) for number in (1, 2)]
OF_ONE_CALL = str(uuid.UUID(int=(3 << 80) | 0x4000_8000 << 48))


def payload(number: int, trace: str, user: str = "", **changes: Any) -> dict[str, Any]:
    """A call in LiteLLM's StandardLoggingPayload; every question is the same."""
    logged = pair([{"role": "user", "content": "Hi"}], "r\n", f"\n\nAnswer {number}")
    row = {
        "id": f"chatcmpl-{number}",
        "trace_id": trace,
        "call_type": "acompletion",
        "status": "success",
        "startTime": 1_782_900_000.0 + 60 * number,
        "endTime": 1_782_900_001.0 + 60 * number,
        "model": "nano-r1",
        "model_group": "r1",
        "end_user": user,
        "messages": logged["request"]["messages"],
        "response": {**logged["response"], "id": f"chatcmpl-{number}"},
        "model_parameters": {"temperature": 0.7},
        "metadata": {},
    }
    return row | changes


def test_a_uuid_is_a_session_if_several_calls_have_it(text_target, tmp_path):
    traces = [*CONVERSATIONS, *CONVERSATIONS, OF_ONE_CALL]
    calls = [payload(number, trace) for number, trace in enumerate(traces)]
    summary, table, _ = run(text_target, tmp_path, {"a.jsonl": calls})
    kinds = dict(zip(table["session"][:], table["session_kind"][:], strict=True))
    assert [kinds.pop(trace) for trace in CONVERSATIONS] == ["conversation"] * 2
    assert [*kinds.values()] == ["first_question"]
    assert summary["sessions"]["distinct"] == 3
    assert table["session"][:4] == [*CONVERSATIONS, *CONVERSATIONS]


def test_copies_of_one_call_do_not_make_a_session(text_target, tmp_path):
    calls = [payload(1, OF_ONE_CALL), payload(2, CONVERSATIONS[0], "ada")]
    _, table, rejects = run(text_target, tmp_path, {"a.jsonl": calls, "b.jsonl": calls})
    assert len(rejects) == 2
    assert table["session_kind"][:] == ["first_question", "user"]


def test_other_ids_are_sessions_of_the_client(text_target, tmp_path):
    _, table, _ = run(text_target, tmp_path, {"a.jsonl": [payload(1, "ticket-7")]})
    assert (table["session"][:], table["session_kind"][:]) == (["ticket-7"], ["conversation"])
