"""What is said of files that no format recognizes, without their values."""

import io
import json
import pickle
import sqlite3
import zipfile

import pytest

from outrider.data.exchange import Reject
from outrider.data.files.sources import log_files
from tests.data.logs import pair, read_exchanges

SECRET = "Ada Lovelace"
PAIR = pair([{"role": "user", "content": SECRET}], SECRET, SECRET)


def described(tmp_path, content: bytes) -> Reject:
    path = tmp_path / "x.log"
    path.write_bytes(content)
    (reject,) = read_exchanges(log_files(str(path)))
    assert isinstance(reject, Reject) and reject.reason == "unknown_format"
    assert "Ada" not in reject.detail
    return reject


@pytest.mark.parametrize(
    ("row", "what", "way"),
    [
        ({"conversations": [{"from": "human", "value": SECRET}]}, "conversations", "role/content"),
        ({"conversations": [{"role": "user"}]}, "conversations", "rename conversations"),
        ({"instruction": SECRET, "output": SECRET}, "instruction, output", '{"messages"'),
        ({"input": SECRET, "output": SECRET}, "input, output", "if they are texts, write"),
        ({"prompt": SECRET, "chosen": SECRET, "rejected": SECRET}, "chosen", "preference data"),
        ({"object": "response", "output": [], "id": 1}, "object, output", "Responses API"),
        ({"all": [{"custom_id": "a", "body": {}}]}, "all", """jq -c '."all"[]'"""),
        ({"request": SECRET[:0] or 5}, "request", "needs response"),
        ({"run_type": "llm", "inputs": {}, "outputs": {}}, "run_type", "LangSmith"),
        ({"span_kind": "LLM", "attributes": {"input.value": SECRET}}, "span_kind", "OpenInference"),
        ({"model": "x", "id": "y"}, "model, id", "needs messages, choices"),
        ({"model": "x", "colour": "red"}, "model, colour", "openai_pairs"),
        ({"colour": "red"}, "colour", '{"messages"'),
        ({f"k{number}": SECRET for number in range(20)}, "k7, ...", '{"messages"'),
    ],
)
def test_rows_are_named_by_their_keys_with_the_way_to_a_format(tmp_path, row, what, way):
    reject = described(tmp_path, json.dumps(row).encode())
    assert reject.detail.startswith("rows with the keys ") and reject.rows == 1
    assert what in reject.detail and way in reject.detail


def test_rows_of_a_pretty_printed_object_are_not_its_lines(tmp_path):
    row = {"colour": {"of": ["the", "sky"]}, "a": 1}
    assert described(tmp_path, json.dumps(row, indent=2).encode()).rows == 1
    assert described(tmp_path, json.dumps([row] * 3, indent=2).encode()).rows == 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\x04\x22\x4d\x18" + b"\0" * 50, "compressed by lz4: unpack it with `lz4 -d`"),
        (b"Obj\x01\x04\x16avro.schema\0", "an Avro file: export it as JSON lines or Parquet"),
        (b"\x0a\x1b\0\0\0\1\n\n\n", "binary data that begins with the bytes 0a 1b 00"),
        (b"<html><body>Ada</body></html>", "HTML or XML: it may be the page of an error"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n', "an event stream: log the requests"),
        (b"Ada wrote\nsome lines\n", "text without JSON, and without the requests of vLLM"),
        (b"{Ada", "JSON without an object"),
        (b"-- MySQL dump 10.13\n", "a dump of a database: export it as JSON lines or Parquet"),
        (b"-- PostgreSQL database dump\n", "for PostgreSQL, export the table with `psql"),
        (b"PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\n", "an SQLite database: export the"),
        (b'srv  log_server_r: request:  {"messages":[]}\n', "llama.cpp's verbose log, without"),
        (b"\x1b[1m[llm/start]\x1b[0m Entering LLM run\n", "what LangChain prints with set_debug"),
        (b"id,name\n1,Ada\n", "rows with the keys id, name: "),
    ],
)
def test_other_files_are_named_by_their_first_bytes(tmp_path, content, text):
    assert text in described(tmp_path, content).detail


def test_an_sqlite_database_without_rows_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "x") as database:
        database.execute("CREATE TABLE log (request TEXT)")
    reject = described(tmp_path, (tmp_path / "x").read_bytes())
    assert reject.detail.startswith("an SQLite database without rows, or in an archive: unpack it")
    assert reject.rows == 1


@pytest.mark.parametrize(
    ("members", "what"),
    [
        (["xl/workbook.xml", "xl/worksheets/sheet1.xml", "[Content_Types].xml"], "an Excel spread"),
        (["[Content_Types].xml", "word/document.xml"], "a Word document"),
        (["[Content_Types].xml", "_rels/.rels"], "another document of Office"),
        (["mimetype", "content.xml", "styles.xml"], "an OpenDocument file"),
    ],
)
def test_a_zip_that_is_a_document_is_one_file(tmp_path, members, what):
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        for member in members:
            archive.writestr(member, "<xml/>")
    reject = described(tmp_path, stored.getvalue())
    assert reject.detail.startswith(what) and reject.rows == 1
    assert reject.detail.endswith(": export it as CSV or JSON lines")


@pytest.mark.parametrize(
    "head",
    [
        "-- MySQL dump 10.13  Distrib 8.0.36\n--\n",
        "/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump 10.19\n",
    ],
)
def test_a_dump_of_a_database_is_named_although_it_holds_objects(tmp_path, head):
    row = "\t".join(["1", "2026-07-01 10:00:00", json.dumps(PAIR)])
    reject = described(
        tmp_path, f"{head}COPY public.logs (id, at, row) FROM stdin;\n{row}\n".encode()
    )
    assert reject.detail.startswith("a dump of a database: export it")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickle_files_are_named_and_not_loaded(tmp_path, protocol):
    reject = described(tmp_path, pickle.dumps({"requests": [SECRET]}, protocol))
    assert reject.detail.startswith("a pickle file: ") and "--log-requests" in reject.detail


@pytest.mark.parametrize("key", ["uri", "path", "url"])
@pytest.mark.parametrize(
    ("path", "api"), [("/v1/responses", "Responses API"), ("/api/v1/messages", "Anthropic")]
)
def test_a_log_of_another_api_names_it(tmp_path, key, path, api):
    row = {key: path, "sent": {"input": SECRET}, "received": "data: x"}
    assert api in described(tmp_path, json.dumps(row).encode()).detail


BODY = b'{"model": "r1", "messages": [{"role": "user", "content": "Ada"}]}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"> POST /v1/chat/completions HTTP/1.1\r\n> Host: api\r\n",  # curl -v
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: api\r\n\r\n",  # Go, httputil.DumpRequestOut
        b'DEBUG wire - http-outgoing-0 >> "POST /v1/chat/completions HTTP/1.1[\\r][\\n]"\n',
        b"send: b'POST /v1/chat/completions HTTP/1.1\\r\\nHost: api\\r\\n\\r\\n'\n",
        b"DEBUG:openai._base_client:Request options: {'method': 'post', 'url': '/chat/c'\n",
        b"--> POST http://api/v1/chat/completions h2 (123-byte body)\n",
    ],
)
def test_a_clients_log_is_named_although_it_holds_bodies(tmp_path, line):
    reject = described(tmp_path, line + BODY)
    assert reject.detail.startswith("an HTTP client's log") and "gateway" in reject.detail


@pytest.mark.parametrize(
    "line",
    [
        b'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
        b'INFO httpx HTTP Request: POST https://api/v1/chat/completions "HTTP/1.1 200 OK"\n',
    ],
)
def test_lines_about_requests_between_rows_are_no_clients_log(tmp_path, line):
    path = tmp_path / "x.log"
    path.write_bytes(line + json.dumps(PAIR).encode() + b"\n" + line)
    outcomes = read_exchanges(log_files(str(path)))
    assert len([outcome for outcome in outcomes if not isinstance(outcome, Reject)]) == 1


def test_short_texts_are_texts(tmp_path):
    row = {"latency_ms": 5, "total_tokens": 9, "q": {"text": "2 + 2?"}, "reply": "4"}
    assert "without texts" not in described(tmp_path, json.dumps(row).encode()).detail
    counts = {"latency_ms": 5, "total_tokens": 9, "status": "success", "response": {"code": 200}}
    assert "without texts" in described(tmp_path, json.dumps(counts).encode()).detail


def test_new_apis_table_in_a_dump_is_named(tmp_path):
    columns = "`id` bigint, `content` longtext, `token_name` text, `quota` bigint"
    path = tmp_path / "logs.sql"
    path.write_text(
        "-- MySQL dump 10.13\n\nCREATE TABLE `logs` (\n"
        f"{columns}, `completion_tokens` bigint);\nINSERT INTO `logs` VALUES (1,'x','t',2,3);\n"
    )
    (outcome,) = read_exchanges(log_files(str(path)))
    assert isinstance(outcome, Reject) and outcome.reason == "unknown_format"
    assert "New API's table" in outcome.detail and "engine with its request log" in outcome.detail
