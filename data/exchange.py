"""Exchange: one logged request and its response, independent of the log format.

A format (formats/) first cuts a log into `Record`s, then parses each into `Exchange`s. Every row of
a log belongs to exactly one `Record` or `Reject`, and every record becomes at least one `Exchange`
or `Reject`. Ingestion checks both, so that no row is lost silently.

    Record(Place("log.jsonl", 1), b'{"request": ...}')      # parse(record) -> [Exchange(...)]
"""

from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import BaseModel

CONVERSATION, USER, FIRST_QUESTION = SESSION_KINDS = ("conversation", "user", "first_question")
"""What a session's name identifies, in order of preference: the logged conversation, the logged
user, or the exchanges that begin with the same first question."""


@dataclass(frozen=True)
class Place:
    """Position of a row in the log."""

    file: str
    line: int
    """1-based line number; for JSON arrays and tables, the row number."""


@dataclass(frozen=True)
class Record:
    """One logged exchange, not yet parsed: cheap to create and to send to a worker."""

    place: Place
    payload: Any
    """Input of the format's `parse`: bytes of a JSON row, several rows, or a table row. Must be
    picklable."""
    rows: int = 1
    """Number of log rows in the record; 0 if all of them are also in other records."""


@dataclass(frozen=True)
class Exchange:
    """One request and the target's response. Fields that were not logged are None."""

    place: Place
    choice: int = 0
    """Index among the response's choices, if `n` is above 1."""
    call: int = 0
    """Number of the outcome in its row, if the row has several calls."""
    messages: list[dict[str, Any]] | None = None
    """The request's conversation, as OpenAI message objects."""
    template_arguments: dict[str, Any] = field(default_factory=dict)
    """Chat template arguments other than the messages (tools, `chat_template_kwargs`, ...)."""
    prompt_token_ids: list[int] | None = None
    """All tokens before the response, as the engine logged them."""
    prompt_text: str | None = None
    """The prompt as the engine tokenized it, with special tokens as text, if neither messages nor
    ids were logged."""
    prompt_is_raw: bool = False
    """Whether `prompt_text` came from the client rather than a template. The engine's tokenizer
    then adds the BOS token, as for /generate and /v1/completions."""
    completion_is_raw: bool = False
    """Whether `content` is the engine's raw, unparsed output, as from /v1/completions."""
    completion_token_ids: list[int] | None = None
    """All tokens of the response including the EOS token, as the engine logged them."""
    reasoning: str | None = None
    """The response up to `</think>`, if it was logged separately from the content."""
    content: str | None = None
    """Text of the response; the part after `</think>` if the reasoning was logged separately."""
    tool_calls: list[dict[str, Any]] | None = None
    """Calls that the engine parsed from the response, as OpenAI objects."""
    finish_reason: str = "stop"
    """`stop` or `length`."""
    end_is_assumed: bool = False
    """Whether no end was logged; a token count then shows whether there was an EOS token."""
    token_limit: float | None = None
    """Limit on the response's tokens, if neither an end nor a count was logged."""
    stop_reason: int | str | None = None
    """Stop string, or id of the stop token, that ended the response instead of the EOS token. A
    stop string is in the text only if the request asked to include it."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings of the request, if the reason for stopping was not logged."""
    prompt_tokens: int | None = None
    """Number of tokens before the response, as the engine counted them."""
    completion_tokens: int | None = None
    """Number of tokens in the response, as the engine counted them."""
    model: str | None = None
    response_id: str | None = None
    """Id that the engine gave the response."""
    log_id: str | None = None
    """Id that the log gave the row: of an observation, span or request."""
    joined_by_sglang: list[dict[str, Any]] | None = None
    """`messages` as SGLang joins their text parts, if that differs from vLLM."""
    session: str | None = None
    """Id of the conversation."""
    trace: str | None = None
    """Id of a conversation or of this call alone: which, the other rows of the log show."""
    user: str | None = None
    """Id of the end user, shared by all of their conversations."""
    tenant: str | None = None
    route: str | None = None
    time: float | None = None
    """Unix seconds."""
    seconds: float | None = None
    """Duration of the request, from its arrival to the end of the response."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    constraint: str | None = None
    """What shaped the tokens besides the fields above: `grammar` or `other_sampling`
    (formats/sampling.py)."""
    grammar: str | None = None
    """The grammar as JSON of one field of vLLM's StructuredOutputsParams, if `constraint` is
    `grammar` and the log has one that vLLM compiles."""
    regenerate: bool = False
    """Whether the response contained personal data. If so, it now contains surrogates, and the
    target must generate a new response before training."""


class Sums(BaseModel):
    """Base class for counts and `Counter`s that are summed over workers."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{name: value + getattr(other, name) for name, value in vars(self).items()}
        )


class Reject(Exception):
    """One or more log rows (`rows`) that cannot become a training sequence.

    `reason` is a stable code that summaries count. `detail` describes one row and never quotes
    customer text.

    - not a valid row of a known format: `not_json`, `not_utf8`, `not_an_object`, `unknown_format`,
      `wrong_type`, `duplicate_key`, `line_too_long` (above 64 MB), `nested_too_deeply` (above 100)
    - no exchange to learn from: `incomplete_pair`, `no_choices`, `no_messages`, `no_response`,
      `empty_prompt`, `empty_response`
    - a request or response that cannot be joined with its other half: `no_id`,
      `unmatched_request`, `unmatched_response`, `ambiguous_id`
    - the end of the response is missing: `stream_cut`, `not_finished`, `partial_response`,
      `stream_not_kept`
    - text or ids are missing: `content_not_logged`, `text_not_logged`, `no_token_ids`,
      `prompts_only`, `redacted`, `reasoning_missing`
    - the log was cut, and the detail names the option that prevents it: `truncated`,
      `truncated_log`, `incomplete_line`, `text_log`; a compressed file lacks its end: `file_cut`
    - the engine's input cannot be rebuilt: `tool_calls_without_ids`, `not_text`,
      `own_chat_template`, `prompt_not_messages`, `template_refuses`
    - does not fit the target: `token_out_of_vocabulary`, `longer_than_target`,
      `sampling_out_of_range`
    - set aside, without counting towards `traffic.max_reject_fraction`: sampled differently
      (`beam_search` and, with probabilistic drafts or to be regenerated, `grammar`, `min_p`,
      `penalties`, `other_sampling`), personal data that cannot be replaced
      (`privacy_regenerate`, `privacy_ids_only`), and rows that are not part of the traffic
      (`error_response`, `not_a_generation`, `cached`: answered from a gateway's cache,
      `duplicate`: a copy of another row's response (ingest/copies.py), `deleted` at its source,
      `weighted_out`, `other_model`, `beyond_first`)
    - a whole log is refused for one: `deletes_rows` (formats/change_events.py)
    """

    def __init__(self, reason: str, detail: str = "", place: Place | None = None, rows: int = 1):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail
        self.place = place
        self.rows = rows
        self.model: str | None = None
        self.is_request = True
        """False for rows that a log has besides requests, such as spans around calls."""


HALVES = frozenset({"unmatched_request", "unmatched_response", "stream_cut"})
"""Reasons for rejecting rows without their other half, or streams without their end."""

DELETES = "deletes_rows"
"""Reason for rejecting an event that deletes a row, whose text may be elsewhere in the log."""

CACHED, DUPLICATE = "cached", "duplicate"
"""Reasons for responses that a gateway's cache served, and for copies of a logged response."""

BEYOND_FIRST = "beyond_first"
"""Replaces the reasons in `HALVES` if the other half may be in an unread part of the log."""

BEAM_SEARCH = "beam_search"
"""Constraint of responses whose tokens are not samples, so that nothing can be replayed."""

SAMPLED_OTHERWISE = frozenset({"grammar", "min_p", "penalties", "other_sampling", BEAM_SEARCH})
"""Constraints: what besides temperature, top_k and top_p determined a response's tokens."""

NOT_GENERATIONS = frozenset({"error_response", "not_a_generation"})
"""Reasons for rows that an endpoint logs besides generations: failed requests, other APIs, spans
and log lines."""

ASIDE = SAMPLED_OTHERWISE | {
    "other_model",
    *NOT_GENERATIONS,
    CACHED,
    DUPLICATE,
    "deleted",
    "weighted_out",
    BEYOND_FIRST,
}
"""Reasons that do not count towards `traffic.max_reject_fraction`; the summary counts them."""
