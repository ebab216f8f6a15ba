"""Requests and responses inside what gateways, collectors and databases wrap around them."""

import base64
import dataclasses
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from outrider.data.exchange import Exchange, Place, Record
from outrider.data.files.sources import log_files
from outrider.data.formats import parse_record
from outrider.data.formats.rows import embedded
from tests.data.logs import pair, read_exchanges, write_log

GOLDEN = Path(__file__).parents[1] / "golden"
PRODUCERS = (
    "litellm",
    "helicone",
    "langfuse",
    "otel_genai",
    "token_ids",
    "messages",
    "message_pairs",
)
PAIRS = ("openai_pairs", "openai_streams", "openai_completions")
LOGS = sorted(
    str(path.relative_to(GOLDEN))
    for folder in (*PRODUCERS, *PAIRS)
    for path in (GOLDEN / folder).rglob("*.jsonl")
)


def in_base64(value) -> str:
    """Text, or JSON, in base64."""
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.b64encode(text.encode()).decode()


def in_types(value):
    """A value as DynamoDB writes it."""
    if isinstance(value, dict):
        return {"M": {key: in_types(inner) for key, inner in value.items()}}
    if isinstance(value, list):
        return {"L": list(map(in_types, value))}
    if value is None:
        return {"NULL": True}
    if isinstance(value, bool):
        return {"BOOL": value}
    return {"S": value} if isinstance(value, str) else {"N": json.dumps(value)}


def in_extended(value):
    """A value as mongoexport writes it with --jsonFormat=canonical."""
    if isinstance(value, dict):
        return {key: in_extended(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list(map(in_extended, value))
    if isinstance(value, float):
        return {"$numberDouble": repr(value)}
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return {"$numberLong": str(value)} if is_number else value


def changed(row):
    """An update of a table as Debezium writes it."""
    before = {**row, "request": "former", "response": None}
    return {"payload": {"before": before, "after": row, "op": "u", "ts_ms": 1782900000000}}


EVENT = {"specversion": "1.0", "id": "e1", "source": "/r1", "type": "org.example.logged"}

COLLECTORS = {
    "body": lambda row: {"body": row},
    "event": lambda row: {"timestamp": 1234, "event": row},
    "Fluent Bit": lambda row: {"date": 1.7e9, "log": json.dumps(row), "stream": "stdout"},
    "Logstash": lambda row: {"@timestamp": "2026-07-01T10:00:00Z", "message": json.dumps(row)},
    "Elasticsearch": lambda row: {"_index": "logs", "_id": "a", "_score": 1.0, "_source": row},
    "Google Cloud": lambda row: {"insertId": "1", "severity": "INFO", "jsonPayload": row},
    "Datadog": lambda row: {"id": "1", "type": "log", "attributes": {"attributes": row}},
    "Splunk": lambda row: {"preview": False, "result": {"_raw": json.dumps(row)}},
    "EventBridge": lambda row: {"detail-type": "call", "detail": row},
    "CloudEvents": lambda row: {**EVENT, "datacontenttype": "application/json", "data": row},
    "CloudEvents, base64": lambda row: {**EVENT, "data_base64": in_base64(row)},
    "Kinesis": lambda row: {"kinesis": {"partitionKey": "1", "data": in_base64(row)}},
    "DynamoDB's export": lambda row: {"Item": in_types(row)["M"]},
    "DynamoDB's stream": lambda row: {
        "dynamodb": {"NewImage": in_types({"pk": 7, "row": row})["M"]}
    },
    "MongoDB's canonical export": lambda row: {"_id": {"$oid": "66"}, "row": in_extended(row)},
    "Debezium": changed,
    "journald, as bytes": lambda row: {"MESSAGE": list(json.dumps(row).encode() + b"\7")},
    "a repeated column": lambda row: {"pk": 7, "payload": [json.dumps(row)]},
    "a database": lambda row: {"pk": 7, "payload": json.dumps({"record": json.dumps(row)})},
}


def read(path):
    """Outcomes of a log without their place, ids of the log and times of the wrapper."""
    return [
        dataclasses.replace(outcome, place=None, time=None, log_id=None)
        if isinstance(outcome, Exchange)
        else (outcome.reason, outcome.detail)
        for outcome in read_exchanges(log_files(str(path)))
    ]


@pytest.mark.parametrize("collector", COLLECTORS)
@pytest.mark.parametrize("log", LOGS)
def test_any_wrapper_around_any_row_changes_nothing(tmp_path, log, collector):
    rows = []
    for line in (GOLDEN / log).read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # damaged rows cannot be wrapped
        if isinstance(row, dict):
            rows.append(row)
    bare = read(write_log(tmp_path / "bare.jsonl", rows))
    wrapped = read(write_log(tmp_path / "wrapped.jsonl", map(COLLECTORS[collector], rows)))
    assert wrapped == bare
    assert any(isinstance(outcome, Exchange) for outcome in bare)


ASKED = pair([{"role": "user", "content": "Hi"}], "r\n", "\n\na")["request"]
ANSWERED = pair([{"role": "user", "content": "Hi"}], "r\n", "\n\na")["response"]
STREAM = (
    'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"reasoning": "r\\n"}}]}\n\n'
    'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "\\n\\na"},'
    ' "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)
SHAPES = {
    "objects": lambda asked, answered: {"request": asked, "response": answered},
    "text": lambda asked, answered: {
        "request": json.dumps(asked),
        "response": json.dumps(answered),
    },
    "HTTP": lambda asked, answered: {
        "request": {"url": "/v1/chat/completions", "headers": {}, "body": asked},
        "response": {"status": 200, "headers": {}, "body": answered},
    },
    "HTTP, text": lambda asked, answered: {
        "request": {"method": "POST", "body": json.dumps(asked)},
        "response": {"status": 200, "body": json.dumps(answered)},
    },
    "Kong": lambda asked, answered: {
        "request": {"method": "POST", "uri": "/chat", "headers": {"host": "x"}},
        "response": {"status": 200, "headers": {}},
        "consumer": {"username": "u7"},
        "route": {"name": "chat"},
        "ai": {
            "proxy": {
                "payload": {"request": json.dumps(asked), "response": json.dumps(answered)},
                "usage": {"prompt_tokens": 1},
            }
        },
    },
    "Dynamo": lambda asked, answered: {
        "timestamp": 1234,
        "event": {"schema_version": 1, "request": asked, "response": answered},
    },
    "LiteLLM's spend logs": lambda asked, answered: {
        "request_id": "chatcmpl-1",
        "proxy_server_request": json.dumps(asked),
        "messages": {},
        "response": json.dumps(answered),
    },
    "LangSmith": lambda asked, answered: {"inputs": asked, "outputs": answered},
    "SageMaker": lambda asked, answered: {
        "captureData": {
            "endpointInput": {"data": in_base64(asked), "encoding": "BASE64"},
            "endpointOutput": {"data": in_base64(answered), "encoding": "BASE64"},
        },
        "eventMetadata": {"inferenceTime": "2026-07-01T10:00:00Z"},
    },
    "Vertex AI": lambda asked, answered: {
        "logging_time": "2026-07-01 10:00:00.250000 UTC",
        "request_payload": [json.dumps(asked)],
        "response_payload": [json.dumps(answered)],
    },
    "Vertex AI, a table's text": lambda asked, answered: {
        "request_payload": json.dumps([json.dumps(asked)]),
        "response_payload": json.dumps([json.dumps(answered)]),
    },
    "Phoenix": lambda asked, answered: {
        "span_kind": "LLM",
        "attributes": {"input.value": json.dumps(asked), "output.value": json.dumps(answered)},
    },
    "MLflow": lambda asked, answered: {
        "info": {"trace_id": "t"},
        "data": {
            "spans": [
                {
                    "attributes": {
                        "mlflow.spanInputs": json.dumps(asked),
                        "mlflow.spanOutputs": json.dumps(answered),
                    }
                }
            ]
        },
    },
    "HAR": lambda asked, answered: {
        "log": {
            "entries": [
                {
                    "startedDateTime": "2026-07-01T10:00:00Z",
                    "request": {"method": "POST", "postData": {"text": json.dumps(asked)}},
                    "response": {"status": 200, "content": {"text": in_base64(answered)}},
                }
            ]
        },
    },
    "a stream in base64": lambda asked, answered: {"request": asked, "response": in_base64(STREAM)},
    "chunks": lambda asked, answered: {"request": asked, "chunks": STREAM.split("\n\n")},
    "event stream": lambda asked, answered: {"httpRequest": {"body": asked}, "sse": STREAM},
    "next to metadata": lambda asked, answered: {
        "metadata": {"prompt": "screening-v2"},
        "request": asked,
        "response": answered,
    },
    "flat": lambda asked, answered: {**asked, "response": answered},
    "flat, text": lambda asked, answered: {
        **asked,
        "messages": json.dumps(asked["messages"]),
        "completion_object": json.dumps(answered),
    },
}


@pytest.mark.parametrize("collector", [None, *COLLECTORS])
@pytest.mark.parametrize("shape", SHAPES)
def test_request_and_response_are_found_by_their_own_keys(tmp_path, shape, collector):
    row = SHAPES[shape](ASKED, ANSWERED)
    if collector:
        row = COLLECTORS[collector](row)
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert isinstance(outcome, Exchange), (outcome.reason, outcome.detail)
    assert outcome.messages == ASKED["messages"]
    assert (outcome.reasoning, outcome.content) == ("r\n", "\n\na")
    assert (outcome.session, outcome.tenant, outcome.temperature) == ("s-1", "acme", 0.7)
    assert outcome.finish_reason == "stop"
    assert outcome.time is None or outcome.time > 1e9


@pytest.mark.parametrize("collector", [None, *COLLECTORS])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_json_text_is_decoded_once(shape, collector, monkeypatch):
    row = SHAPES[shape](ASKED, ANSWERED)
    if collector:
        row = COLLECTORS[collector](row)
    texts = Counter()

    def counted(text):
        texts[text] += 1
        return decode(text)

    decode = embedded.parse_value
    monkeypatch.setattr(embedded, "parse_value", counted)
    record = Record(Place("log.jsonl", 1), json.dumps(row).encode())
    once = parse_record("openai_pairs", record)
    assert set(texts.values()) <= {1}
    # The next row finds nothing of this one, and its outcome did not change the decoded values.
    assert parse_record("openai_pairs", record) == once
    assert set(texts.values()) <= {2}


FIELDS = [
    ({"requester": "svc-1"}, "user", "svc-1"),
    ({"consumer": {"username": "u"}}, "user", "u"),
    ({"metadata": {"_user": "p"}}, "user", "p"),
    ({"metadata": '{"_user": "p"}'}, "user", "p"),
    ({"route": {"name": "chat"}}, "route", "chat"),
    ({"databricks_request_id": "d"}, "log_id", "d"),
    ({"request_time": "2026-07-01T10:00:00Z"}, "time", 1782900000.0),
    ({"started_at": 1782900000000}, "time", 1782900000.0),
    ({"eventMetadata": {"inferenceTime": "2026-07-01T10:00:00Z"}}, "time", 1782900000.0),
    ({"logging_time": "2026-07-01 10:00:00 UTC"}, "time", 1782900000.0),
    ({"start_time_unix_nano": 1782900000 * 10**9}, "time", 1782900000.0),
    ({"user.id": "p"}, "user", "p"),
    ({"user": {"id": "p"}}, "user", "p"),
    ({"timestamp": "a while ago", "created_at": 1782900000}, "time", 1782900000.0),
    # A call's start, but not a session's, and not a clock's that began with the process
    ({"@timestamp": 1782900005, "start_time": 1782900000}, "time", 1782900000.0),
    ({"timestamp": 1782900000, "started_at": 1782800000}, "time", 1782900000.0),
    ({"timestamp": 1782900000, "start_ns": 3 * 10**18}, "time", 1782900000.0),
    ({"embedding": "__debezium_unavailable_value", "user": "p"}, "user", "p"),
]


@pytest.mark.parametrize(("logged", "name", "value"), FIELDS)
def test_fields_under_the_producers_names(tmp_path, logged, name, value):
    row = {"request": ASKED, "response": {**ANSWERED, "created": None}, **logged}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert getattr(outcome, name) == value


def test_json_text_that_was_cut(tmp_path):
    row = {"request": json.dumps(ASKED)[:40], "response": json.dumps(ANSWERED)}
    (reject,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert reject.reason == "truncated"


def test_a_response_without_choices_names_its_keys(tmp_path):
    row = {"request": ASKED, "response": {"status": 200, "headers": {}, "Ada Lovelace": 1}}
    (reject,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert (reject.reason, reject.detail) == (
        "no_choices",
        "the response has the keys headers, status, 1 unknown",
    )


@pytest.mark.parametrize("seed", range(5))
def test_any_order_and_any_split_give_the_same_exchanges(tmp_path, seed):
    """Rows of one exchange each, and halves that are joined; chunks need their order."""
    rows = [SHAPES[shape](ASKED, ANSWERED) for shape in SHAPES if shape != "chunks"]
    halves = [
        half
        for number in range(5)
        for half in (
            {"request_id": f"r{number}", "request": ASKED},
            {"request_id": f"r{number}", "response": {**ANSWERED, "id": f"chatcmpl-r{number}"}},
        )
    ]
    outcomes = []
    for shuffled in (False, True):
        folder = tmp_path / str(shuffled)
        folder.mkdir()
        for name, logged in (("pairs", rows), ("halves", halves)):
            mixed = list(logged)
            if shuffled:
                random.Random(seed).shuffle(mixed)
            cut = random.Random(seed).randrange(1, len(mixed)) if shuffled else len(mixed)
            write_log(folder / f"{name}-1.jsonl", mixed[:cut])
            write_log(folder / f"{name}-2.jsonl", mixed[cut:])
        read_back = read_exchanges(log_files(str(folder)))
        plain = (dataclasses.replace(outcome, place=None) for outcome in read_back)
        outcomes.append(sorted(map(repr, plain)))
    assert outcomes[0] == outcomes[1] and len(outcomes[0]) == len(rows) + 5


@pytest.mark.parametrize("value", [{"span": "chat"}, ["chat"], 7, None])
@pytest.mark.parametrize("key", ["type", "object", "kind", "span_kind", "status", "id"])
def test_names_of_kinds_may_have_any_value(tmp_path, key, value):
    row = {key: value, "request": ASKED, "response": ANSWERED, "trace_id": "t"}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert isinstance(outcome, Exchange)


@pytest.mark.parametrize("name", ["request_id", "requestId", "x-request-id", "correlation_id"])
def test_halves_are_joined_by_an_id_of_any_spelling(tmp_path, name):
    rows = [{name: "a", "request": ASKED}, {name: "a", "response": ANSWERED}]
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", rows))))
    assert isinstance(outcome, Exchange) and outcome.messages == ASKED["messages"]


BEGAN = "2026-07-01T10:00:00Z"
DURATIONS = [
    ({"start_time": BEGAN, "end_time": "2026-07-01T10:00:02.500Z"}, 2.5),
    ({"startTime": BEGAN, "endTime": "2026-07-01T10:00:02.500Z"}, 2.5),
    ({"startedAt": BEGAN, "endedAt": "2026-07-01T10:00:02Z"}, 2.0),
    ({"start_time_unix_nano": 1782900000 * 10**9, "end_time_unix_nano": 1782900003 * 10**9}, 3.0),
    ({"timestamp": BEGAN, "latency_ms": "900"}, 0.9),
    ({"timestamp": BEGAN, "durationMs": 900}, 0.9),
    ({"latency_seconds": 4}, 4.0),
    ({"timestamp": BEGAN, "latency_ms": 900, "end_time": "2026-07-01T10:00:09Z"}, 0.9),
    # Unknown units, and values that are no durations.
    ({"timestamp": BEGAN, "latency": 900}, None),
    ({"timestamp": BEGAN, "latency_ms": -1}, None),
    ({"timestamp": BEGAN, "latency_ms": "soon"}, None),
    ({"timestamp": BEGAN, "end_time": "2026-06-01T10:00:00Z"}, None),
    ({"timestamp": BEGAN, "end_time": "2027-07-01T10:00:00Z"}, None),
    ({"end_time": "2026-07-01T10:00:09Z"}, None),
    ({"timestamp": BEGAN}, None),
]


@pytest.mark.parametrize(("logged", "seconds"), DURATIONS)
def test_durations_of_requests(tmp_path, logged, seconds):
    row = {"request": ASKED, "response": {**ANSWERED, "created": None}, **logged}
    (outcome,) = read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [row]))))
    assert outcome.seconds == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("producer", ["litellm", "langfuse", "helicone", "otel_genai", "sglang"])
def test_producers_that_log_durations(producer):
    """Their golden logs have an end, a latency or both with most requests."""
    outcomes = read_exchanges(log_files(str(GOLDEN / producer)))
    seconds = {one.seconds for one in outcomes if isinstance(one, Exchange)} - {None}
    assert seconds and all(0.5 < value < 10 for value in seconds)


def test_an_answer_of_dynamodb_has_several_calls(tmp_path):
    items = [in_types({"pk": n, "request": ASKED, "response": ANSWERED})["M"] for n in range(3)]
    answer = {"Items": items, "Count": 3, "ScannedCount": 3, "ConsumedCapacity": None}
    exchanges = list(read_exchanges(log_files(str(write_log(tmp_path / "log.jsonl", [answer])))))
    assert len(exchanges) == 3 and all(isinstance(one, Exchange) for one in exchanges)
    assert {one.temperature for one in exchanges} == {ASKED.get("temperature")}
