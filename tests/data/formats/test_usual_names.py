"""Names that applications choose for sessions, users and times are read by how they are formed."""

import itertools

import pytest

from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.rows.usual_names import HOLDERS

SUBJECTS = {
    "session": ("session", "conversation", "convo", "conv", "thread", "chat", "dialogue"),
    "user": ("user", "end_user", "hashed_user", "external_user", "member", "employee"),
}
IDS = {
    "session": ("id", "uuid", "guid", "key", "identifier"),
    "user": ("id", "uuid", "name", "email", "hash", "key"),
}
TIMES = (
    *("request_ts", "start", "started", "start_ts", "begin_time", "request_timestamp", "when"),
    *("recorded_at", "sent_at", "log_timestamp", "unix_time", "created_ms", "epoch_ms", "t"),
)


def spellings(name: str) -> set[str]:
    """A name in snake, camel, Pascal, kebab and capital case, and without a separator."""
    words = name.split("_")
    pascal = "".join(word.capitalize() for word in words)
    camel = words[0] + pascal[len(words[0]) :]
    return {
        name,
        camel,
        pascal,
        "-".join(words),
        name.upper(),
        f"{'_'.join(words[:-1])}{words[-1]}",
    }


@pytest.mark.parametrize("field", ["session", "user"])
def test_a_subject_and_a_word_for_an_id_is_read_in_any_spelling(field: str) -> None:
    for subject, word in itertools.product(SUBJECTS[field], IDS[field]):
        for name in spellings(f"{subject}_{word}"):
            assert fields({"model": "r1", name: "x-1"})[field] == "x-1", name
            for holder in sorted(HOLDERS):
                assert fields({"model": "r1", holder: {name: "x-1"}})[field] == "x-1", name


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_read_in_any_spelling_and_unit(name: str) -> None:
    for spelling in spellings(name):
        for value in (1_795_447_800, 1_795_447_800_000, "2026-11-23T15:30:00Z", "1795447800"):
            assert fields({spelling: value})["time"] == 1_795_447_800, spelling
            assert fields({"meta": {spelling: value}})["time"] == 1_795_447_800, spelling


@pytest.mark.parametrize(
    "name",
    [
        *("account_id", "customer_id", "client_id", "api_key", "user_api_key", "organization_id"),
        *("sender_id", "model_name", "hostname", "thread_name", "thread", "session", "user_agent"),
        *("session_length", "chat_template", "user_message", "userland_id"),
    ],
)
def test_a_name_that_may_mean_something_else_is_not_read(name: str) -> None:
    logged = fields({"meta": {name: "x-1"}})
    assert (logged["session"], logged["user"]) == (None, None)


@pytest.mark.parametrize(
    "name",
    [
        *("finished_at", "response_ts", "end", "updated_at", "expires_at", "user_created_at"),
        *("time_to_first_token", "first_token_ts", "model_created_at", "birth_date", "deadline"),
    ],
)
def test_a_time_of_something_else_is_not_the_requests(name: str) -> None:
    assert fields({name: 1_795_447_800})["time"] is None


@pytest.mark.parametrize("value", [0, 0.0, 25, 1700, 3.5, 86_400_000, "12", "soon", None, True])
def test_an_offset_or_a_duration_is_no_time(value: object) -> None:
    assert fields({"start": value, "t": value})["time"] is None


def test_a_start_counts_before_another_time() -> None:
    row = {"logged_ts": 1_795_447_805, "meta": {"request_start": 1_795_447_800}}
    assert fields(row)["time"] == 1_795_447_800


def test_a_thread_of_the_process_is_no_session() -> None:
    log4j = {"thread": "main", "threadId": 25, "threadPriority": 5}
    assert fields(log4j)["session"] is None
    assert fields(log4j | {"chatKey": "c-7"})["session"] == "c-7"
    serilog = {"Properties": {"ThreadId": 12, "MachineName": "web-1"}}
    assert fields(serilog)["session"] is None
    assert fields({"threadId": 25})["session"] == "25"


def test_producers_names_count_before_others() -> None:
    row = {"user_hash": "9f2c", "user_id": "ada", "chat_uuid": "c-7", "session_id": "s-1"}
    logged = fields(row | {"sent_ts": 1_795_447_800, "timestamp": 1_795_447_801})
    assert (logged["user"], logged["session"], logged["time"]) == ("ada", "s-1", 1_795_447_801)
