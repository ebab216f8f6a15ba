"""Objects inside a row's values: JSON text, base64, the bytes of a table's column.

object_of('{"messages": []}')       # {"messages": []}
plain_text("eyJtZXNzYWdlcyI6IFtdfQ==")      # '{"messages": []}'
"""

import base64
import binascii
import functools
import re
import zlib
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.python_text import OBJECT
from outrider.data.files.rows import parse_value
from outrider.data.files.sources import LONGEST_LINE

BASE64 = ("eyJ", "eyA", "ewo", "ew0", "ZGF0YT", "UE9TVC", "SFRUUC", "H4sI")
"""How base64 of an object (`{"`, `{ `, `{` and a newline), an event stream (`data`), an HTTP
message (`POST`, `HTTP`) or gzip begins, which CloudWatch writes for Lambda and Kinesis."""

CONTROLS = "".join(map(chr, range(32)))
"""A terminal's characters, such as a bell, for which journald writes a line as bytes."""

GZIP = b"\x1f\x8b\x08"
WITH_HEADER = 31
"""zlib's number for a gzip stream."""

_HTTP = re.compile(r"(?:POST \S+ HTTP/[\d.]+|HTTP/[\d.]+ \d{3}[^\r\n]*)\r?\n")
_CHUNKED = re.compile(r"^transfer-encoding:\s*chunked\s*$", re.IGNORECASE | re.MULTILINE)


def plain_text(value: Any) -> Any:
    """Returns text without base64, and the body of an HTTP message in wire format (Tyk).

    Vertex AI's repeated columns are lists of one text.
    """
    if isinstance(value, str) and value.startswith('["'):
        decoded = json_of(value)
        if decoded is None:
            return value
        value = decoded
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        (value,) = value
    if not isinstance(value, str):
        return value
    if value.startswith('"{') and value.endswith('}"'):  # encoded twice: json.dumps of JSON text
        value = json_of(value) or value
    if value.startswith(BASE64):
        try:
            decoded = base64.b64decode(value.strip(), validate=True)
            value = _unpacked(decoded).decode() if decoded.startswith(GZIP) else decoded.decode()
        except (binascii.Error, zlib.error, UnicodeDecodeError):
            return value
    return _body_of(value) if value.startswith(("POST ", "HTTP/")) else value


def _unpacked(packed: bytes) -> bytes:
    return zlib.decompressobj(WITH_HEADER).decompress(packed, LONGEST_LINE)


def _body_of(text: str) -> str:
    """Returns the body of an HTTP message; other text unchanged."""
    headers, blank, body = text.partition("\r\n\r\n")
    if not blank or not _HTTP.match(text):
        return text
    return _without_chunks(body) if _CHUNKED.search(headers.replace("\r", "")) else body


def _without_chunks(body: str) -> str:
    """Joins the chunks of HTTP/1.1's transfer encoding; other text unchanged."""
    rest = body.encode("utf-8", "surrogatepass")
    joined = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        try:
            length = int(size.partition(b";")[0], 16)
        except ValueError:
            return body
        if not length:
            break
        joined += rest[:length]
        rest = rest[length + 2 :]
    return joined.decode("utf-8", "replace")


def text_of_bytes(values: list[Any]) -> str | None:
    """Returns the text of a list of bytes (journald), without control characters at its ends."""
    if not all(type(byte) is int and 0 <= byte < 256 for byte in values):
        return None
    return bytes(values).decode("utf-8", "replace").strip(CONTROLS)


def object_of(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one written as text; None for anything else."""
    if isinstance(value, dict):
        return value
    value = plain_text(value)
    if isinstance(value, bytes):  # a table's binary column
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not OBJECT.match(value):
        return None
    decoded = json_of(value)
    return decoded if isinstance(decoded, dict) else None


@functools.cache
def json_of(text: str) -> Any:
    """Returns the value of JSON text; None if it is invalid. Callers must not change it."""
    try:
        return parse_value(text.encode("utf-8", "surrogatepass"))
    except Reject:
        return None
