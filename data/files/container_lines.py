"""Lines as containers' log drivers store them: unwrapped, and rejoined if they were cut.

Runtimes read a container's output in pieces of at most 16 KiB (Docker: daemon/logger/copier.go;
containerd: `max_container_log_line_size`; CRI-O: 8 KiB), and R1's lines are longer.

- Docker's `json-file`, and Fluentd and Fluent Bit: `{"log": "piece", "stream": ..., "time": ...}`;
  `log` ends with a newline if the line does.
- Docker's fluentd and journald drivers: records with the id of their line and whether it ends.
- Google Cloud Logging: entries with the id of the entry that was split, and their number in it.
- CRI (containerd, CRI-O): `TIME stderr P piece`, and `F` for the last piece.
- `docker logs -t`, `kubectl logs --timestamps`: `TIME ` before every piece, and no newline between.
- Fluentd's `out_file`, syslog, journald and loggers of programs: a short text before one object.
- syslog's and journald's time, host and program before any line.
- Papertrail's columns before a message.
- logcli's labels between a time and a line, and Fluent Bit's `TAG: [TIME, {"log": ...}]`.

    for number, line in join_container_lines(lines, 1 << 30): ...  # TIME and the line, or the line
    if JSON
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d) "
PIECE = 1024
"""Runtimes cut after a multiple of this number of bytes."""

SHIPPED = {"log", "stream", "time", "attrs", "date", "kubernetes", "docker", "tag", "logtag", "_p"}
"""Keys of a `json-file` line, and those that Fluentd and Fluent Bit add."""

OF_CRI = SHIPPED - {"log"} | {"message"}
"""Keys of a line that Fluent Bit has read with its parser `cri` (conf/parsers.conf)."""

OF_CONTAINER = ("namespace_name", "pod_name", "container_name", "docker_id", "container_id")
"""Keys that Fluentd's and Fluent Bit's filters add about a line's container."""

PARTIAL = {"partial_": "log", "CONTAINER_PARTIAL_": "MESSAGE"}
"""How Docker's fluentd (AWS FireLens) and journald drivers begin the keys about a piece of a line,
and the key of its text."""

REPLACED = "\ufffd".encode()
"""What `json-file` writes for each part of a character that was cut."""

STAMPED = re.compile(STAMP)
"""The beginning of a line that is not JSON, if a log driver has written its time."""

_CRI = re.compile(rb"(" + STAMP + rb")(stdout|stderr) ([PF])(?::[^ ]*)?(?: |$)")
# `kubectl logs --prefix`, `docker compose logs`, pm2 and Ray write a name first, some in color.
_COLORS = rb"(?:\x1b\[[0-9;]{0,9}m){0,3}"
_SOURCE = re.compile(
    _COLORS
    + rb"(?:\[pod/[^\]\s]{1,300}\] |(?:\d{1,4}\|)?[\w.-]{1,100} +\| "
    + rb"|\([^()\s]{1,200} pid=\d+(?:, ip=[\d.]{1,20})?\)"
    + _COLORS
    + rb" )"
    + _COLORS
    + rb"(?="
    + STAMP
    + rb"|\s*\{)"
)

_BEFORE_OBJECT = re.compile(
    rb"(?=<\d{1,3}>|\[|\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:"
    rb"|(?:CreateTime|LogAppendTime):\d"  # Kafka's console consumer
    rb"|(?:DEBUG|INFO|NOTICE|WARN|WARNING|ERROR)\b)"
    rb"(?:\[[^\]{]{0,300}\]|[^{\[\"'\\]){1,300}"
    rb"(?=\{\s*[\"'][^\n]*\}\s*$|\[\{\s*\"[^\n]*\}\]\s*$)"
)
"""A time, priority (RFC 3164, RFC 5424) or level, and what is before an object up to the end, which
Python's logging writes with single quotes, or before a list of objects (APISIX' kafka-logger)."""

_SYSLOG = re.compile(
    rb"(?P<rfc5424><\d{1,3}>1 )?(?:<\d{1,3}>)?"
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?)(Z|[+-]\d\d):?(\d\d)? (?(rfc5424)"
    rb"\S{1,255} \S{1,48} \S{1,128} \S{1,32} (?:-|\[[^\]]{0,500}\]) (?:\xef\xbb\xbf)?"
    rb"|(?:[\w.:-]{1,255} )?[\w./@-]{1,128}\[[\w.-]{1,64}\]: )"
)
"""Time, host and program before a line: journald's short-iso, rsyslog's files, RFC 5424, Heroku."""

_LABELS = re.compile(rb'\{(?:[A-Za-z_]\w*="(?:[^"\\]|\\.)*"(?:, ?|(?=\})))*\} ?')
"""Labels of a stream between a time and a line: logcli's default output."""

_PAPERTRAIL = re.compile(
    rb"\d{10,20}\t(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\t[^\t]{10,30}\t\d+\t(?:[^\t]{0,255}\t){5}"
)
"""Id, time in UTC, time of arrival, and other columns before a message in an archive."""

_FLUENT_BIT = re.compile(rb"[^\s\[{\"':]{1,200}: \[(\d{9,10}\.\d{1,9}), \{(\s*\".*\})\]\s*")
"""A tag, a time and a record: Fluent Bit's `file` output without a `Format`."""

MARKS = (b'"log"', b'"logtag"', b"_PARTIAL_ID", b'"totalSplits"')
"""A key of each record about a piece of a line."""

_BODY = b" JSON body: "
"""What vLLM writes before a request's body, in a line that its own format reads."""

Numbered = Iterator[tuple[int, bytes | None]]


class _Piece(NamedTuple):
    stream: str
    time: bytes
    text: bytes
    is_last: bool


def join_container_lines(lines: Numbered, longest: int) -> Numbered:
    """Yields logical lines, each with the number of its first piece.

    Lines that no log driver has wrapped pass unchanged; None replaces a line above `longest` bytes.
    """
    cut: dict[str, tuple[int, bytes, bytearray]] = {}
    for number, line in lines:
        piece = _piece(line) if line else None
        if line is None or piece is None:
            yield number, _joined(line) if line else line
            continue
        first, time, text = cut.pop(piece.stream, (number, piece.time, bytearray()))
        if text[-3:] == REPLACED or (text and piece.text[:3] == REPLACED):
            text += b"\xff"  # the row is rejected as `not_utf8`: a character is lost
        if len(text) <= longest:
            text += piece.text
        if piece.is_last:
            yield first, _whole(time, text, longest)
        else:
            cut[piece.stream] = (first, time, text)
    for first, time, text in cut.values():  # the log was rotated within a line
        yield first, _whole(time, text, longest)


def _whole(time: bytes, text: bytearray, longest: int) -> bytes | None:
    if len(text) > longest:
        return None
    # Shippers tail CRI files, whose lines are then inside theirs.
    inner = _CRI.match(text)
    if inner:
        time = inner[1]
        del text[: inner.end()]
    return _record(time, bytes(text))


def _record(time: bytes, text: bytes) -> bytes:
    """Returns the JSON in a line's text; other text with its time."""
    labels = _LABELS.match(text)
    if labels and time and labels.end() < len(text):
        text = text[labels.end() :]
    first = text.lstrip()[:1]
    if first == b"{":
        return text
    before = _BEFORE_OBJECT.match(text)
    if before and not before[0].endswith(_BODY):
        return text[before.end() :]
    return text if first == b"[" else time + text


def _piece(line: bytes) -> _Piece | None:
    """Parses a line of `json-file` or CRI; None for any other."""
    if line[:1] == b"{":
        return _of_json(line) if any(mark in line for mark in MARKS) else None
    record = _FLUENT_BIT.fullmatch(line)
    if record:
        return _of_json(_with_date(record)) if b'"logtag"' in line else None
    cri = _CRI.match(line)
    if cri is None:
        return None
    return _Piece(cri[2].decode(), cri[1], line[cri.end() :], cri[3] == b"F")


def _of_json(line: bytes) -> _Piece | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    for prefix, text_key in PARTIAL.items():
        part = row.get(f"{prefix}ID", row.get(f"{prefix}id"))
        if isinstance(part, str) and isinstance(row.get(text_key), str):
            last = row.get(f"{prefix}LAST", row.get(f"{prefix}last"))
            text = row[text_key].removesuffix("\n").encode("utf-8", "surrogatepass")
            return _Piece(part, _stamp_of(row.get("time")), text, str(last).lower() == "true")
    split = row.get("split")
    if isinstance(split, dict) and isinstance(row.get("textPayload"), str):
        return _Piece(
            stream=str(split.get("uid")),
            time=_stamp_of(row.get("timestamp")),
            text=row["textPayload"].removesuffix("\n").encode("utf-8", "surrogatepass"),
            is_last=split.get("index", 0) == split.get("totalSplits", 1) - 1,
        )
    # Fluentd and Fluent Bit drop the newline; they mark pieces with `logtag` or `_p`.
    tag = row.get("logtag") or row.get("_p")
    is_of_cri = "log" not in row and bool(tag)
    key = "message" if is_of_cri else "log"
    shipped = OF_CRI if is_of_cri else SHIPPED
    if not isinstance(row.get(key), str) or not row.keys() <= shipped or len(row) < 2:
        return None
    text = row[key].encode("utf-8", "surrogatepass")
    is_piece = tag == "P" or (
        row.keys() <= {"log", "stream", "time", "attrs"} and text[-1:] != b"\n"
    )
    pod = row.get("kubernetes")
    names = [pod.get(key) for key in OF_CONTAINER] if isinstance(pod, dict) else []
    return _Piece(
        stream=json.dumps([row.get("stream"), *names]),
        time=_stamp_of(row.get("time")),
        text=text.removesuffix(b"\n"),
        is_last=not is_piece,
    )


def _with_date(record: re.Match[bytes]) -> bytes:
    """Returns a record of `_FLUENT_BIT` as Fluent Bit's JSON formats write it."""
    return b'{"date": ' + record[1] + b", " + record[2]


def _stamp_of(time: Any) -> bytes:
    stamp = time.encode() + b" " if isinstance(time, str) else b""
    return stamp if STAMPED.fullmatch(stamp) else b""


def _joined(line: bytes) -> bytes:
    """Removes the times that were written between the pieces of a line."""
    source = _SOURCE.match(line)
    if source:
        line = line[source.end() :]
    syslog = _SYSLOG.match(line)
    if syslog:
        zone = syslog[3] + (b":" + syslog[4] if syslog[4] else b"")
        return _record(syslog[2] + zone + b" ", line[syslog.end() :])
    columns = _PAPERTRAIL.match(line)
    if columns:
        return _record(columns[1] + b"Z ", line[columns.end() :])
    record = _FLUENT_BIT.fullmatch(line)
    if record:  # as its JSON formats write it
        return _with_date(record)
    stamp = STAMPED.match(line)
    if stamp is None:
        return line if line[:1] == b"{" else _record(b"", line)
    pieces = []
    begin = stamp.end()
    for inner in STAMPED.finditer(line, begin):
        length = inner.start() - begin
        if length and length % PIECE == 0:  # any other time belongs to the text
            pieces.append(line[begin : inner.start()])
            begin = inner.end()
    return _record(stamp[0], b"".join([*pieces, line[begin:]]))
