"""Files that are known by their bytes and not read, and the way to files that are.

described = describe_bytes(sample)
described.what      # an Avro file
described.way       # export it as ...
"""

import re
from typing import NamedTuple

from outrider.data.files.packing import DOCUMENTS, PYTORCH
from outrider.data.files.rows import FileSample
from outrider.data.formats.known_rows import GATEWAY

EXPORT = "export it as JSON lines or Parquet"
HAR = (
    "export the sessions as HAR, or put a gateway that logs request and response in front of the"
    " endpoint"
)
EXPORT_CELLS = "export it as CSV or JSON lines"

ONE_LINE = (
    "write each object on one line, without the other lines (LiteLLM: log with a callback to files,"
    " S3, GCS or Azure)"
)

_PRETTY = re.compile(rb'^[{\[][ \t]*\r?\n[ \t]+"[^"\n]{1,100}":', re.MULTILINE)
"""The beginning of an object that is printed over several lines."""

WITH_HEADER = (
    "export it with the names of its columns, for example with COPY ... WITH (FORMAT csv, HEADER),"
    " or as JSON lines, for example with UNLOAD ... FORMAT JSON in Redshift"
)
TO_JSON = "export the table with `psql -At -c 'SELECT to_json(t) FROM TABLE t'`"
OF_SQLITE = "export the table with `sqlite3 -json FILE 'SELECT * FROM TABLE' > log.json`"
NO_PICKLE = (
    "loading it could run any code, so it is not read: write its rows as JSON lines or Parquet"
    " (pandas: `df.to_json(FILE, orient='records', lines=True)`); instead of SGLang's dumps, use"
    " --log-requests-level 3 with its JSON format (docs/reference/log-formats.md)"
)

MAGIC: tuple[tuple[bytes, str, str], ...] = (
    (
        b"SQLite format 3\0",
        "an SQLite database without rows, or in an archive",
        "unpack it, and give a database with rows",
    ),
    (b"\x04\x22\x4d\x18", "compressed by lz4", "unpack it with `lz4 -d`"),
    (b"\xff\x06\x00\x00sNaPpY", "compressed by snappy", "unpack it"),
    (b"LZIP", "compressed by lzip", "unpack it with `lzip -d`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and give the folder"),
    (b"Rar!\x1a\x07", "a rar archive", "unpack it and give the folder"),
    (b"Obj\x01", "an Avro file", EXPORT),
    (b"ORC", "an ORC file", EXPORT),
    (b"\x89HDF", "an HDF5 file", EXPORT),
    (b"PGDMP", "a dump of PostgreSQL", TO_JSON),
    *((b"\x80" + bytes([version]), "a pickle file", NO_PICKLE) for version in (2, 3, 4, 5)),
    (b"PAR1", "a Parquet table without rows", "give a log with rows"),
    (b"ARROW1", "an Arrow table without rows", "give a log with rows"),
    (b"%PDF", "a PDF", EXPORT),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a spreadsheet or document of Office 2003", EXPORT_CELLS),
    (b"\x89PNG", "an image", EXPORT),
    (b"\xd4\xc3\xb2\xa1", "packets of a network capture", GATEWAY),
    (b"\x0a\x0d\x0d\x0a", "packets of a network capture", GATEWAY),
    (b"GGUF", "weights of a model", "give the log of its endpoint"),
)
"""First bytes of other files, and what to do with them."""

TEXT_LOGS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"^(srv|slot|main|que) +\w+:|llama_", re.MULTILINE), "llama.cpp's log"),
    (re.compile(rb"^\[GIN\] ", re.MULTILINE), "Ollama's log"),
    # ray/serve/_private/logging_utils.py: level, time, component and its id
    (
        re.compile(rb"^[A-Z]+ [\d-]{10} [\d:,]{12} \S+ \S+ (?:\S{36} )?-- ", re.MULTILINE),
        "Ray Serve's log",
    ),
    (re.compile(rb'"POST /\S+ HTTP/[\d.]+"'), "an access log"),
    (re.compile(rb"text_generation_(router|launcher)"), "TGI's log"),
    (re.compile(rb"^# (HELP|TYPE) ", re.MULTILINE), "metrics in Prometheus' format"),
)
"""Logs of servers that have no texts of requests."""

REQUEST_LOG = (
    "responses without their requests: start vLLM with its request log, --enable-log-requests,"
    " --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG"
)
WITH_CALLBACK = (
    "which has requests and responses in pieces, in Python's and curl's syntax: use a callback of"
    " LiteLLM to files, S3, GCS or Azure"
)
EXECUTION_LOG = (
    "which cuts bodies after 1,024 bytes: log request and response where they are whole, in the"
    " integration or a gateway"
)
FILE_EXPORTER = "replace the debug exporter by the file exporter, and give its file"
CONVERT_YAML = (
    "convert it, and give the JSON: `python -c 'import json, sys, yaml;"
    " print(json.dumps(yaml.safe_load(sys.stdin)))' < FILE > log.json`"
)

LITELLM_DEBUG = re.compile(rb"^[^{\n]{0,60}\bLiteLLM(?: \w+)?:DEBUG\b", re.MULTILINE)
CLIENTS_LOG = re.compile(
    rb"^(?:[^{\n]{0,100}--> POST https?://|- method: POST\r?\n- url: "
    rb"|(?:[^{\n]{0,300}[ \"'])?POST \S+/completions HTTP/[\d.]+(?:\[\\r\]\[\\n\]\"|\\r\\n.*)?\r?$"
    rb"|[^{\n]{0,200}\bRequest options: \{'method': 'post', )",
    re.MULTILINE,
)
"""Requests as clients print them: OkHttp's interceptor, LangChain4j, Apache HttpClient's wire log,
curl -v, Python's http.client, Go's DumpRequestOut, and openai-python's debug log.

The path ends the line; an access log quotes it.
"""

SEARCHED = 2**16
"""Bytes of a file's beginning in which a line of such a log is looked for."""

TEXTS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"\] response_body=\{", re.MULTILINE), "vLLM's API log", REQUEST_LOG),
    (
        re.compile(rb"^\[\d+\] \S+: \[\[?\d+\.\d+, .*\"=>", re.MULTILINE),
        "records as Fluent Bit prints them",
        "set the output's format to json_lines",
    ),
    (
        re.compile(rb"\A(?:<\?xml[^>]*\?>\s*)?(?:<!DOCTYPE items|<items burpVersion)"),
        "Burp's items, HTTP messages in XML",
        "export the proxy's history as HAR, or put a gateway that logs request and response in"
        " front of the endpoint",
    ),
    (
        re.compile(rb"log_server_r\w*: (?:request|response): +\{", re.MULTILINE),
        "llama.cpp's verbose log, without the responses to streamed requests",
        GATEWAY,
    ),
    (
        re.compile(rb"\[(?:chain|llm|chat_model)/(?:start|end)\]", re.MULTILINE),
        "what LangChain prints with set_debug, in which the messages of a prompt are one text",
        f"{GATEWAY}, or export LangSmith's runs",
    ),
    (
        re.compile(rb"^TO LLM \d{4}-", re.MULTILINE),
        "aider's history, whose texts are stripped, without sampling parameters",
        GATEWAY,
    ),
    (
        re.compile(rb"\((?:[\w-]+)\) (?:Method request|Endpoint response) body ", re.MULTILINE),
        "API Gateway's execution log",
        EXECUTION_LOG,
    ),
    (
        re.compile(rb"^.{0,100}\bResource(?:Spans|Logs?) #\d+\s*$", re.MULTILINE),
        "text of the OpenTelemetry Collector's debug exporter",
        FILE_EXPORTER,
    ),
    (
        re.compile(
            rb"\A(?:---[^\n]*\n|#[^\n]*\n)*(?:- )?[\w.-]+:(?: [^\n]*)?\n(?:[ -]+[\w.-]+:|- )"
        ),
        "YAML",
        CONVERT_YAML,
    ),
)
"""Texts with the content of requests that are not read, and the way to files that are."""

_COLLECTOR = re.compile(rb"\0[\0-\x0f]..(?:\x28\xb5\x2f\xfd|[\x0a\x12])", re.DOTALL)
"""How a file of the OpenTelemetry Collector's exporter begins with `format: proto` or with
`compression`: a message's length in four bytes, then zstd or a field of protobuf (fileexporter of
opentelemetry-collector-contrib, `buildExportFunc`)."""

_DOCKER_LOCAL = re.compile(rb"\0[\0-\xff]{3}\x0a\x06std(?:out|err)\x10")
"""A record's size, its stream and its time (moby, api/types/plugins/logdriver/entry.proto)."""

DOCKER_LOGS = "give the output of `docker logs CONTAINER > log.txt`"

_BSON = re.compile(rb"[\0-\xff]{4}[\x02\x07]_id\0", re.DOTALL)
"""A document's length, and its id, an ObjectId or a text, which is its first key (mongodump)."""

OF_BSON = "convert it with `bsondump FILE > log.json`, or export with mongoexport"

_MITMPROXY = re.compile(rb"\d+:\d+:\w+;")
"""First bytes of mitmproxy's flows: tnetstrings."""

_GOREPLAY = re.compile(rb"[123] [0-9a-f]+ \d{19}[ \n]")
"""The first payload's type, id and time."""

_NO_HEADER = re.compile(
    rb"[^{\[\"\n][^{\n]{0,500}"
    rb"(?:\t\{\"[^\t\n]*\}\t\{\"|\|\{\"[^\n]*\}\|\{\"|,\"\{\"\"[^\n]*\}\")"
)
"""A table's first line, if it has objects in its cells and so no names of columns."""

_WITH_OBJECT = re.compile(rb"^[^{\n]+\{\"[^\n]*\}\s*$", re.MULTILINE)
"""A line that ends with an object."""

_DUMP = re.compile(
    rb"(?:/\*.*\*/\s+|--\s+)?-- (?:PostgreSQL database|MySQL|MariaDB) dump"
    rb"|PRAGMA foreign_keys=OFF;\s+BEGIN TRANSACTION;"
)
"""How pg_dump, mysqldump, mariadb-dump and SQLite's `.dump` begin, as text."""

_NEW_API = re.compile(
    rb"CREATE TABLE [`\"\w.]*\blogs[`\"]? \((?=[^;]*\bquota\b)(?=[^;]*\bcompletion_tokens\b)"
    rb"(?=[^;]*\btoken_name\b)"
)
"""New API's and One API's table (QuantumNous/new-api, model/log.go): `content` is a note about the
price, or an error."""

_DATABASE = re.compile(rb"SQLite format 3\0")
"""SQLite keeps texts as they are, so its pages may have lines of JSON."""


class Description(NamedTuple):
    """What a file is, and what to do with it."""

    what: str
    way: str


def describe_bytes(sample: FileSample) -> Description:
    """Describes a file without rows by its first bytes."""
    head = sample.stored
    file = _of_magic(head)
    if file is not None:
        return file
    if sample.archive == PYTORCH:
        return Description(PYTORCH, "give the log of the endpoint's requests and responses")
    if sample.archive in DOCUMENTS:
        is_http = "Fiddler" in sample.archive
        return Description(sample.archive, HAR if is_http else EXPORT_CELLS)
    if sample.archive:
        what = f"a {sample.archive} archive without files, or in an archive"
        return Description(what, "unpack it and give the folder")
    if _DOCKER_LOCAL.match(head):
        return Description("a file of Docker's local log driver", DOCKER_LOGS)
    if _BSON.match(head):
        return Description("documents of mongodump", OF_BSON)
    if _MITMPROXY.match(head):
        return Description(
            "flows of mitmproxy", "save them as HAR, with mitmproxy's option hardump"
        )
    if _COLLECTOR.match(head):
        return Description(
            "messages with their lengths before them, as the file exporter of OpenTelemetry's"
            " Collector writes them with format: proto or compression",
            "let it write format: json without compression",
        )
    if b"\0" in head:
        what = f"binary data that begins with the bytes {head[:8].hex(' ')}"
        return Description(what, EXPORT)
    return _of_text(head)


def _of_magic(head: bytes) -> Description | None:
    """Describes a file by its first bytes; None if they are not in `MAGIC`."""
    said = (Description(what, way) for magic, what, way in MAGIC if head.startswith(magic))
    return next(said, None)


def describe_packet_capture(head: bytes) -> Description:
    file = _of_magic(head)
    if file is not None:
        return file
    if _GOREPLAY.match(head):
        return Description("GoReplay's capture", GATEWAY)
    if LITELLM_DEBUG.search(head, 0, SEARCHED):
        return Description("LiteLLM's debug log", WITH_CALLBACK)
    if CLIENTS_LOG.search(head, 0, SEARCHED):
        what = "an HTTP client's log, in which concurrent requests and responses are mixed"
        return Description(what, GATEWAY)
    if _NO_HEADER.match(head):
        return Description("a table without a header", WITH_HEADER)
    if _NEW_API.search(head):
        what = (
            "a dump of New API's table logs, whose rows are billing and have no texts of requests"
        )
        return Description(what, f"{GATEWAY}, or start the engine with its request log")
    if head.startswith(b"PRAGMA"):
        return Description("a dump of an SQLite database", OF_SQLITE)
    way = f"{EXPORT}; for PostgreSQL, {TO_JSON}" if b"PostgreSQL" in head[:500] else EXPORT
    return Description("a dump of a database", way)


def is_capture(sample: FileSample) -> bool:
    """Whether objects are in HTTP messages, a database, its dump or unnamed columns.

    LiteLLM's debug log has whole responses in their own lines, and other rows around them.
    """
    head = sample.stored
    begins = (_GOREPLAY, _DUMP, _NO_HEADER, _DATABASE)
    logs = (LITELLM_DEBUG, CLIENTS_LOG)
    return any(begin.match(head) for begin in begins) or any(
        log.search(head, 0, SEARCHED) for log in logs
    )


def _of_text(head: bytes) -> Description:
    first = head.lstrip()[:1]
    if head.lstrip().startswith(b'[["'):
        return Description(
            "lists without names, as Redis writes its streams",
            'write each entry as an object, {"kind": "request", "payload": {...}}, one per line',
        )
    if first in (b"{", b"["):
        return Description("JSON without an object", "it was cut, or is not one object per line")
    if first == b"<":
        return Description("HTML or XML", f"it may be the page of an error; {EXPORT}")
    if re.match(rb"data: ?[{\[]", head):
        return Description("an event stream", "log the requests too, as openai_pairs does")
    if _PRETTY.search(head):
        return Description("JSON objects over several lines, between other lines", ONE_LINE)
    for pattern, log_name in TEXT_LOGS:
        if pattern.search(head):
            return Description(f"{log_name}, without texts of requests", GATEWAY)
    if _WITH_OBJECT.search(head):
        return Description("text with JSON behind other text", "cut off what is before each object")
    what = "text without JSON, and without the requests of vLLM or SGLang"
    return Description(what, "start the server with its request log (docs/how-to/log-formats.md)")
