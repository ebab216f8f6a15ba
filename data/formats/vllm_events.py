"""Events of a vLLM server log: the kind of each line, its request, and its values.

    for event in events(file): ...      # an Event; a Reject; or the number of any other line

Texts are Python literals (`%r`), one line each. Where something rewrote the log, a text over
several lines is joined again, also with the prefix that vLLM's formatter puts before each line
(after a carriage return).
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.data.exchange import Place, Reject
from outrider.data.ingest.sources import LONGEST_LINE, LogFile

MOST_LINES = 10_000
"""Maximum number of lines of one text that was logged with line breaks."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(
    r"(?:\S{0,40}\d\d:\d\d:\d\d\S{0,20} )?(?:\S{0,60} ?\(\w{1,60} pid=\d+\) )?"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::? +\d\d-\d\d|: )"
)
"""Beginning of a line of the log, vLLM's or its web server's."""

_PREFIX = re.compile(_HEAD.pattern + r"[^\]]{0,200}\] ?")
_EVENT = re.compile(
    r"(?P<head>(?:[^'\"{]{0,300}?[\]\s])??)(?P<verb>Received request|Generated response|Request) ?"
    r"(?P<id>[^\s'\"(),]{0,500}?)(?: \((?P<stream>streaming \w+)\))?"
    r"(?P<what> details| JSON body)?: (?P<rest>.*)",
    re.DOTALL,
)
_BYTES = re.compile(
    rb"Received request |Generated response |Request \S{1,500} (?:details|JSON body): "
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*")

_END = {
    "received": re.compile(r"lora_request: [^\n]*\.\s*\Z"),
    "details": re.compile(r"(?:prompt_embeds shape: [^\n]*|\]|None)\.\s*\Z"),
    "output": re.compile(r"finish_reason: \w+\s*\Z"),
    "output_ids": re.compile(r"(?:\]|\)|None)\s*\Z"),
    "body": re.compile(r""),
}
"""End of the last line of each kind."""

_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4})"""
_LITERAL = re.compile(rf"""'(?:[^'\\\n]|{_ESCAPE})*+'|"(?:[^"\\\n]|{_ESCAPE})*+\"""")
"""A text as `%r` writes it."""

_BEHIND_PROMPT = (", params: ", ", sampling_params: ", ", prompt_token_ids: ")
_IDS = re.compile(r"(?:prompt|output)_token_ids: (?:\[([\d, ]*+)\]|\(([\d, ]*+)\))")
_NUMBER = re.compile(r"\b(n|temperature|top_p)=(-?\d{1,18}(?:\.\d{0,30})?(?:e-?\d{1,3})?)[,)]")
_STOP = re.compile(r"\bstop=(\[[^\n]{0,10000}?\]), stop_token_ids=")
_FINISH = re.compile(r", finish_reason: (\w+)\s*\Z")


@dataclass(frozen=True)
class Event:
    """The request-related content of one or several lines."""

    kind: str
    """`received`, `details`, `body`, `output` or `output_ids`."""
    key: str
    """The request's id, without the prefix of chats or completions."""
    stream: str | None
    """`streaming delta`, `streaming complete`, or None."""
    rest: str
    line: int
    rows: int
    time: str | None
    """Time that a container's log driver wrote before the line; vLLM's own times have no year."""


def is_request_log(head: bytes) -> bool:
    """Whether the beginning of a file has a line of vLLM's request logger."""
    return any(
        _BYTES.search(line) and _event(line, 1, "replace") is not None for line in head.split(b"\n")
    )


def events(file: LogFile) -> Iterator[Event | Reject | int]:
    """Yields the event, reject or number of every line of a file."""
    lines = _Lines(file)
    while (numbered := lines.next()) is not None:
        number, line = numbered
        if line is None:
            yield Reject(
                "line_too_long", f"more than {LONGEST_LINE >> 20} MB", Place(file.name, number)
            )
            continue
        try:
            event = _event(line, number)
        except UnicodeDecodeError:
            yield Reject("not_utf8", "a line of a request", Place(file.name, number))
            continue
        if event is None:
            yield number
            continue
        event = _continued(event, line, lines)
        if (
            not event.key and event.kind == "body"
        ):  # vLLM writes it before it has an id for every kind of request
            yield number
        elif not event.key:
            yield Reject(
                "no_id", "a request without its id", Place(file.name, number), rows=event.rows
            )
        elif not _END[event.kind].search(event.rest):
            yield Reject(
                "incomplete_line",
                "the line ends in the middle",
                Place(file.name, number),
                rows=event.rows,
            )
        else:
            yield event


class _Lines:
    """The lines of a file with one line of lookahead."""

    def __init__(self, file: LogFile):
        self._lines = file.lines()
        self._held: list[tuple[int, bytes | None]] = []

    def next(self) -> tuple[int, bytes | None] | None:
        return self._held.pop() if self._held else next(self._lines, None)

    def peek(self) -> tuple[int, bytes | None] | None:
        if not self._held and (numbered := next(self._lines, None)) is not None:
            self._held.append(numbered)
        return self._held[0] if self._held else None


def _event(line: bytes, number: int, errors: str = "strict") -> Event | None:
    if (
        not _BYTES.search(line, 0, 2000)
        and b"equest : " not in line[:2000]
        and b"esponse : " not in line[:2000]
    ):
        return None
    text = _COLOR.sub("", line.decode("utf-8", errors))
    match = _EVENT.match(text)
    if match is None or (match["verb"] == "Request" and not match["what"]):
        return None
    kind = {
        "Received request": "received",
        "Generated response": "output_ids" if match["what"] else "output",
        "Request": "body" if match["what"] == " JSON body" else "details",
    }[match["verb"]]
    identity = match["id"].removeprefix("chatcmpl-")
    time = _TIME.match(match["head"])
    return Event(
        kind=kind,
        key="" if identity in ("None", "N/A") else identity,
        stream=match["stream"],
        rest=match["rest"].rstrip("\n"),
        line=number,
        rows=1,
        time=time[0] if time else None,
    )


def _continued(event: Event, line: bytes, lines: _Lines) -> Event:
    """The event with the lines on which its text continues, if any."""
    pieces, size, last, rows = [event.rest], len(line), event.line, 1
    while not _END[event.kind].search(pieces[-1]) and rows < MOST_LINES:
        following = lines.peek()
        if following is None or size > LONGEST_LINE:
            break
        number, raw = following
        if raw is None:
            break
        try:
            text = _COLOR.sub("", raw.decode("utf-8"))
        except UnicodeDecodeError:
            break
        if pieces[-1].endswith("\r"):
            text = _PREFIX.sub("", text, count=1)
        elif _HEAD.match(text):
            break
        lines.next()
        # Blank lines are skipped; their numbers are missing.
        pieces += [""] * min(number - last - 1, MOST_LINES) + [text]
        size, last, rows = size + len(raw), number, rows + 1
    if rows == 1:
        return event
    rest = "\n".join(piece.removesuffix("\r") for piece in pieces)
    return Event(event.kind, event.key, event.stream, rest, event.line, rows, event.time)


def literal(text: str, begin: int, following: tuple[str, ...]) -> tuple[str | None, int]:
    """The text at `begin`, as a Python literal or verbatim, and where it ends.

    vLLM does not write verbatim texts; other tools do. `following`: what may follow the text, the
    one earliest in the line first.
    """
    if text.startswith("None", begin):
        return None, begin + 4
    match = _LITERAL.match(text, begin)
    if match and text.startswith(following, match.end()):
        try:
            value = ast.literal_eval(match[0])
        except (SyntaxError, ValueError, MemoryError):
            raise Reject("incomplete_line", "a text that is not a Python literal") from None
        return _readable(value), match.end()
    end = next((end for mark in following if (end := text.rfind(mark)) >= begin), -1)
    value = text[begin:end]
    if end < begin or "\n" not in value:
        raise Reject("incomplete_line", "the text is not in vLLM's notation")
    quoted = len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]
    return _readable(value[1:-1] if quoted else value), end


def _readable(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Reject("not_utf8", "a text holds half a surrogate pair") from None
    return value


def ids_of(text: str, begin: int = 0) -> list[int] | None:
    """The token ids listed after `begin`, or None."""
    match = _IDS.search(text, begin)
    if match is None:
        return None
    try:
        ids = json.loads(f"[{(match[1] or match[2] or '').strip().rstrip(',')}]")
    except ValueError:
        raise Reject("incomplete_line", "an invalid list of ids") from None
    if not all(type(value) is int and 0 <= value < 2**31 for value in ids):
        raise Reject("wrong_type", "token_ids holds something other than token ids")
    return ids


def prompt_of(rest: str) -> tuple[str | None, list[int] | None]:
    """Text and ids of the prompt in a `received` or `details` line."""
    if not rest.startswith("prompt: "):
        return None, None
    text, end = literal(rest, len("prompt: "), _BEHIND_PROMPT)
    return text, ids_of(rest, end)


def completion_of(rest: str) -> tuple[str | None, list[int] | None, str]:
    """Text, ids and finish reason in an `output` line."""
    if not rest.startswith("output: "):
        raise Reject("incomplete_line", "a response without its output")
    text, end = literal(rest, len("output: "), (", output_token_ids: ", ", finish_reason: "))
    finish = _FINISH.search(rest, end)
    return text, ids_of(rest, end), finish[1] if finish else ""


def finish_of(rest: str) -> str | None:
    """The finish reason in an `output` line, or None."""
    finish = _FINISH.search(rest)
    return finish[1] if finish and finish[1] != "None" else None


def sampling_of(rest: str) -> dict[str, Any]:
    """n, temperature, top_p and the stop strings of a `received` line."""
    # After the prompt, which may hold anything.
    begin = literal(rest, len("prompt: "), _BEHIND_PROMPT)[1] if rest.startswith("prompt: ") else 0
    said: dict[str, Any] = {}
    for name, number in _NUMBER.findall(rest[begin : begin + 2000]):
        said.setdefault(name, int(number) if name == "n" and number.isdigit() else float(number))
    stop = _STOP.search(rest, begin)
    if stop:
        try:
            said["stop"] = ast.literal_eval(stop[1])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            said["stop"] = None  # the strings were logged but cannot be read
    return said


def longest(file: LogFile) -> tuple[int, int]:
    """Length of the longest text or list of ids in a log, and how many have this length.

    `--max-log-len` cuts at a length; a log does not record what was cut.
    """
    length = count = 0
    for event in events(file):
        if not isinstance(event, Event):
            continue
        try:
            held = _held(event)
        except Reject:
            continue  # its record is rejected, with its place
        for one in (len(value) for value in held if value):
            if one > length:
                length, count = one, 0
            count += one == length
    return length, count


def _held(event: Event) -> tuple[str | list[int] | None, ...]:
    if event.kind == "output_ids":
        return (ids_of(event.rest),)
    if event.kind == "output":
        return completion_of(event.rest)[:2] if event.stream != "streaming delta" else ()
    return prompt_of(event.rest) if event.kind in ("received", "details") else ()
