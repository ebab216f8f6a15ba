"""`traffic.fields`: sessions, users and times under names that an application chose."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.common.errors import OutriderError
from outrider.data.config import FieldsConfig, TrafficConfig
from outrider.data.exchange import Exchange
from outrider.data.files.sources import log_files
from outrider.data.formats import OWN_NAMES
from outrider.data.formats.rows.named_fields import use_field_paths
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.rows.span_attributes import is_otlp
from outrider.data.formats.rows.unread_names import names_in
from outrider.data.ingest.ingest import ingest
from outrider.data.ingest.inspection import inspect_log
from outrider.data.sequences import load_sequences
from tests.data.formats.test_golden import FOLDERS, GOLDEN
from tests.data.formats.test_message_rows import MESSAGES, expected, read, rows_of
from tests.data.logs import pair, read_exchanges, screenings, write_log

OWN = FieldsConfig(session="app.thread", user=["author", "app.author"], time="app.at")
START = 1_780_000_000

WITHOUT_ROWS = {"vllm_log"}
"""Formats of lines, into which no application writes."""

IN_SEVERAL_ROWS = {"message_rows"}
"""Formats whose rows the session joins, so that it may not be another one for each row."""


def exchanges_in(path: Path, named: FieldsConfig = OWN) -> list[Exchange]:
    with use_field_paths(named.paths()):
        outcomes = list(read_exchanges(log_files(str(path))))
    return [outcome for outcome in outcomes if isinstance(outcome, Exchange)]


@pytest.mark.parametrize(
    "name", [n for n, kind in FOLDERS.items() if kind not in WITHOUT_ROWS | IN_SEVERAL_ROWS]
)
@pytest.mark.parametrize("is_text", [False, True])
def test_every_format_reads_the_names_of_an_application(name, is_text, tmp_path):
    """Added to each row of the golden logs, as an object or as JSON text."""
    files = sorted((GOLDEN / name).glob("*.jsonl"))
    for file in files:
        rows = []
        for number, line in enumerate(file.read_bytes().splitlines()):
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and not is_otlp(row):  # a batch's names are attributes
                app = {"thread": f"t-{number}", "author": f"a-{number}", "at": START + number}
                rows.append({**row, "app": json.dumps(app) if is_text else app})
        path = write_log(tmp_path / file.name, rows)
        for one in exchanges_in(path):
            assert one.time is not None and one.time >= START, (file, one.place)
            number = round(one.time - START)
            assert (one.session, one.user) == (f"t-{number}", f"a-{number}"), (file, one.place)
            assert one.trace is None
    assert files or name in ("azure_llm", "litellm", "langfuse", "message_pairs"), "no rows"


def test_formats_with_names_of_their_own_are_listed():
    """Without any of the names, no exchange has a session, even if its row has a known name."""
    for name, kind in FOLDERS.items():
        found = exchanges_in(GOLDEN / name, FieldsConfig(session="nowhere", user="nowhere"))
        if kind != "message_rows":
            assert found and {(one.session, one.user) for one in found} == {(None, None)}, name
    assert set(FOLDERS.values()) >= OWN_NAMES


def test_a_table_of_messages_is_recognized_by_the_application_s_name(tmp_path):
    rows = [
        {"thread" if key == "conversation_id" else key: value for key, value in row.items()}
        for row in rows_of("c1")
    ]
    path = write_log(tmp_path / "messages.jsonl", rows)
    with use_field_paths(FieldsConfig(session="thread").paths()):
        assert read(path) == expected("c1")
    assert len(MESSAGES) == len(rows)


def span(**attributes: str) -> dict[str, Any]:
    """A call of OTLP's file exporter, with attributes of the application."""
    named = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "r1",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [TEXT]}]),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [TEXT], "finish_reason": "stop"}]
        ),
        **attributes,
    }
    listed = [{"key": key, "value": {"stringValue": value}} for key, value in named.items()]
    time = str(START * 10**9)
    spans = [{"traceId": "1", "spanId": "2", "attributes": listed, "startTimeUnixNano": time}]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


TEXT = {"type": "text", "content": "Hi"}


def test_an_attribute_of_a_span_is_named_as_it_is(tmp_path):
    path = write_log(tmp_path / "spans.jsonl", [span(**{"acme.thread": "t1", "user.id": "bot"})])
    (one,) = exchanges_in(path, FieldsConfig(session="acme.thread", user="acme.author"))
    assert (one.session, one.user, one.time) == ("t1", None, START)


def test_a_name_outside_counts_for_the_request_inside(tmp_path):
    """The line's JSON is text of a collector's row, which has the application's name."""
    inner = pair([{"role": "user", "content": "Hi"}], "so", "Hello")
    row = {"labels": {"thread": "t1"}, "at": START, "message": json.dumps(inner)}
    path = write_log(tmp_path / "log.jsonl", [row])
    (one,) = exchanges_in(path, FieldsConfig(session="labels.thread", time="at"))
    assert (one.session, one.time, one.tenant) == ("t1", START, "acme")


def test_the_known_names_count_again_outside_the_context():
    row = {"author_id": "ada", "user_id": "bot"}
    with use_field_paths({"user": ("author_id",)}):
        assert fields(row)["user"] == "ada"
        assert fields({"user_id": "bot"})["user"] is None
    assert fields(row)["user"] == "bot"


def test_short_values_are_named_and_texts_and_addresses_are_not():
    row = {
        "thread": "t1",
        "note": "a sentence with words",
        "ada@example.org": "x",
        "meta": json.dumps({"author": 7, "list": [1]}),
        "request": {"messages": [], "model": "r1"},
        "is_test": True,
    }
    assert names_in(row) == ("thread", "meta.author")


def rows_of_an_application(count: int = 60) -> list[dict[str, Any]]:
    rows = []
    for number, (messages, reasoning, answer) in enumerate(screenings(count)):
        row = pair(messages, reasoning + "\n", "\n\n" + answer, request__metadata=None)
        about = {"thread": f"t-{number // 2}", "author": f"a-{number % 7}", "at": START + number}
        rows.append({**row, "app": about})
    return rows


@pytest.mark.parametrize("workers", [0, 2])
def test_an_ingest_reads_the_names_in_every_process(workers, text_target, tmp_path):
    log = write_log(tmp_path / "log.jsonl", rows_of_an_application())
    traffic = TrafficConfig(path=str(log), fields=OWN)
    summary = ingest(text_target, traffic, tmp_path / "out", workers=workers)
    assert summary["sessions"]["exchanges"] == {"conversation": 60}
    assert summary["sessions"]["distinct"] == 30 and summary["users"]["distinct"] == 7
    times = load_sequences(tmp_path / "out" / "sequences")["time"]
    assert sorted(times) == [START + number for number in range(60)]


def test_names_that_no_row_has_are_refused_with_those_it_has(text_target, tmp_path):
    log = write_log(tmp_path / "log.jsonl", rows_of_an_application())
    wrong = FieldsConfig(user="app.authr", session="app.thread")
    traffic = TrafficConfig(path=str(log), fields=wrong)
    with pytest.raises(OutriderError) as caught:
        ingest(text_target, traffic, tmp_path / "out")
    assert str(caught.value) == (
        "traffic.fields.user = app.authr: no row has a text or whole number there; the first row"
        " has app.thread, app.author, app.at"
    )
    for words in ({"is_slice": True}, {"prefix": "general-"}):
        assert ingest(text_target, traffic, tmp_path / "other", **words)["exchanges"] == 60
    corrected = TrafficConfig(path=str(log), fields=OWN)
    assert ingest(text_target, corrected, tmp_path / "out")["users"]["distinct"] == 7


def test_a_log_without_known_names_is_advised_to_name_its_own(text_target, tmp_path):
    from outrider.data.config import SplitConfig

    log = write_log(tmp_path / "log.jsonl", rows_of_an_application())
    for number, (named, advised) in enumerate(
        ((FieldsConfig(), True), (OWN, False)),
    ):
        described = inspect_log(
            text_target,
            TrafficConfig(path=str(log), fields=named),
            SplitConfig(),
            tmp_path / str(number),
        )
        advice = [text for text in described["advice"] if "traffic.fields" in text]
        assert bool(advice) == advised
        if advised:
            assert "no conversation ids or users" in advice[0] and "app.thread" in advice[0]


BLIND = Path(__file__).parent / "blind"


def test_logs_of_others_whose_names_are_not_known_are_named():
    """blind/cases.json says who is right; without names, both logs have no users."""
    messages = exchanges_in(BLIND / "403-chat-messages.csv", FieldsConfig(user="author_id"))
    assert {one.user for one in messages} == {"u-17", "u-31"}
    named = FieldsConfig(session="thread", user="account")
    events = exchanges_in(BLIND / "405-bigquery-llm-events.parquet", named)
    assert [one.session for one in events][:2] == ["th_aa", "th_aa"]
    assert {one.user for one in events} == {f"acct_{number}" for number in range(4)}


def test_paths_are_from_the_top_of_a_row_whatever_is_inside(tmp_path):
    """A reader looks at the request inside, which may have the same keys."""
    inner = pair([{"role": "user", "content": "Hi"}], "so", "Hello")
    row = {"id": "t1", "ctx": {"user": "ada"}, "payload": {"id": "q1", "ctx": {"user": "x"}}}
    row["payload"] |= inner
    path = write_log(tmp_path / "log.jsonl", [row])
    (one,) = exchanges_in(path, FieldsConfig(session="id", user="ctx.user"))
    assert (one.session, one.user) == ("t1", "ada")


@pytest.mark.parametrize("key", ["key", ["nowhere", "key"]])
def test_each_call_of_a_list_has_its_own_values(tmp_path, key):
    calls = [
        {**pair([{"role": "user", "content": name}], "so", "Hello"), "key": name, "at": START + at}
        for at, name in enumerate(["s1", "s2"])
    ]
    del calls[1]["key"]
    row = {"key": "outer", "at": START - 9, "calls": calls}
    path = write_log(tmp_path / "log.jsonl", [row])
    found = exchanges_in(path, FieldsConfig(session=key, time="at"))
    assert [(one.session, one.time) for one in found] == [("s1", START), ("outer", START + 1)]


def test_observations_of_a_trace_have_their_own_values(tmp_path):
    observations = [
        {
            "id": f"o{number}",
            "traceId": "t1",
            "type": "GENERATION",
            "input": [{"role": "user", "content": f"{number}?"}],
            "output": {"role": "assistant", "content": "a"},
            "metadata": {"who": f"a{number}"},
        }
        for number in range(2)
    ]
    row = {"id": "t1", "team": "acme", "sessionId": "s1", "observations": observations}
    path = write_log(tmp_path / "log.jsonl", [row])
    found = exchanges_in(path, FieldsConfig(user="metadata.who", tenant="team"))
    assert [(one.user, one.tenant, one.session) for one in found] == [
        ("a0", "acme", "s1"),
        ("a1", "acme", "s1"),
    ]


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"userId": "other", "user_id": "ada"}, "user_id"),
        ({"tid": "other", "_tid": "ada"}, "_tid"),
        ({"a.b": {"c": "ada"}}, "a.b.c"),
        ({"meta._id": "ada"}, "meta._id"),
        ({"meta": '{"Who": "ada"}'}, "meta.Who"),
    ],
)
def test_a_path_is_first_read_as_it_is_written(row, path):
    with use_field_paths({"user": (path,)}):
        assert fields(row)["user"] == "ada"


def test_an_integer_id_in_a_column_with_gaps_is_a_float():
    with use_field_paths({"user": ("uid",)}):
        assert fields({"uid": 12345.0})["user"] == "12345"
        assert fields({"uid": 0.5})["user"] is None


def test_names_that_may_be_data_are_not_listed():
    row = {
        "made_on": "2026-07-01 10:00:00",
        "used": {"ada_lovelace": 3, "bob": 1},
        "labels": {"sk-proj-abcdef0123456789": "x", "team": "acme"},
        "k" * 100: 1,
    }
    assert names_in(row) == ("made_on", "labels.team")
    assert len(names_in({f"k{number}": number for number in range(100_000)})) == 40


def test_a_user_s_wrong_name_is_found_although_rows_have_tenants(text_target, tmp_path):
    rows = [{**row, "tenant": "acme"} for row in rows_of_an_application()]
    log = write_log(tmp_path / "log.jsonl", rows)
    traffic = TrafficConfig(path=str(log), fields=FieldsConfig(user="app.authr"))
    with pytest.raises(OutriderError, match=r"traffic\.fields\.user = app\.authr: no row has"):
        ingest(text_target, traffic, tmp_path / "out")


def test_a_table_of_messages_is_told_to_name_its_conversations(tmp_path):
    rows = [
        {"room" if key == "conversation_id" else key: value for key, value in row.items()}
        for row in rows_of("c1")
    ]
    path = write_log(tmp_path / "messages.jsonl", rows)
    (reject, *_) = read_exchanges(log_files(str(path)))
    assert "traffic.fields.session=NAME" in reject.detail


@pytest.mark.parametrize("empty", ["", " ", [], [""]])
def test_an_empty_path_is_refused(empty):
    with pytest.raises(ValueError, match="at least 1"):
        FieldsConfig(user=empty)


@pytest.mark.parametrize("value", ["text", [1], {"user": "mallory"}, None])
def test_a_log_may_have_any_key(tmp_path, value):
    row = pair([{"role": "user", "content": "Hi"}], "so", "Hello")
    wrapped = {"outrider.fields": value, "payload": {**row, "outrider.fields": value}}
    path = write_log(tmp_path / "log.jsonl", [wrapped])
    (one,) = read_exchanges(log_files(str(path)))
    assert isinstance(one, Exchange) and one.user is None


def test_each_payload_of_a_batch_has_its_own_time(tmp_path):
    """LiteLLM's reader has names of its own."""
    payloads = [
        {
            "call_type": "acompletion",
            "model_parameters": {},
            "startTime": 1.0,
            "messages": [{"role": "user", "content": f"{number}?"}],
            "response": pair([], "so", "Hello")["response"],
            "metadata": {},
            "at": START + number,
        }
        for number in range(2)
    ]
    path = write_log(tmp_path / "log.jsonl", [{"at": START - 9, "calls": payloads}])
    found = exchanges_in(path, FieldsConfig(time="at"))
    assert [one.time for one in found] == [START, START + 1]
