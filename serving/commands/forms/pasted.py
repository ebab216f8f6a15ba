"""Texts as people paste them: with typographic marks, a shell's numbers, a collector's records.

as_typed("vllm serve m –tensor-parallel-size 4")    # "vllm serve m --tensor-parallel-size 4"
"""

import json
import re
from collections.abc import Iterator

from outrider.serving.commands.forms.variables import IMAGE_USED

LOGGED = ("log", "message", "MESSAGE", "msg", "textPayload")
"""Keys of a line in a record: Docker; Fluent Bit, Vector; journald; zap, pino; Google Cloud."""

_DASHES = re.compile(r"(?<=\s)-?[–—]-?(?=[A-Za-z])")
"""What chats and word processors make of two hyphens before a flag's name, or of one of them."""

_HYPHENS = str.maketrans("\u2010\u2011\u2212", "---")
"""A hyphen, one that does not break and a minus sign, which word processors write for a hyphen."""

_BRACKETED = re.compile(
    r"(?:\bimage: (?P<image>[^\s,]+), )?\bcommand: \[(?P<words>[^\n]*?\bserve\b[^\n]*?)\]"
    r"(?=, \w+: |[ \t]*$)",
    re.MULTILINE,
)
"""A container's command in the log of GPUStack's worker: words between brackets, without quotes."""

_OBJECT = re.compile(r"[‘’']?\{[^{}\n]*[“”][^{}\n]*\}[‘’']?")
"""An object of JSON with typographic quotation marks."""

_NUMBERED = re.compile(r"^[ \t]*\d+\*?[ \t]{1,2}(?=\S)", re.MULTILINE)
"""What `history` prints before a command."""

LEAST_NUMBERED = 3
"""Numbered lines that a text has at least if it is a shell's history."""


def as_typed(text: str) -> str:
    """Returns a text with the marks that a shell reads, and the lines in a collector's records."""
    text = _lines_of_records(text).translate(_HYPHENS)
    if "–" in text or "—" in text:
        text = _DASHES.sub("--", text)
    if "“" in text or "”" in text:
        text = _OBJECT.sub(_with_plain_quotes, text)
    return text


def bracketed_in_log(text: str) -> Iterator[str]:
    """Yields the commands that a log shows between brackets, with their image."""
    for match in _BRACKETED.finditer(text):
        image = f"{IMAGE_USED}={match['image']}\n" if match["image"] else ""
        yield image + match["words"]


def history_of(text: str) -> list[str]:
    """Returns the commands in the output of `history`; none for any other text."""
    numbered = [line for line in text.splitlines() if _NUMBERED.match(line)]
    if len(numbered) < LEAST_NUMBERED or 2 * len(numbered) < len(text.splitlines()):
        return []
    return [_NUMBERED.sub("", line) for line in numbered]


def _with_plain_quotes(match: re.Match[str]) -> str:
    plain = re.sub("[“”]", '"', match[0])
    return re.sub("[‘’]", "'", plain)


def _lines_of_records(text: str) -> str:
    """Returns the lines in a log of one JSON object a line; any other text as it is."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("{"):
        return text
    unwrapped: list[str] = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return text
        inner = [record[key] for key in LOGGED if key in record] if isinstance(record, dict) else []
        if not inner or not isinstance(inner[0], str):
            return text
        unwrapped.append(inner[0].rstrip("\n"))
    return "\n".join(unwrapped)
