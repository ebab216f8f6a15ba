"""vLLM's server log, joined by request id. Best effort.

Flags: `--enable-log-requests --enable-log-outputs`; VLLM_LOGGING_LEVEL=DEBUG adds token ids.

    DEBUG 07-01 12:00:00 [...] Request chatcmpl-17 details: prompt: '<｜User｜>...',
      prompt_token_ids: [0, ...], prompt_embeds shape: None.
    INFO 07-01 12:00:00 [...] Received request chatcmpl-17: params: SamplingParams(n=1, ...),
      lora_request: None.
    DEBUG 07-01 12:00:09 [...] Generated response chatcmpl-17 details: output_token_ids: [301, ...]
    INFO 07-01 12:00:09 [...] Generated response chatcmpl-17: output: 'Paris.', finish_reason: stop

Older releases write prompt and ids into the line `Received request`, and `output_token_ids` into
`Generated response`. Texts are Python literals (`%r`), so every event is one line.

To get it: `VLLM_LOGGING_LEVEL=DEBUG vllm serve MODEL --enable-log-requests --enable-log-outputs`,
without `--max-log-len`. What it holds depends on the release:

- 0.32 (tested) at DEBUG: prompt ids, response ids and the request; exact.
- 0.32 at DEBUG, streamed: no response ids, and the end only with `--enable-log-deltas`; text, or
  the reject `end_not_logged`.
- 0.11.2 and later at INFO: sampling and response; `prompt_not_logged`.
- 0.10 to 0.11.1 at INFO: the rendered prompt, and response ids unless streamed; the prompt is
  tokenized again, the response is exact.
- before 0.10: no responses; `unmatched_request`.

It has no year (times need `docker logs -t` or `kubectl logs --timestamps`), no stop string, and no
reasoning where a reasoning parser removed it from a response without ids.
"""

import ast
import dataclasses
import json
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.formats.fields import first, take, take_text, take_time
from outrider.data.formats.openai import finish_reason
from outrider.data.formats.rows import Sample, parse_row, with_other_lines
from outrider.data.formats.sampling import NUMBERS, constraint_of
from outrider.data.formats.sources import LONGEST_LINE, LogFile, Meter

NAME = "vllm_log"

WAITING = 256 * 2**20
"""Characters of requests that wait for their responses. Above it the oldest is given up; clients
that disconnected log no response."""

OPENINGS = ("<｜Assistant｜>", "<think>")
"""End of a prompt that R1's template rendered completely."""

DESCRIPTIONS = ("[tool_calls: ", "[reasoning: ")
"""What vLLM writes in place of a text that it parsed out."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_EVENT = re.compile(
    r"(?P<head>(?:[^'\"{]{0,300}?[\]\s])??)(?P<verb>Received request|Generated response|Request) ?"
    r"(?P<id>[^\s'\"(),]{0,500}?)(?: \((?P<stream>streaming \w+)\))?"
    r"(?P<what> details| JSON body)?: (?P<rest>.*)",
    re.DOTALL,
)
_BYTES = re.compile(
    rb"Received request |Generated response |Request \S{1,500} (?:details|JSON body): "
    rb"|Re(?:ceived request|quest) : |Generated response : "
)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*")

_END = {
    "received": re.compile(r"lora_request: [^\n]*\.\s*\Z"),
    "details": re.compile(r"(?:prompt_embeds shape: [^\n]*|\]|None)\.\s*\Z"),
    "output": re.compile(r"finish_reason: \w+\s*\Z"),
    "output_ids": re.compile(r"(?:\]|\)|None)\s*\Z"),
    "body": re.compile(r""),
}
"""End of a whole line of each kind."""

_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4})"""
_LITERAL = re.compile(rf"""'(?:[^'\\\n]|{_ESCAPE})*+'|"(?:[^"\\\n]|{_ESCAPE})*+\"""")
"""A text as `%r` writes it."""

_IDS = re.compile(r"(?:prompt|output)_token_ids: (?:\[([\d, ]*+)\]|\(([\d, ]*+)\))")
_NUMBER = re.compile(
    rf"\b(n|{'|'.join(NUMBERS)})=(-?\d{{1,18}}(?:\.\d{{0,30}})?(?:e-?\d{{1,3}})?)[,)]"
)
_GRAMMAR = re.compile(r"\b(?:structured_outputs|guided_decoding)=(?!None)")
_OTHER = re.compile(r"\b(?:bad_words=\[[^\]]|thinking_token_budget=\d|min_tokens=[1-9])")
_STOP = re.compile(r"\bstop=(\[[^\n]{0,10000}?\]), stop_token_ids=")
_FINISH = re.compile(r", finish_reason: (\w+)\s*\Z")


@dataclass(frozen=True)
class Event:
    """The request-related content of a line."""

    kind: str
    """`received`, `details`, `body`, `output` or `output_ids`."""
    key: str
    """The request's id, without the prefix of chats or completions."""
    stream: str | None
    """`streaming delta`, `streaming complete`, or None."""
    rest: str
    time: str | None
    """Time that a container's log driver wrote before the line; vLLM's own times have no year."""


def recognizes(sample: Sample) -> bool:
    lines = sample.head.split(b"\n")
    return any(_event(line.decode("utf-8", "replace")) for line in lines if _BYTES.search(line))


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    for file in files:
        limit = _longest(dataclasses.replace(file, meter=Meter()))
        yield from with_other_lines(_join(file, limit))


def _events(file: LogFile) -> Iterator[tuple[Place, Event | Reject | None]]:
    """The event or reject of every line; None for a line without one."""
    for number, line in file.lines():
        place = Place(file.name, number)
        if line is None:
            yield place, Reject("line_too_long", f"more than {LONGEST_LINE >> 20} MB", place)
            continue
        try:
            event = _event(line.decode()) if _BYTES.search(line, 0, 2000) else None
        except UnicodeDecodeError:
            yield place, Reject("not_utf8", "a line of a request", place)
            continue
        # vLLM writes the body of some kinds of requests before they have an id.
        if event is None or (not event.key and event.kind == "body"):
            yield place, None
        elif not event.key:
            yield place, Reject("no_id", "a request without its id", place)
        elif not _END[event.kind].search(event.rest):
            yield place, Reject("incomplete_line", "the line ends in the middle", place)
        else:
            yield place, event


def _event(line: str) -> Event | None:
    match = _EVENT.match(_COLOR.sub("", line))
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
        time=time[0] if time else None,
    )


@dataclass
class _Waiting:
    """The lines of one request so far."""

    place: Place
    time: str | None
    rows: int = 0
    size: int = 0
    logged: dict[str, str] = field(default_factory=dict)
    """Values by kind of line: `received`, `details`, `body`."""
    outputs: list[dict[str, str]] = field(default_factory=list)
    """One per choice: `text` and `ids` as logged."""
    wanted: int = 1
    """Number of requested outputs."""
    last_finish: str | None = None
    """Finish reason of the last piece of a stream; the line for the whole has none."""
    deltas: int = 0
    """Number of lines with pieces of a stream."""

    def add(self, event: Event) -> None:
        self.rows += 1
        if event.stream == "streaming delta":  # the line for the whole stream has the text
            self.deltas += 1
            finish = _FINISH.search(event.rest) if event.kind == "output" else None
            self.last_finish = finish[1] if finish and finish[1] != "None" else None
            return
        self.size += len(event.rest)
        if event.kind in ("output", "output_ids"):
            name = "ids" if event.kind == "output_ids" else "text"
            if name == "text" and self.outputs and "text" not in self.outputs[-1]:
                self.outputs[-1]["text"] = event.rest
            else:
                self.outputs.append({name: event.rest})
            return
        self.logged[event.kind] = event.rest
        if event.kind == "received":
            try:
                self.wanted = int(_sampling_of(event.rest).get("n", 1))
            except Reject:
                self.wanted = 1  # `parse` rejects it, with its place

    def is_whole(self) -> bool:
        """Whether all outputs were logged."""
        return len(self.outputs) >= self.wanted and "text" in self.outputs[-1]

    def record(self, limit: tuple[int, int]) -> Record | Reject:
        """The record of these lines, or their reject."""
        if not self.outputs and self.deltas:
            return Reject("stream_cut", "a stream without its end", self.place, self.rows)
        if not self.outputs:
            detail = "still running, given up, or --enable-log-outputs was off"
            return Reject("unmatched_request", detail, self.place, self.rows)
        if not self.logged.keys() & {"received", "details"}:
            return Reject("unmatched_response", "no request with its id", self.place, self.rows)
        payload = {
            **self.logged,
            "outputs": self.outputs,
            "last_finish": self.last_finish,
            "limit": limit,
            "time": self.time,
        }
        return Record(self.place, payload, self.rows)


def _join(file: LogFile, limit: tuple[int, int]) -> Iterator[Record | Reject | Place | None]:
    """Joins the lines of a file by request id, in order of the responses' ends.

    Lines without a request are given as places, between None.
    """
    waiting: OrderedDict[str, _Waiting] = OrderedDict()
    size = 0
    for place, event in _events(file):
        if event is None:
            yield place
            continue
        yield None
        if isinstance(event, Reject):
            yield event
            continue
        request = waiting.get(event.key)
        if request and (
            event.kind in request.logged
            or (request.outputs and event.kind in ("body", "details", "received"))
        ):  # an id that a client sent twice
            size -= request.size
            yield waiting.pop(event.key).record(limit)
        request = waiting.setdefault(event.key, _Waiting(place, event.time))
        size -= request.size
        request.add(event)
        size += request.size
        if request.outputs and request.is_whole():
            size -= request.size
            yield waiting.pop(event.key).record(limit)
        while size > WAITING:
            _, oldest = waiting.popitem(last=False)
            size -= oldest.size
            yield oldest.record(limit)
    for request in waiting.values():
        yield request.record(limit)


def _longest(file: LogFile) -> tuple[int, int]:
    """Length of the longest text or list of ids in a log, and how many have this length.

    `--max-log-len` cuts at a length; a log does not record what was cut.
    """
    length = count = 0
    for _, event in _events(file):
        try:
            held = _held(event) if isinstance(event, Event) else ()
        except Reject:
            continue  # its record is rejected, with its place
        for one in (len(value) for value in held if value):
            if one > length:
                length, count = one, 0
            count += one == length
    return length, count


def _held(event: Event) -> tuple[str | list[int] | None, ...]:
    if event.kind == "output_ids":
        return (_ids_of(event.rest),)
    if event.kind == "output":
        return _output_of(event.rest)[:2] if event.stream != "streaming delta" else ()
    return _prompt_of(event.rest) if event.kind in ("received", "details") else ()


def parse(record: Record) -> list[Exchange | Reject]:
    logged = record.payload
    received = logged.get("received", "")
    prompt_text, prompt_ids = _prompt_of(logged.get("details") or received)
    if prompt_text is None and prompt_ids is None:
        raise Reject("prompt_not_logged", "set VLLM_LOGGING_LEVEL=DEBUG")
    # --max-log-len cuts text and ids at the same length; R1's template ends a whole prompt.
    whole = prompt_text is None or prompt_text.rstrip().endswith(OPENINGS)
    if not whole and (prompt_ids is None or len(prompt_ids) == len(prompt_text or "")):
        raise Reject(
            "truncated_log",
            "the prompt does not end where an answer begins; start vLLM without --max-log-len",
        )
    sampling = _sampling_of(received)
    body = _body(logged.get("body"))
    metadata = take(body, "metadata", dict, "request") or {}
    shared: dict[str, Any] = {
        "place": record.place,
        "prompt_token_ids": prompt_ids,
        "prompt_text": prompt_text if prompt_ids is None else None,
        "model": take_text(body, "model", "request"),
        "session": take_text(metadata, "session_id", "metadata"),
        "user": take_text(body, "user", "request"),
        "tenant": take_text(metadata, "tenant", "metadata"),
        "route": take_text(metadata, "route", "metadata"),
        "time": take_time(logged, "time", "line"),
        **{name: sampling.get(name) for name in NUMBERS},
        "constraint": sampling.get("constraint") or constraint_of(body),
    }
    outcomes: list[Exchange | Reject] = []
    for number, output in enumerate(logged["outputs"]):
        try:
            outcomes.append(
                Exchange(choice=number, **shared, **_answered(output, logged, sampling))
            )
        except Reject as reject:
            outcomes.append(reject)
    return outcomes


def _answered(
    output: dict[str, str], logged: dict[str, Any], sampling: dict[str, Any]
) -> dict[str, Any]:
    """The fields of `Exchange` that one output has."""
    text, ids, finish = _output_of(output.get("text", ""))
    ids = first(ids, _ids_of(output.get("ids", "")))
    length, count = logged["limit"]
    # A list of ids as long as the longest text was cut with it; a single longest text need not be.
    if len(ids if ids is not None else text or "") == length and (ids is not None or count > 1):
        raise Reject(
            "truncated_log",
            "the response is as long as the longest text of the log; start vLLM without "
            "--max-log-len",
        )
    if finish == "streaming_complete":
        finish = logged["last_finish"] or ""
        if not finish:
            raise Reject("end_not_logged", "a stream's lines do not say how it ended")
    described = text is not None and text.startswith(DESCRIPTIONS)
    if described and ids is None:
        raise Reject("tool_calls_without_ids", "the log describes the calls")
    if not text and ids is None:
        raise Reject("empty_response")
    ended = finish_reason(finish)
    stop = sampling.get("stop", [])
    if stop is None and ids is None:
        raise Reject("incomplete_line", "stop strings that cannot be read")
    strings = tuple(string for string in stop or () if isinstance(string, str) and string)
    return {
        "completion_token_ids": ids,
        "content": None if described else text,
        "finish_reason": ended,
        "stop_strings": strings if ended == "stop" else (),
    }


def _body(line: str | None) -> dict[str, Any]:
    """The request as the client sent it.

    It only adds the sender, so one that was cut is ignored.
    """
    try:
        return parse_row(line.encode()) if line else {}
    except Reject:
        return {}


def _literal(text: str, begin: int) -> tuple[str | None, int]:
    """The text at `begin`, and where it ends."""
    if text.startswith("None", begin):
        return None, begin + 4
    match = _LITERAL.match(text, begin)
    try:
        if match is None:
            raise ValueError
        value = ast.literal_eval(match[0])
        value.encode()
    except UnicodeEncodeError:
        raise Reject("not_utf8", "a text holds half a surrogate pair") from None
    except (SyntaxError, ValueError):
        raise Reject("incomplete_line", "the text is not in vLLM's notation") from None
    return value, match.end()


def _ids_of(text: str, begin: int = 0) -> list[int] | None:
    """The token ids listed after `begin`, or None."""
    match = _IDS.search(text, begin)
    if match is None:
        return None
    try:
        ids = json.loads(f"[{(match[1] or match[2] or '').strip().rstrip(',')}]")
    except ValueError:
        raise Reject("incomplete_line", "an invalid list of ids") from None
    if not all(value < 2**31 for value in ids):
        raise Reject("wrong_type", "token_ids holds something other than token ids")
    return ids


def _prompt_of(rest: str) -> tuple[str | None, list[int] | None]:
    """Text and ids of the prompt in a `received` or `details` line."""
    if not rest.startswith("prompt: "):
        return None, None
    text, end = _literal(rest, len("prompt: "))
    return text, _ids_of(rest, end)


def _output_of(rest: str) -> tuple[str | None, list[int] | None, str]:
    """Text, ids and finish reason in an `output` line."""
    if not rest.startswith("output: "):
        raise Reject("incomplete_line", "a response without its output")
    text, end = _literal(rest, len("output: "))
    finish = _FINISH.search(rest, end)
    return text, _ids_of(rest, end), finish[1] if finish else ""


def _sampling_of(rest: str) -> dict[str, Any]:
    """n, the sampling parameters and the stop strings of a `received` line."""
    # After the prompt, which may hold anything.
    begin = _literal(rest, len("prompt: "))[1] if rest.startswith("prompt: ") else 0
    found: dict[str, Any] = {}
    for name, number in _NUMBER.findall(rest[begin : begin + 2000]):
        found.setdefault(name, int(number) if name == "n" and number.isdigit() else float(number))
    for constraint, shown in (("other_sampling", _OTHER), ("grammar", _GRAMMAR)):
        if shown.search(rest, begin):
            found["constraint"] = constraint
    stop = _STOP.search(rest, begin)
    if stop:
        try:
            found["stop"] = ast.literal_eval(stop[1])
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            found["stop"] = None  # the strings were logged but cannot be read
    return found
