r"""Lines of nginx's access log that have the bodies of request and response.

    row_of_access_line(b'10.0.0.1 - - [03/Nov/2026:08:12:46 +0100] "POST /v1/chat/completions'
                       b' HTTP/1.1" 200 "{\\x22messages\\x22: []}" "{\\x22choices\\x22: []}"')
    # {"request": '{"messages": []}', "response": '{"choices": []}', "status": 200, ...}

A `log_format` of one's own adds them as "$request_body" and as a variable that Lua has filled. In
them nginx writes a quotation mark as \x22 or, with `escape=json`, as \", so that quotation marks
end the variables.
"""

import json
import re
from typing import Any

from outrider.data.exchange import Reject

_QUOTED = re.compile(rb'"((?:[^"\\]++|\\.)*+)("|\\?\Z)', re.DOTALL)
"""A variable; one without an end goes on to the end of the line."""

_REQUEST = re.compile(rb'"[A-Z]{3,7} (\S+) HTTP/[\d.]+"(?: (\d{3})\b)?')
_TIME = re.compile(rb"\[(\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]")
ESCAPED_BYTE = re.compile(rb"\\x([0-9A-F]{2})")
"""A byte that nginx's log_format escapes unless it says `escape=json`: a quotation mark, a
backslash, a control character, or part of a character beyond ASCII."""

_IS_REQUEST = re.compile(r'\s*\{.*"(?:messages|prompt|input)"\s*:', re.DOTALL)
_OBJECT = re.compile(r'\s*\{\s*"')
_STREAM = ("data:", "event:")


def row_of_access_line(line: bytes) -> dict[str, Any] | None:
    """Returns the request, the response, the status and the time in a line; None without bodies.

    Raises:
        Reject: If it has only a response, such as that of /v1/models.
    """
    request_line = _REQUEST.search(line)
    if request_line is None:
        return None
    # The default writes \\x22 for each quotation mark, so that \\" is only in the other escape.
    unescaped = _of_json if b'\\"' in line else _of_bytes
    variables = _QUOTED.finditer(line, request_line.end())
    texts = [unescaped(variable[1]) for variable in variables if variable[2] == b'"']
    bodies = [text for text in texts if _is_body(text)]
    asked = [body for body in bodies if _IS_REQUEST.match(body)]
    answered = [body for body in bodies if body not in asked]
    if not bodies:
        return None
    if not asked:
        raise Reject("not_a_generation", "a line of an access log without a request's body")
    row: dict[str, Any] = {"request": asked[0], "path": request_line[1].decode("utf-8", "replace")}
    if answered:
        row["response"] = answered[0]
    if request_line[2]:
        row["status"] = int(request_line[2])
    time = _TIME.search(line)
    if time is not None:
        row["time_local"] = time[1].decode()
    return row


def _is_body(text: str) -> bool:
    """Whether a variable is an object, lines of them or an event stream, also if it was cut."""
    return text.lstrip().startswith(_STREAM) or _OBJECT.match(text) is not None


def _of_bytes(text: bytes) -> str:
    whole = ESCAPED_BYTE.sub(lambda match: bytes.fromhex(match[1].decode()), text)
    return whole.decode("utf-8", "replace")


def _of_json(text: bytes) -> str:
    try:
        return str(json.loads(b'"' + text + b'"'))
    except ValueError:
        return ""
