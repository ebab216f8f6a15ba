"""The id that a request and its response share, where they are rows of their own.

call_id({"event": "llm.request", "context": {"requestId": "r-7"}})      # "r-7"
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from outrider.data.formats.fields import take_text
from outrider.data.formats.rows.embedded import object_of
from outrider.data.formats.rows.paths import find_field, normalize_key
from outrider.data.formats.rows.usual_names import HOLDERS

SHARED_IDS = ("request_id", "x_request_id", "correlation_id", "req_id")
OTHER_IDS = ("id", "call_id", "call", "trace_id", "span_id", "uuid", "rid", "message_id")
"""Names of the id, in order of preference; between them are those that `OF_CALL` matches."""

OF_CALL = re.compile(
    r"(?:(?:llm|client|api|http|chat|internal|upstream|x)_?)*"
    r"(?:request|req|correlation|call|completion|generation|inference|invocation|interaction"
    r"|transaction|exchange|job)_?(?:id|uuid|guid|key|ref)"
)
"""Names that applications give to the id of a call."""

CALL = "call"


def call_id(row: dict[str, Any], other_ids: Sequence[str] = OTHER_IDS) -> str | None:
    """Returns the id that request and response share.

    Raises:
        Reject: If it is no valid text.
    """
    # Most rows have one of the first, and need no look at every key.
    for path in itertools.chain(SHARED_IDS, _ids_of_call(row), other_ids):
        field = find_field(row, path)
        if field is None:
            continue
        # Under `CALL`, some producers have an object about the caller instead.
        if field.key == CALL and not isinstance(field.holder[field.key], str):
            continue
        if text := take_text(field.holder, field.key, "row"):
            return text
    return None


def _ids_of_call(row: dict[str, Any]) -> Iterator[str]:
    """Yields the paths of a row's ids under an application's own names."""
    for key, value in row.items():
        name = normalize_key(key)
        if OF_CALL.fullmatch(name):
            yield name
        inner = object_of(value) if name in HOLDERS else None
        for inner_key in inner or ():
            inner_name = normalize_key(inner_key)
            if inner_name in SHARED_IDS or OF_CALL.fullmatch(inner_name):
                yield f"{name}.{inner_name}"
