"""Ways to store the rows of a log: framings, log drivers, encodings, compressions and archives."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TIME = "2026-07-01T12:00:00.123456789Z"
LIMIT = 16 * 1024
"""Bytes of a line that Docker and containerd store at once."""


def pieces_of(line: bytes) -> list[bytes]:
    """A line as a runtime cuts it."""
    return [line[begin : begin + LIMIT] for begin in range(0, max(len(line), 1), LIMIT)]


def json_file(lines: list[bytes]) -> bytes:
    """Docker's json-file."""
    stored = []
    for line in lines:
        for piece in pieces_of(line + b"\n"):
            row = {"log": piece.decode("utf-8", "replace"), "stream": "stderr", "time": TIME}
            stored.append(json.dumps(row).encode())
    return b"\n".join(stored) + b"\n"


def cri(lines: list[bytes]) -> bytes:
    """Files of containerd and CRI-O, with a line of the other stream between the pieces."""
    stored = []
    for number, line in enumerate(lines):
        *first, last = pieces_of(line)
        for piece in first:
            stored.append(f"{TIME} stdout P ".encode() + piece)
            stored.append(f"{TIME} stderr F progress {number}".encode())
        stored.append(f"{TIME} stdout F ".encode() + last)
    return b"\n".join(stored) + b"\n"


def shipped_cri(lines: list[bytes]) -> bytes:
    """CRI files as Fluent Bit ships them."""
    rows = []
    for line in lines:
        log = f"{TIME} stdout F {line.decode()}"
        rows.append(json.dumps({"date": 1.5, "log": log, "kubernetes": {"pod_name": "p"}}).encode())
    return b"\n".join(rows) + b"\n"


def with_times(lines: list[bytes]) -> bytes:
    """`docker logs -t` and `kubectl logs --timestamps`."""
    stamp = f"{TIME} ".encode()
    return b"".join(stamp + stamp.join(pieces_of(line)) + b"\n" for line in lines)


def with_sources(lines: list[bytes]) -> bytes:
    """`kubectl logs --prefix --timestamps`."""
    stamp = f"{TIME} ".encode()
    return b"".join(
        b"[pod/vllm-0/vllm] " + stamp + stamp.join(pieces_of(line)) + b"\n" for line in lines
    )


DRIVERS = {
    "json-file": json_file,
    "cri": cri,
    "docker logs -t": with_times,
    "kubectl logs --prefix": with_sources,
}


def lines_of_json(rows: list[dict]) -> list[bytes]:
    return [json.dumps(row).encode() for row in rows]


def as_csv(rows: list[dict], delimiter: str = ",", **dialect) -> str:
    """A table of the rows, whose objects and lists are JSON."""
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = csv.DictWriter(text, columns, delimiter=delimiter, **dialect)
    table.writeheader()
    for row in rows:
        cells = {
            key: json.dumps(value) if isinstance(value, dict | list) else value
            for key, value in row.items()
        }
        table.writerow(cells)
    return text.getvalue()


FRAMINGS = {
    "lines": lambda rows: b"\n".join(lines_of_json(rows)).decode(),
    "windows": lambda rows: b"\r\n".join(lines_of_json(rows)).decode() + "\r\n",
    "array": json.dumps,
    "pretty": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows),
    "pretty array": lambda rows: json.dumps(rows, indent=1),
    "on one line": lambda rows: b"".join(lines_of_json(rows)).decode(),
    "two on a line": lambda rows: "\n".join(
        b"".join(lines_of_json(rows[at : at + 2])).decode() for at in range(0, len(rows), 2)
    ),
    "csv": as_csv,
    "tsv": lambda rows: as_csv(rows, "\t"),
    "quoted csv": lambda rows: as_csv(rows, quoting=csv.QUOTE_ALL),
    **{
        name: (lambda rows, drive=drive: drive(lines_of_json(rows)).decode())
        for name, drive in DRIVERS.items()
    },
    "fluent bit": lambda rows: shipped_cri(lines_of_json(rows)).decode(),
}
"""Text of a list of rows."""

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-be-mark", "utf-32")


def encoded(text: str, encoding: str) -> bytes:
    if encoding == "utf-16-be-mark":
        return b"\xfe\xff" + text.encode("utf-16-be")
    return text.encode(encoding)


def in_halves(compress):
    """Two members one after the other, as appending writers and uploads leave them."""
    return lambda content: (
        compress(content[: len(content) // 2]) + compress(content[len(content) // 2 :])
    )


CODECS = {
    "none": lambda content: content,
    "gzip": gzip.compress,
    "gzip members": in_halves(gzip.compress),
    "zstd": zstd.compress,
    "zstd frames": in_halves(zstd.compress),
    "bzip2": bz2.compress,
    "bzip2 streams": in_halves(bz2.compress),
    "xz": lzma.compress,
    "zlib": zlib.compress,
    "xz streams": in_halves(lzma.compress),
    "gzip twice": lambda content: gzip.compress(gzip.compress(content)),
}


def as_tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        folder = tarfile.TarInfo("logs")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def as_zip(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


CONTAINERS = {
    "tar": as_tar,
    "tar.gz": lambda files: gzip.compress(as_tar(files)),
    "tar.zst": lambda files: zstd.compress(as_tar(files)),
    "zip": as_zip,
}


SECOND = 1_782_907_200
"""`TIME` in Unix seconds, up to its fraction."""
NANOSECONDS = f"{SECOND}123456789"


def records(record) -> Callable[[list[str]], bytes]:
    """A collector that writes a JSON record per line."""
    return lambda lines: b"".join(json.dumps(record(line)).encode() + b"\n" for line in lines)


def document(record) -> Callable[[list[str]], bytes]:
    """An API's answer, or a browser's download, with all lines."""
    return lambda lines: json.dumps(record(lines)).encode()


def prefixed(prefix: str) -> Callable[[list[str]], bytes]:
    return lambda lines: "".join(f"{prefix}{line}\n" for line in lines).encode()


def table(lines: list[str]) -> bytes:
    """Datadog's download."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["Date", "Host", "Service", "Message"])
    writer.writerows([TIME, "gpu-1", "vllm", line] for line in lines)
    return text.getvalue().encode()


def log_records(lines: list[str]) -> dict:
    """OTLP's log records, as the collector's filelog receiver makes them."""
    made = [{"timeUnixNano": NANOSECONDS, "body": {"stringValue": line}} for line in lines]
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": made}]}]}


def partial(lines: list[str]) -> bytes:
    """AWS FireLens: Docker's fluentd driver cuts lines at 16 KiB."""
    rows = []
    for number, line in enumerate(lines):
        pieces = [line[at : at + 400] for at in range(0, len(line), 400)]
        for piece in pieces:
            row = {"log": piece, "source": "stderr", "container_name": "vllm", "time": TIME}
            if len(pieces) > 1:
                last = str(piece is pieces[-1]).lower()
                row |= {"partial_message": "true", "partial_id": f"p{number}"}
                row |= {"partial_last": last}
            rows.append(json.dumps(row).encode() + b"\n")
    return b"".join(rows)


COLLECTORS = {
    "docker compose": prefixed("vllm-1  | "),
    "docker compose in color": prefixed("\x1b[36mvllm-1  | \x1b[0m"),
    "kubectl --prefix": prefixed("[pod/vllm-0/vllm] "),
    "journalctl": prefixed("Jul 01 12:00:00 gpu-1 vllm[41]: "),
    "pm2": prefixed("0|vllm  | "),
    "ray": prefixed("\x1b[36m(ServeReplica:app:vllm pid=77, ip=10.0.0.2)\x1b[0m "),
    "stern": records(lambda line: {"message": line, "podName": "vllm-0", "labels": {}}),
    "partial": partial,
}
"""Collectors that keep lines; those below keep their times, too."""

TIMED_COLLECTORS = {
    "journald": records(
        lambda line: {
            "__REALTIME_TIMESTAMP": NANOSECONDS[:16],
            "_SYSTEMD_UNIT": "vllm.service",
            "MESSAGE": line,
        }
    ),
    "journald in color": records(
        lambda line: {
            "__REALTIME_TIMESTAMP": NANOSECONDS[:16],
            "MESSAGE": list(f"\x1b[32m\x1b[0m{line}".encode()),
        }
    ),
    "loki's api": document(
        lambda lines: {
            "status": "success",
            "data": {"result": [{"stream": {}, "values": [[NANOSECONDS, line] for line in lines]}]},
        }
    ),
    "logcli": records(lambda line: {"labels": {"app": "r1"}, "line": line, "timestamp": TIME}),
    "grafana": document(
        lambda lines: [{"line": line, "timestamp": NANOSECONDS, "fields": {}} for line in lines]
    ),
    "vector": records(
        lambda line: {
            "file": "/var/log/x",
            "message": line,
            "source_type": "file",
            "timestamp": TIME,
        }
    ),
    "filebeat": records(
        lambda line: {"@timestamp": TIME, "message": line, "log": {"offset": 1}, "agent": {}}
    ),
    "google cloud": records(
        lambda line: {"textPayload": line, "timestamp": TIME, "resource": {"labels": {}}}
    ),
    "cloudwatch": document(
        lambda lines: {
            "events": [{"timestamp": int(NANOSECONDS[:13]), "message": line} for line in lines]
        }
    ),
    "datadog": table,
    "otlp": records(lambda line: log_records([line])),
    "otlp in batches": document(log_records),
    "splunk": records(lambda line: {"preview": False, "result": {"_raw": line, "_time": TIME}}),
    "json logger in a container": records(
        lambda line: {
            "log": json.dumps({"asctime": "2026-07-01 12:00:00,123", "message": line}) + "\n",
            "stream": "stderr",
            "time": TIME,
        }
    ),
}
