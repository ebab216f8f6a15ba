"""Long texts that Inspect's log has once, apart from the events that refer to them.

    with_attachments(events, {"e8a5...": "What is ..."})    # the texts instead of attachment://e8a5...

Inspect moves texts above 100 characters into the sample's `attachments` (inspect_ai 0.3,
log/_condense.py).
"""

import re
from typing import Any

from outrider.data.exchange import Reject

_REFERENCE = re.compile(r"attachment://([0-9a-f]{32})")


def with_attachments(value: Any, attachments: Any) -> Any:
    """Returns a value of a sample with the texts that it refers to."""
    if isinstance(value, dict):
        return {key: with_attachments(inner, attachments) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_attachments(inner, attachments) for inner in value]
    reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if reference is None or not isinstance(attachments, dict):
        return value
    return attachments.get(reference[1], value)


def check_attached(messages: Any) -> None:
    """Raises a `Reject` if a message's text is elsewhere."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str) and _REFERENCE.fullmatch(content):
            raise Reject("content_not_logged", "a text is an attachment that the row does not have")
