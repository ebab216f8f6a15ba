"""vLLM's DEBUG request log: token ids or texts, joined by request id.

    DEBUG 07-01 12:00:00 [...] Request chatcmpl-17 details: prompt: '<｜User｜>...',
      prompt_token_ids: [0, ...], prompt_embeds shape: None.
    INFO 07-01 12:00:00 [...] Received request chatcmpl-17: params: SamplingParams(n=1, ...),
      lora_request: None.
    DEBUG 07-01 12:00:09 [...] Generated response chatcmpl-17 details: output_token_ids: [301, ...]
    INFO 07-01 12:00:09 [...] Generated response chatcmpl-17: output: 'Paris.', finish_reason: stop

Texts are Python literals (`%r`), so every event is one line.

To get this log, run `VLLM_LOGGING_LEVEL=DEBUG vllm serve MODEL --enable-log-requests
--enable-log-outputs` without `--max-log-len` (tested with 0.32). Releases of 0.11 log a chat's
prompt as text alone. A streamed response is read as text, from the last line of its stream, which
has what the model wrote before parsers changed it, or from its deltas if that line is
`<streaming_complete: 27 tokens>` (0.11, serving_chat.py): then no parser has changed them, and the
count confirms them. Up to 0.11.0 one line has the prompt, as text or ids, and the parameters. Other
exchanges without token ids are rejected as `no_token_ids`: all in later logs at level INFO. A
gateway log with `return_token_ids` has no such limitation.

vLLM's times have no year, so times are read only from logs saved with `docker logs -t` or
`kubectl logs --timestamps`, from the runtime's own files (Docker's `json-file`, CRI), and from the
records of collectors that hold the lines: journald, Loki, Vector, Filebeat, CloudWatch, Google
Cloud, Datadog, Splunk, OpenTelemetry. Session, user and tenant come from the line with the JSON
body.
"""

import ast
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from outrider.data.exchange import Exchange, Place, Record, Reject
from outrider.data.files.packing import CUT_MARK
from outrider.data.files.rows import FILE_CUT, FileSample, parse_row, with_other_lines
from outrider.data.files.sources import LONGEST_LINE, LogFile, read_ahead
from outrider.data.formats.calls.finish_reasons import end_by_limit, finish_reason
from outrider.data.formats.calls.sampling import NUMBERS, constraint_of
from outrider.data.formats.fields import take, take_ids, take_text, take_time
from outrider.data.formats.rows.engine_lines import LEFT_OUT, LINES_LEFT_OUT, engine_lines

RETURN_IDS = "log token ids through the API (`return_token_ids`)"
FIX = f"set VLLM_LOGGING_LEVEL=DEBUG, or {RETURN_IDS}"
NO_STREAM = f"the lines of the stream's deltas are not in the log: {RETURN_IDS}"

CUT = "cut"
"""Replaces a piece of a stream's text whose line lacks its end."""

PARSED = "[reasoning: "
"""Before the reasoning in the line of a delta that a parser has changed."""

UNSEEN = 4
"""Tokens of a stream that may have no line: deltas without text are not logged, and a character has
up to four tokens."""

MOST_WAITING = 2000
"""Maximum number of requests kept waiting for a response. Some never get one: if the client
disconnects, no response is logged."""

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_EVENT = re.compile(
    r"(?P<head>[^'\"{]{0,300}?)(?P<verb>Received request|Generated response|Request) "
    r"(?P<id>[^\s'\"(),:]{1,500})(?P<stream> \(streaming \w+\))?"
    r"(?P<what> details| JSON body)?: (?P<rest>.*)",
    re.DOTALL,
)
_BYTES = re.compile(rb"Received request |Generated response |Request \S{1,500} (?:details|JSON)")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*")

_TEXT = re.compile(r"""(?:prompt|output): ('(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")""")
_STREAM = re.compile(r"output: '<streaming_complete: (\d{1,9}) tokens>'")
"""Replaces a stream's text in its last line if no parser has collected it."""
_ESCAPE = re.compile(r"\\(?:x..|u.{4}|U.{8}|.)")
_IDS = re.compile(r"(?:prompt|output)_token_ids: (\[[\d, ]*+\])")
_NO_TEXT = re.compile("prompt: None")
_PARAMETERS = re.compile(
    r"params: SamplingParams\((.*)\)(?:, prompt_token_ids: [^\n]*)?, lora_request: [^\n]*\.\s*\Z",
    re.DOTALL,
)
_NUMBER = re.compile(
    rf"\b({'|'.join(NUMBERS)})=(-?\d{{1,18}}(?:\.\d{{0,30}})?(?:e-?\d{{1,3}})?)(?:,|\Z)"
)
_CHOICES = re.compile(r"params: SamplingParams\(n=([1-9]\d{0,3}),")
_LIMIT = re.compile(r"\bmax_tokens=(\d{1,9})\b")
_GRAMMAR = re.compile(r"\bstructured_outputs=(?!None)")
_OTHER = re.compile(r"\b(?:bad_words=\[[^\]]|thinking_token_budget=\d|min_tokens=[1-9])")
_FINISH = re.compile(r", finish_reason: (\w+)(?: \[repeated \d+x across cluster\].*)?\s*\Z")
"""The end of a response's line; Ray adds how many similar lines it has not printed."""

KINDS = {
    ("Received request", None): "received",
    ("Request", " details"): "details",
    ("Request", " JSON body"): "body",
    ("Generated response", " details"): "ids",
    ("Generated response", None): "output",
}
"""Kinds of lines, by the groups `verb` and `what` of `_EVENT`."""


@dataclass
class _Waiting:
    """The lines of one request so far."""

    place: Place
    time: str | None
    """Time that a container's log driver wrote before the first line."""
    rows: int = 0
    longest: int = 0
    """Length to which the texts and lists of ids in the files of the lines may have been cut."""
    lacks_lines: bool = False
    """Whether these files lack lines that journalctl left out."""
    lines: dict[str, str] = field(default_factory=dict)
    """The `rest` of each line of the request, by kind."""
    outputs: list[dict[str, str]] = field(default_factory=list)
    """The same for the response lines of each choice."""
    deltas: io.StringIO = field(default_factory=io.StringIO)
    """The pieces of a stream's text, as literals, one per line."""
    streamed: int = 0
    """Token ids in the lines of a stream's deltas."""
    end: str | None = None
    """The finish reason in the line of a delta, if one has it."""

    def add(self, kind: str, rest: str) -> None:
        """Adds a line to the request or to a choice."""
        if kind == "received":
            self._add_received(rest)
        elif kind not in ("ids", "output"):
            self.lines[kind] = rest
        elif self.outputs and kind not in self.outputs[-1] and "output" not in self.outputs[-1]:
            self.outputs[-1][kind] = rest
        else:
            self.outputs.append({kind: rest})

    def _add_received(self, rest: str) -> None:
        """Adds the line of a request, which before 0.11.1 has the prompt before its parameters."""
        prompt = _TEXT.match(rest) or _NO_TEXT.match(rest)
        if prompt is not None:
            ids = _IDS.search(rest, prompt.end())
            self.lines["details"] = ", ".join([prompt[0], *([ids[0]] if ids else [])])
            rest = rest[prompt.end() :].removeprefix(", ")
        self.lines["received"] = rest

    def add_delta(self, kind: str, rest: str) -> None:
        """Adds a line of a stream's delta."""
        self.streamed += _lengths(rest)[1]  # before 0.11.2, ids are in the line of the output
        if kind == "ids":
            return
        piece = _TEXT.match(rest)
        self.deltas.write(f"{piece[1] if piece else CUT}\n")
        finish = _FINISH.search(rest)
        if finish and finish[1] != "None":
            self.end = finish[1]

    def record(self) -> Record | Reject:
        """Returns the record of these lines, or a `Reject`."""
        if not self.outputs:
            detail = "still running, aborted, or logged without --enable-log-outputs"
            return Reject("unmatched_request", detail, self.place, self.rows)
        if not self.lines.keys() & {"received", "details"}:
            return Reject("unmatched_response", "no request with this id", self.place, self.rows)
        payload = {
            "lines": self.lines,
            "outputs": self.outputs,
            "longest": self.longest,
            "lacks_lines": self.lacks_lines,
        }
        payload |= {"time": self.time, "deltas": self.deltas.getvalue()}
        payload |= {"streamed": self.streamed, "end": self.end}
        return Record(self.place, payload, self.rows)


def recognizes(sample: FileSample) -> bool:
    return any(_event(line) for line in sample.head.split(b"\n"))


def _event(line: bytes) -> re.Match[str] | None:
    if not _BYTES.search(line, 0, 2000):
        return None
    return _EVENT.match(_COLOR.sub("", line.decode("utf-8", "replace")))


def records(files: Sequence[LogFile], scratch: Path) -> Iterator[Record | Reject]:
    yield from with_other_lines(_join(files))


def _join(files: Sequence[LogFile]) -> Iterator[Record | Reject | Place | None]:
    """Joins the lines of rotated files by request id, in order of completion.

    Also yields None for each line of a request, and the place of each unrelated line.
    """
    waiting: dict[str, _Waiting] = {}
    for file in read_ahead(files):
        with file.keep_open():
            limits = _limits(file)
            for number, line in file.count_rows_read(engine_lines(file)):
                place = Place(file.name, number)
                if line is None:
                    yield Reject("line_too_long", f"more than {LONGEST_LINE >> 20} MB", place)
                    continue
                if line == LEFT_OUT:
                    yield Reject("truncated", LINES_LEFT_OUT, place)
                    continue
                if line.endswith(CUT_MARK):
                    yield Reject("file_cut", FILE_CUT, place)
                    continue
                event = _event(line)
                kind = KINDS.get((event["verb"], event["what"])) if event else None
                if event is None or kind is None:
                    yield place
                    continue
                yield None
                yield from _joined(
                    waiting=waiting, event=event, kind=kind, place=place, limits=limits
                )
    for request in waiting.values():
        yield request.record()


class _Limits(NamedTuple):
    """What a file's lines may lack."""

    longest: int
    """Length to which `--max-log-len` may have cut texts and lists of ids; 0: they were not cut."""
    lacks_lines: bool
    """Whether journalctl left out lines."""


def _limits(file: LogFile) -> _Limits:
    """Returns what a file's lines may lack.

    `--max-log-len` cuts texts and lists to the same length, so that is their longest. One alone of
    a length that nobody would choose was not cut.
    """
    longest = 0
    count = 0
    lacks_lines = False
    for _, line in engine_lines(file):
        lacks_lines = lacks_lines or line == LEFT_OUT
        event = _event(line) if line else None
        for length in _lengths(event["rest"]) if event else ():
            if length > longest:
                longest = length
                count = 0
            count += length == longest
    is_chosen = longest % 10 == 0 or longest % 16 == 0
    return _Limits(longest if count > 1 or is_chosen else 0, lacks_lines)


def _joined(
    waiting: dict[str, _Waiting], event: re.Match[str], kind: str, place: Place, limits: _Limits
) -> Iterator[Record | Reject]:
    """Adds a line to its request; yields the requests that it completes."""
    key = event["id"].removeprefix("chatcmpl-")
    request = waiting.get(key)
    again = request and (kind in request.lines or (request.outputs and kind == "details"))
    if request and again:  # an id that a client sent twice
        yield waiting.pop(key).record()
    time = _TIME.match(event["head"])
    request = waiting.setdefault(key, _Waiting(place, time[0] if time else None))
    request.rows += 1
    request.longest = max(request.longest, limits.longest)
    request.lacks_lines = request.lacks_lines or limits.lacks_lines
    if event["stream"] != " (streaming delta)":
        request.add(kind, event["rest"])
    else:
        request.add_delta(kind, event["rest"])
    choices_match = _CHOICES.match(request.lines.get("received", ""))
    count = int(choices_match[1]) if choices_match else 1
    if len(request.outputs) >= count and "output" in request.outputs[-1]:
        yield waiting.pop(key).record()
    if len(waiting) > MOST_WAITING:
        yield waiting.pop(next(iter(waiting))).record()


def _lengths(rest: str) -> tuple[int, int]:
    """Returns the lengths of a line's text, in characters, and of its list of token ids."""
    text = _TEXT.match(rest)
    characters = 0
    if text:
        in_quotes = _ESCAPE.sub(".", text[1])
        characters = len(in_quotes) - len("''")
    ids = _IDS.search(rest, text.end() if text else 0)
    tokens = ids[1].count(",") + 1 if ids else 0
    return characters, tokens


def parse(record: Record) -> list[Exchange | Reject]:
    logged = record.payload
    lines = record.payload["lines"]
    if "details" not in lines and logged["lacks_lines"]:
        raise Reject("truncated", LINES_LEFT_OUT)
    prompt = _prompt(lines.get("details"), logged["longest"])
    parameters = _PARAMETERS.match(lines.get("received", ""))
    if parameters is None:
        raise Reject("incomplete_line", "no sampling parameters, or a truncated line")
    sampling: dict[str, float] = {}
    for name, number in _NUMBER.findall(parameters[1][:2000]):
        sampling.setdefault(name, float(number))  # later matches may be in a stop string
    body = _body(lines.get("body"))
    constraint = "other_sampling" if _OTHER.search(parameters[1]) else constraint_of(body)
    metadata = take(body, "metadata", dict, "request") or {}
    shared: dict[str, Any] = {
        "place": record.place,
        **prompt,
        "model": take_text(body, "model", "request"),
        "session": take_text(metadata, "session_id", "metadata"),
        "user": take_text(body, "user", "request"),
        "tenant": take_text(metadata, "tenant", "metadata"),
        "route": take_text(metadata, "route", "metadata"),
        "time": take_time(logged, "time"),
        **{name: sampling.get(name) for name in NUMBERS},
        "constraint": "grammar" if _GRAMMAR.search(parameters[1]) else constraint,
    }
    outcomes: list[Exchange | Reject] = []
    for number, output in enumerate(logged["outputs"]):
        try:
            finish = _FINISH.search(output.get("output", ""))
            if finish and finish[1] == "streaming_complete":
                answer = _streamed(logged, parameters[1])
            else:
                answer = _answer(output, finish[1] if finish else None, logged["longest"])
            outcomes.append(Exchange(choice=number, **answer, **shared))
        except Reject as reject:
            outcomes.append(reject)
    return outcomes


def _prompt(details: str | None, longest: int) -> dict[str, Any]:
    """Returns the prompt's ids, or its text if the line has no ids (0.11)."""
    if details is None:
        raise Reject("no_token_ids", FIX)
    if _IDS.search(details):
        return {"prompt_token_ids": _ids_of(details, longest)}
    text = _TEXT.match(details)
    if text is None:
        raise Reject("no_token_ids", RETURN_IDS)
    return {"prompt_text": _text(text[1], longest)}


def _answer(output: dict[str, str], reason: str | None, longest: int) -> dict[str, Any]:
    """Returns the ids and end of a response that was not streamed."""
    ended = finish_reason(reason)
    # A prefix of a response that reached its length limit is itself such a response, so cut ids are
    # accepted.
    # Before 0.11.2, the ids are in the line of the output.
    line = output.get("ids") or output.get("output", "")
    ids = _ids_of(line, longest if ended == "stop" else 0)
    return {"completion_token_ids": ids, "finish_reason": ended}


def _streamed(logged: dict[str, Any], parameters: str) -> dict[str, Any]:
    """Returns the text and end of a streamed response, and its count of tokens if that is logged.

    A delta without text is not logged, so the last one may lack the finish reason.
    """
    outputs = logged["outputs"]
    output = outputs[0].get("output", "")
    limit_match = _LIMIT.search(parameters)
    limit = float(limit_match[1]) if limit_match else None
    if len(outputs) > 1:
        raise Reject("no_token_ids", NO_STREAM)
    complete = _STREAM.match(output)
    if complete is not None:
        if not logged["deltas"]:
            raise Reject("no_token_ids", NO_STREAM)
        used = int(complete[1])
        pieces = logged["deltas"].split("\n")[:-1]
        return {
            "content": "".join(_text(piece, logged["longest"]) for piece in pieces),
            "completion_is_raw": True,
            "completion_tokens": used,
            "finish_reason": finish_reason(end_by_limit(limit, used)),
        }
    whole = _TEXT.match(output)
    if whole is None:
        raise Reject("incomplete_line", "a text without its end, or damaged")
    if PARSED in whole[1]:
        raise Reject("no_token_ids", f"a parser has changed the stream's text: {RETURN_IDS}")
    # Near the limit the response counts as cut, so that no end of text is invented. Without the
    # deltas (--no-enable-log-deltas), it has at most as many tokens as bytes.
    most = logged["streamed"] or len(whole[1].encode("utf-8", "replace"))
    ended = logged["end"] or end_by_limit(limit, most + UNSEEN)
    return {
        "content": _text(whole[1], logged["longest"]),
        "completion_is_raw": True,
        "finish_reason": finish_reason(ended),
    }


def _text(literal: str, longest: int) -> str:
    """Returns the text that a Python literal spells.

    A text of the length to which the log's texts may have been cut (`longest`) is rejected.
    """
    try:
        text = ast.literal_eval(literal)
    except (SyntaxError, ValueError):
        raise Reject("incomplete_line", "a text without its end, or damaged") from None
    if 0 < longest <= len(take({"text": text}, "text", str, "line")):
        detail = "as long as the log's longest text, so it may be cut: start vLLM without"
        raise Reject("truncated_log", f"{detail} --max-log-len")
    assert isinstance(text, str)
    return text


def _ids_of(rest: str, longest: int) -> list[int]:
    """Returns the token ids of a line.

    A list of the length to which the log's lists may have been cut (`longest`) is rejected.
    """
    text = _TEXT.match(rest)
    ids_match = _IDS.search(rest, text.end() if text else 0)
    if ids_match is None:
        raise Reject("no_token_ids", RETURN_IDS)
    try:
        ids = take_ids({"token_ids": json.loads(ids_match[1])}, "token_ids", "line") or []
    except ValueError:
        raise Reject("incomplete_line", "an invalid list of ids") from None
    if 0 < longest == len(ids):
        raise Reject("truncated_log", "the list of ids was cut: start vLLM without --max-log-len")
    return ids


def _body(line: str | None) -> dict[str, Any]:
    """Returns the client's JSON body, which is optional; empty if missing or cut."""
    try:
        return parse_row(line.encode()) if line else {}
    except Reject:
        return {}
