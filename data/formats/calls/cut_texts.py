"""Marks of texts that producers cut, and of bodies that they stored elsewhere.

    check_whole(text, "row.response")       # a `Reject` with the option that keeps the text whole
    check_complete(row)                     # a `Reject` if a body lacks its end
    check_stored(row)                       # a `Reject` if a body is an object in a bucket

LiteLLM cuts long strings in its database and in what it prints, and whole fields for loggers with
small limits (in LiteLLM: constants.py, spend_tracking_utils.py, _logging.py, custom_logger.py,
azure_sentinel.py). Datadog's SDKs drop the texts of large spans (dd-trace-py,
llmobs/_constants.py). The marks are these files' literals with a number, so that a customer who
only writes about truncation is not rejected.
"""

import re
from typing import Any, NoReturn

from outrider.data.exchange import Reject
from outrider.data.formats.rows.embedded import plain_text
from outrider.data.formats.rows.engine_lines import JOURNALD, LINES_LEFT_OUT
from outrider.data.formats.rows.paths import find_field

CALLBACK = "log with a callback to files, S3, GCS or Azure instead"

DATABASE = f"LiteLLM cut it in its database: set MAX_STRING_LENGTH_PROMPT_IN_DB, or {CALLBACK}"

ENVOYS = ("as_bytes", "as_string", "asBytes", "asString")
"""Keys of a body in what Envoy taps."""

ENVOY = (
    "Envoy cut a body: raise max_buffered_rx_bytes and max_buffered_tx_bytes of its tap (by default"
    " 1 KiB)"
)

REMEDIES = {
    "Truncation is a stdout logging safeguard": "LiteLLM cut it in its printed log: set"
    f" MAX_STRING_LENGTH_STDOUT_LOG, or {CALLBACK}",
    "(litellm_truncated ": DATABASE,
    "...truncated by litellm, this logger does not support large content": "the LiteLLM logger that"
    f" wrote this row (Datadog's, Splunk's) does not keep large fields: {CALLBACK}",
    "[truncated by litellm]...": "LiteLLM's Azure Sentinel logger cut it to the column's limit: set"
    f" AZURE_SENTINEL_TRUNCATE_BYTES, or {CALLBACK}",
    "[This value has been dropped because this span's size exceeds": "Datadog's SDK dropped the"
    " texts of a span above its limit: log requests and responses at a gateway",
}
"""What to do about each mark; the first one in a text counts."""

HIDDEN = {
    "__REDACTED__": "OPENINFERENCE_HIDE_INPUTS or its like was on",
    "<masked due to failed mask function>": "Langfuse's mask function raised an error: correct it",
    "<fully masked due to failed mask function>": "Langfuse's mask function raised an error:"
    " correct it",
}
"""What OpenInference and Langfuse's SDKs write instead of a text that they are to hide, and why
(OpenInference's configuration; langfuse-python, _client/span.py; langfuse-js, span processor)."""

REPLACED = "<truncated due to size exceeding limit>"
TOO_LARGE = (
    "Langfuse's SDK replaced a value of an event above 1 MB: set LANGFUSE_MAX_EVENT_SIZE_BYTES, or"
    " log requests and responses at a gateway"
)

SCRUBBED = re.compile(r"\[Scrubbed due to '[^\]\n]{1,200}'\]\Z")
"""What Logfire writes instead of a value in which it finds a word such as `password`
(logfire/_internal/scrubbing.py)."""

MARKED = ("litellm", "this span's size")
"""What every mark has a part of."""

STORED = ("input.input_body_s3_path", "output.output_body_s3_path")
"""Paths of the names of such objects: Bedrock's bodies above 100 KB."""

JOIN = "write openai_pairs, {request, response}, from the two objects of each row"

_MARK = re.compile(
    r"\(litellm_truncated (?:skipped )?\d+ chars"
    r"|\.\.\.truncated by litellm, this logger does not support large content\Z"
    r"|\A\[truncated by litellm\]\.\.\."
    r"|\A\[This value has been dropped because this span's size exceeds the \d+MB size limit\.\]\Z"
)


def check_whole(value: Any, where: str) -> None:
    """Rejects a text, or the texts in a list or object, with a mark of truncation or hiding."""
    if isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, dict):
        if value.get("litellm_truncated") is True:
            raise Reject("truncated", f"{where}: {DATABASE}")
        if value.get("truncated") is True and not value.keys().isdisjoint(ENVOYS):
            raise Reject("truncated", f"{where}: {ENVOY}")
        for inner in value.values():
            check_whole(inner, where)
    elif isinstance(value, list):
        for inner in value:
            check_whole(inner, where)


def _check_text(text: str, where: str) -> None:
    if text in HIDDEN:
        raise Reject("redacted", f"{where}: {HIDDEN[text]}")
    if text == REPLACED:
        raise Reject("truncated", f"{where}: {TOO_LARGE}")
    if SCRUBBED.match(text):
        raise Reject("redacted", f"{where}: Logfire scrubbed it; allow it by a scrubbing callback")
    mark = _MARK.search(text) if any(part in text for part in MARKED) else None
    if mark:
        _refuse(text[mark.start() : mark.end() + 200], where)


def check_complete(row: dict[str, Any]) -> None:
    """Rejects a row with a text that begins as an object and lacks its end."""
    for key, held in row.items():
        value = plain_text(held)
        if is_cut(value) and not key.endswith("_preview"):  # MLflow's, next to the whole text
            raise Reject(
                "truncated",
                f"row.{key} is incomplete JSON, probably cut by a limit on the length of values",
            )
        if key == JOURNALD and value is None:
            raise Reject("truncated", LINES_LEFT_OUT)
        if isinstance(value, dict):
            check_complete(value)


def is_cut(value: Any) -> bool:
    """Whether a value is a text that begins as an object and lacks its end."""
    if not isinstance(value, str) or not value.lstrip().startswith('{"'):
        return False
    return not value.rstrip().endswith("}")


def check_stored(row: dict[str, Any]) -> None:
    """Rejects a row of which a body is a separate object, as only large ones are."""
    if is_stored(row):
        raise Reject("content_not_logged", f"a body is a separate object in a bucket: {JOIN}")


def is_stored(row: dict[str, Any]) -> bool:
    """Whether a row names an object that holds one of its bodies."""
    return any(find_field(row, path) is not None for path in STORED)


def _refuse(beginning: str, where: str) -> NoReturn:
    remedy = next(remedy for mark, remedy in REMEDIES.items() if mark in beginning)
    raise Reject("truncated", f"{where} has a mark of truncation; {remedy}")
