"""Texts as people paste them: with typographic marks, a shell's numbers, a collector's records.

as_typed("vllm serve m –tensor-parallel-size 4")    # "vllm serve m --tensor-parallel-size 4"
"""

import json
import re

LOGGED = ("log", "message", "MESSAGE", "msg", "textPayload")
"""Keys of a line in a record: Docker; Fluent Bit, Vector; journald; zap, pino; Google Cloud."""

_DASHES = re.compile(r"(?<=\s)[–—](?=[A-Za-z])")
"""What chats and word processors make of two hyphens before a flag's name."""

_OBJECT = re.compile(r"[‘’']?\{[^{}\n]*[“”][^{}\n]*\}[‘’']?")
"""An object of JSON with typographic quotation marks."""

_NUMBERED = re.compile(r"^[ \t]*\d+\*?[ \t]{1,2}(?=\S)", re.MULTILINE)
"""What `history` prints before a command."""

LEAST_NUMBERED = 3
"""Numbered lines that a text has at least if it is a shell's history."""


def as_typed(text: str) -> str:
    """Returns a text with the marks that a shell reads, and the lines in a collector's records."""
    text = _lines_of_records(text)
    if "–" in text or "—" in text:
        text = _DASHES.sub("--", text)
    if "“" in text or "”" in text:
        text = _OBJECT.sub(_with_plain_quotes, text)
    return text


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
