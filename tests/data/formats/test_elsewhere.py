"""Logs as other producers document them, with what is right and how the first run went.

`file`, `source` and `right` in cases.json were written before the first run, the other keys after.
"""

import base64
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Reject
from outrider.data.files.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.conftest import EMBEDDED_TARGET
from tests.data.logs import pair, read_exchanges, write_log

FOLDER = Path(__file__).parent / "elsewhere"
CASES = json.loads((FOLDER / "cases.json").read_bytes())

QUESTION = [{"role": "user", "content": "Hi"}]
ASKED = pair(QUESTION, "r\n", "a")["request"]
ANSWERED = pair(QUESTION, "r\n", "a")["response"]
STREAM = (
    'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"reasoning": "r\\n"}}]}\n\n'
    'data: {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "a"},'
    ' "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
)


END = "<｜end▁of▁sentence｜>"


def read(path: Path) -> list[Exchange | Reject]:
    return list(read_exchanges(log_files(str(path))))


def read_rows(folder: Path, rows) -> list[Exchange | Reject]:
    return read(write_log(folder / "log.jsonl", rows))


def reasons(outcomes) -> list[str]:
    """Reasons of the rejects, and `read` for an exchange with the right texts."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, Exchange):
            assert outcome.messages == QUESTION
            assert (outcome.reasoning, outcome.content) == ("r\n", "a")
        results.append(outcome.reason if isinstance(outcome, Reject) else "read")
    return sorted(results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["file"])
def test_a_documented_log_is_read_or_refused_with_the_fix(case, builder):
    path = FOLDER / case["file"]
    if case.get("ids"):  # those of the embedded target's tokenizer
        builder = SequenceBuilder(EMBEDDED_TARGET)
    if case["exchanges"] is None:
        try:
            message = "; ".join(detail_of(outcome, builder) for outcome in read(path))
        except OutriderError as error:
            message = str(error)
        assert [words for words in case["words"] if words not in message] == []
        return
    outcomes = read(path)
    rejects = Counter(outcome.reason for outcome in outcomes if isinstance(outcome, Reject))
    assert rejects == case.get("rejects", {})
    exchanges = [outcome for outcome in outcomes if isinstance(outcome, Exchange)]
    assert len(exchanges) == case["exchanges"]
    if not exchanges:
        return
    first = exchanges[0]
    assert "Question 0: what is 2+2?" in question_of(first, builder)
    if "system" in case:
        assert first.messages[0] == {"role": "system", "content": case["system"]}
    assert text_of(first) == case.get("text", "Two and two make four.\n</think>\n\nIt is 4.")
    assert first.finish_reason == "stop" and not first.stop_strings
    assert [first.temperature, first.top_p] == case.get("sampling", [0.6, 0.95])
    assert (first.time, first.session, first.user) == (
        case["time"],
        case.get("session"),
        case.get("user"),
    )

    for exchange in exchanges:
        sequence = builder.build(exchange)
        completion = builder.decode(sequence.token_ids[sequence.completion_start :])
        assert completion == f"Two and two make four.\n</think>\n\nIt is 4.{END}"


def detail_of(outcome: Exchange | Reject, builder) -> str:
    """Why a row is rejected, when it is parsed or when its sequence is built."""
    if isinstance(outcome, Reject):
        return outcome.detail
    with pytest.raises(Reject) as rejected:
        builder.build(outcome)
    return rejected.value.detail


def question_of(exchange: Exchange, builder) -> str:
    if exchange.messages is not None:
        return next(one["content"] for one in exchange.messages if one["role"] == "user")
    return exchange.prompt_text or builder.decode(exchange.prompt_token_ids)


def text_of(exchange: Exchange) -> str | None:
    if exchange.reasoning is None:
        return exchange.content
    return f"{exchange.reasoning}</think>{exchange.content}"


def test_every_file_of_the_folder_is_a_case():
    files = {path.name for path in FOLDER.iterdir()} - {"cases.json"}
    assert files == {case["file"] for case in CASES}
    assert {case["first_run"] for case in CASES} == {"right", "wrong"}


@pytest.mark.parametrize(
    ("logged", "ended"), [("stop", "stop"), ("length", "length"), ("END_TURN", "stop")]
)
def test_bedrock_writes_the_end_as_stop_reason(tmp_path, logged, ended):
    row = {
        "input": {"inputBodyJson": {"prompt": "Hi", "max_tokens": 9, "stop": ["END"]}},
        "output": {"outputBodyJson": {"choices": [{"text": "a", "stop_reason": logged}]}},
    }
    (exchange,) = read_rows(tmp_path, [row])
    assert isinstance(exchange, Exchange)
    # It is unknown whether the stop string or the end token ended the text.
    assert (exchange.finish_reason, exchange.stop_reason) == (ended, None)
    assert exchange.stop_strings == (("END",) if ended == "stop" else ())


def test_a_streamed_bedrock_response_ends_with_its_stop_reason(tmp_path):
    def row(*ends):
        chunks = [{"choices": [{"text": "a", "stop_reason": end}]} for end in ends]
        asked = {"inputBodyJson": {"prompt": "Hi", "max_tokens": 9}}
        return {"input": asked, "output": {"outputBodyJson": chunks}}

    whole, cut = read_rows(tmp_path, [row(None, None, "length"), row(None, None)])
    assert isinstance(whole, Exchange)
    assert (whole.content, whole.finish_reason) == ("aaa", "length")
    assert cut.reason == "stream_cut"


def event(side, event_id, data, **attributes):
    """An event as KServe's logger writes it."""
    kind = f"org.kubeflow.serving.inference.{side}"
    return {"specversion": "1.0", "id": event_id, "source": "x", "type": kind, **attributes} | data


def seldon(side, number, data):
    """An event of Seldon's logger; its `id` is the event's, and `requestid` the request's."""
    return event(side, f"{side}-{number}", data, requestid=f"p{number}")


@pytest.mark.parametrize("seed", range(3))
def test_events_are_joined_by_the_id_of_the_request(tmp_path, seed):
    encoded = base64.b64encode(json.dumps(ANSWERED | {"id": "chatcmpl-b"}).encode()).decode()
    rows = [
        event("request", "k1", {"data": ASKED}),
        event("response", "k1", {"data": ANSWERED | {"id": "chatcmpl-a"}}),
        event("request", "k2", {"data": json.dumps(ASKED)}),
        event("response", "k2", {"data_base64": encoded}),
        event("request", "k3", {"data": ASKED}),
        event("response", "k3", {"data": STREAM}, datacontenttype="text/event-stream"),
        event("request", "k4", {"data": ASKED}),
        event("response", "k4", {"data": {"error": {"message": "no", "code": 400}}}),
        seldon("request", 5, {"data": ASKED}),
        seldon("response", 5, {"data": ANSWERED | {"id": "chatcmpl-c"}}),
        event("response", "k6", {"data": ANSWERED | {"id": "chatcmpl-d"}}),
    ]
    random.Random(seed).shuffle(rows)
    outcomes = read_rows(tmp_path, rows)
    assert reasons(outcomes) == [
        "error_response",
        *["read"] * 4,
        "unmatched_response",
    ]


@pytest.mark.parametrize("is_json", [False, True])
def test_events_that_kserve_stores_are_joined_by_id(tmp_path, is_json):
    names = ("Bytes", "ReqType", "Id") if is_json else ("bytes", "reqType", "id")

    def stored(side, event_id, content):
        kind = f"org.kubeflow.serving.inference.{side}"
        text = base64.b64encode(json.dumps(content).encode()).decode()
        return dict(zip(names, (text, kind, event_id), strict=True))

    rows = [
        stored("response", "k1", ANSWERED),
        stored("request", "k2", ASKED),
        stored("request", "k1", ASKED),
    ]
    assert reasons(read_rows(tmp_path, rows)) == ["read", "unmatched_request"]


@pytest.mark.parametrize("side", ["input", "output", "both"])
def test_bodies_that_bedrock_stored_apart_are_named(tmp_path, side):
    row = {"input": {"inputBodyJson": ASKED}, "output": {"outputBodyJson": ANSWERED}}
    whole = json.loads(json.dumps(row))
    if side != "output":
        row["input"] = {"inputBodyS3Path": "s3://logs/1_input.json.gz"}
    if side != "input":
        row["output"] = {"outputBodyS3Path": "s3://logs/1_output.json.gz"}
    outcomes = read_rows(tmp_path, [whole, row])
    assert reasons(outcomes) == ["content_not_logged", "read"]


def test_only_calls_of_a_har_file_are_read(tmp_path):
    def entry(url, asked, answered, **content):
        return {
            "startedDateTime": "2026-07-01T10:00:00.250+00:00",
            "request": {"method": "POST", "url": url, "postData": {"text": asked}},
            "response": {"status": 200, "content": {"text": answered, **content}},
        }

    chat = "http://r1/v1/chat/completions"
    asked = json.dumps(ASKED)
    answered = json.dumps(ANSWERED)
    entries = [
        entry("http://r1/app.js", None, "let a = 1;"),
        entry(chat, asked, answered),
        entry(chat, asked, base64.b64encode(answered.encode()).decode(), encoding="base64"),
        entry(chat, asked, STREAM),
        entry(chat, asked, base64.b64encode(STREAM.encode()).decode(), encoding="base64"),
    ]
    path = tmp_path / "a.har"
    path.write_text(json.dumps({"log": {"version": "1.2", "entries": entries}}, indent=2))
    outcomes = read(path)
    assert reasons(outcomes) == ["not_a_generation", *["read"] * 4]
    exchanges = [outcome for outcome in outcomes if isinstance(outcome, Exchange)]
    assert {exchange.time for exchange in exchanges} == {1782900000.25}
    assert len({exchange.call for exchange in exchanges}) == 4


@pytest.mark.parametrize("kind", ["CHAIN", "AGENT", "CHAT_MODEL", "LLM", "UNKNOWN"])
def test_spans_around_an_mlflow_call_are_no_calls(tmp_path, kind):
    def span(kind, start):
        inputs_and_outputs = {
            "mlflow.spanType": json.dumps(kind),
            "mlflow.spanInputs": json.dumps(ASKED | {"metadata": None}),
            "mlflow.spanOutputs": json.dumps(ANSWERED),
        }
        return {"start_time_unix_nano": start * 10**9, "attributes": inputs_and_outputs}

    metadata = {"mlflow.trace.session": "chat-7", "mlflow.trace.user": "ada"}
    trace = {
        "info": {"trace_id": "t", "request_time": "2026-07-01", "trace_metadata": metadata},
        "data": {"spans": [span(kind, 1782900001), span("LLM", 1782900002)]},
    }
    outcomes = read_rows(tmp_path, [trace])
    is_call = kind not in ("CHAIN", "AGENT")
    assert reasons(outcomes) == ["read" if is_call else "not_a_generation", "read"]
    last = outcomes[-1]
    assert (last.time, last.session, last.user) == (1782900002.0, "chat-7", "ada")


@pytest.mark.parametrize(
    ("attributes", "is_table"),
    [
        ({"session.id": "s", "user.id": "u"}, False),
        ({"session.id": "s", "user.id": "u"}, True),
        ({"session": {"id": "s"}, "user": {"id": "u"}}, False),
    ],
)
def test_openinference_names_session_and_user(tmp_path, attributes, is_table):
    logged = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps(ASKED | {"metadata": None}),
        "output.value": json.dumps(ANSWERED),
        **attributes,
    }
    span = {"name": "ChatCompletion", "attributes": logged}
    if is_table:  # a data frame's columns
        span = {"name": "x", **{f"attributes.{key}": value for key, value in logged.items()}}
    (exchange,) = read_rows(tmp_path, [span])
    assert (exchange.session, exchange.user) == ("s", "u")


@pytest.mark.parametrize(
    "row",
    [
        {"id": "c", "title": "t", "chat": {"messages": [*QUESTION, ANSWERED["choices"][0]]}},
        {"title": "t", "chat": {"history": {"messages": {}}}, "archived": False},
        {"title": "t", "create_time": 1.0, "mapping": {"a": {"message": None}}},
    ],
)
def test_a_chat_interfaces_export_has_no_requests(tmp_path, row):
    (reject,) = read_rows(tmp_path, [row])
    assert reject.reason == "unknown_format"
    assert "as a chat interface shows them" in reject.detail and "title" in reject.detail


def azure(side, number, **changes):
    """An event of Azure Machine Learning's data collector: `id` is the event's."""
    event_id = f"{side}-{number}"
    kind = f"azureml.inference.{side}"
    content = {"request": ASKED, "response": ANSWERED | {"id": f"chatcmpl-{number}"}}[side]
    row = {"specversion": "1.0", "id": event_id, "source": "/x", "type": kind, "data": content}
    return row | {"correlationid": "c", "xrequestid": f"x{number}"} | changes


def test_azure_s_events_are_joined_by_the_request_s_id(tmp_path):
    path = "https://blobs.example/3"
    rows = [
        azure("response", 1),
        azure("request", 2),
        azure("request", 1),
        azure("response", 2),
        azure("request", 3, data=path, datainblob="true"),
    ]
    assert reasons(read_rows(tmp_path, rows)) == ["content_not_logged", "read", "read"]


def pieces_of(stream):
    return [f"{event}\n\n" for event in stream.split("\n\n") if event]


@pytest.mark.parametrize(
    "responses",
    [
        [{"perf_ns": 1, "content_type": "application/json", "text": json.dumps(ANSWERED)}],
        [{"response": piece} for piece in pieces_of(STREAM)],
        [
            {"perf_ns": 1, "packets": [{"name": "data", "value": piece.strip()[len("data: ") :]}]}
            for piece in pieces_of(STREAM)
        ],
        [ANSWERED],
    ],
)
def test_a_response_in_pieces_is_joined(tmp_path, responses):
    """AIPerf's raw records, GenAI-Perf's outputs, RunPod's list of one response."""
    row = {"payload": ASKED, "status": 200, "responses": responses}
    assert reasons(read_rows(tmp_path, [row])) == ["read"]


def test_inspect_s_own_messages_are_read_without_the_api_s_bodies(tmp_path):
    parts = [{"type": "reasoning", "reasoning": "r\n"}, {"type": "text", "text": "a"}]
    choice = {"message": {"role": "assistant", "content": parts}, "stop_reason": "stop"}
    call = {"event": "model", "input": QUESTION, "output": {"choices": [choice]}, "call": None}
    others = [{"event": "sample_init", "sample": {}}, {"event": "score", "score": {"value": 1}}]
    row = {"id": 1, "epoch": 1, "messages": QUESTION, "events": [others[0], call, others[1]]}
    assert reasons(read_rows(tmp_path, [row])) == ["read"]


def test_an_error_next_to_the_request_is_no_damage(tmp_path):
    row = {"recordId": "1", "modelInput": ASKED, "error": {"errorCode": 400, "errorMessage": "x"}}
    answered = {"recordId": "2", "modelInput": ASKED, "modelOutput": ANSWERED}
    assert reasons(read_rows(tmp_path, [row, answered])) == ["error_response", "read"]
