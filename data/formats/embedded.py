"""Objects inside a row's values: JSON text, base64, the bytes of a table's column.

object_of('{"messages": []}')       # {"messages": []}
plain_text("eyJtZXNzYWdlcyI6IFtdfQ==")      # '{"messages": []}'
"""

import base64
import binascii
import functools
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.files.rows import decode

BASE64 = ("eyJ", "eyA", "ewo", "ew0", "ZGF0YT")
"""How base64 of an object (`{"`, `{ `, `{` and a newline) or an event stream (`data`) begins."""


def plain_text(value: Any) -> Any:
    """Returns text without base64, and the only text of a list (Vertex AI's repeated columns)."""
    if isinstance(value, str) and value.startswith('["'):
        decoded = json_of(value)
        if decoded is None:
            return value
        value = decoded
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        (value,) = value
    if not isinstance(value, str) or not value.startswith(BASE64):
        return value
    try:
        return base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return value


def object_of(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one written as text; None for anything else."""
    if isinstance(value, dict):
        return value
    value = plain_text(value)
    if isinstance(value, bytes):  # a table's binary column
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    decoded = json_of(value)
    return decoded if isinstance(decoded, dict) else None


@functools.cache
def json_of(text: str) -> Any:
    """Returns the value of JSON text; None if it is invalid. Callers must not change it."""
    try:
        return decode(text.encode("utf-8", "surrogatepass"))
    except Reject:
        return None
