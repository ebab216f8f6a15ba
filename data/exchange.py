"""An exchange: one logged request and its response, whatever format it was logged in; and what comes before and instead of one.

A format (formats/) first cuts a log into `Record`s, then parses each into `Exchange`s. Every row of a log goes into exactly one
`Record` or `Reject`, and every record becomes at least one `Exchange` or `Reject`, which is what lets the ingest check that
nothing is lost in silence.

    Record(Place("log.jsonl", 1), b'{"request": ...}')      # parse(record) -> [Exchange(...)]
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Place:
    """Where a row stood in the log."""

    file: str
    line: int
    """From 1: the line, or where rows are no lines (JSON arrays, Parquet), the how-manieth row."""


@dataclass(frozen=True)
class Record:
    """One exchange as it was logged, still to be parsed: cheap to make, and sent to the process that parses it."""

    place: Place
    payload: Any
    """Whatever the format's `parse` takes: bytes of a JSON row, a pair of them, a row of a table. Must pickle."""
    rows: int = 1
    """How many rows of the log it used up."""


@dataclass(frozen=True)
class Exchange:
    """One request and the response that the target gave to it. What a log does not say is None."""

    place: Place
    choice: int = 0
    """Which of the response's choices it is (`n` above 1)."""
    messages: list[dict[str, Any]] | None = None
    """The conversation as requested, OpenAI's message objects."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """What the request hands to the chat template beside the messages (tools, `chat_template_kwargs`, ...)."""
    prompt_token_ids: list[int] | None = None
    """Every token before the response, as the engine logged them."""
    prompt_text: str | None = None
    """The prompt as it went into the engine's tokenizer, special tokens as text, where neither messages nor ids were logged."""
    prompt_is_raw: bool = False
    """Whether `prompt_text` came from the client instead of a template, so that the engine's tokenizer opened it (R1: its begin
    token), as it does for /generate and /v1/completions."""
    completion_is_raw: bool = False
    """Whether `content` is all that the engine wrote, as /v1/completions returns it: no parser has taken anything out of it."""
    completion_token_ids: list[int] | None = None
    """Every token of the response, its end token included, as the engine logged them."""
    reasoning: str | None = None
    """The response up to `</think>`, where it was logged apart from the content."""
    content: str | None = None
    """The response's text; behind `</think>` where the reasoning was logged apart."""
    tool_calls: list[dict[str, Any]] | None = None
    """The calls that the engine parsed out of the response, OpenAI's objects."""
    finish_reason: str = "stop"
    """`stop` or `length`."""
    stop_reason: int | str | None = None
    """What ended the response other than the end token: a stop token's id, or a stop string (which is not in the text, unless
    the request asked for that)."""
    stop_strings: tuple[str, ...] = ()
    """The stop strings of the request, where the log does not say what ended the response."""
    completion_tokens: int | None = None
    """How many tokens the engine counted in the response."""
    model: str | None = None
    session: str | None = None
    tenant: str | None = None
    route: str | None = None
    time: float | None = None
    """Unix seconds."""
    temperature: float | None = None
    top_p: float | None = None
    weight: float = 1.0
    regenerate: bool = False
    """Whether the response held personal data: surrogates stand in it, and the target has to answer anew before it is learned from."""


class Reject(Exception):
    """A row, or `rows` of them, that cannot become a training sequence.

    `reason` is a stable code that summaries count; `detail` says more for one row and never repeats the customer's text.
    """

    def __init__(self, reason: str, detail: str = "", place: Place | None = None, rows: int = 1):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.place = place
        self.rows = rows


HALVES = frozenset({"unmatched_request", "unmatched_response", "stream_cut"})
"""Reasons of rows whose other half, or whose stream's end, is not there."""

BEYOND_FIRST = "beyond_first"
"""Reason in their place where a quick look read only the first rows of each file: the other half may well be behind them."""

ASIDE = frozenset({"other_model", "not_a_generation", "cache_hit", "weighted_out", BEYOND_FIRST})
"""Reasons of rows that nobody asked for: another model's, what a log of many things holds beside its exchanges, answers that no
engine gave, what a data set marks as nothing to learn from, what a quick look cut. They are counted, and do not count towards
`traffic.max_reject_fraction`."""
