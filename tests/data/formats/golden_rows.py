"""Expected outcomes of the golden files of trace stores and data sets, row by row.

one_each("helicone/requests.jsonl")[3]      # the Exchange or Reject of the third line
"""

from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import read_exchanges
from outrider.data.ingest.sources import log_files
from tests.data.formats.golden import GOLDEN

ASKED = "When is the library in Husum open on Saturdays?"
THOUGHT = "The user asks about Husum. Saturdays the library opens at ten and closes at one."
ANSWERED = "On Saturdays it is open from 10:00 to 13:00."
INSTRUCTED = "You answer questions about opening hours. Be brief."
TWO_TURNS = [
    {"role": "system", "content": INSTRUCTED},
    {"role": "user", "content": ASKED},
    {"role": "assistant", "content": ANSWERED},
    {"role": "user", "content": "And on Sundays?"},
]
INLINE = "<think>\nSundays it is closed.\n</think>\n\nIt is closed on Sundays."
TOOL_ASKED = "Is the pool in Tönning open now?"
TOOL_THOUGHT = "I need the current hours, so I call the tool."
TOOL = {
    "type": "function",
    "function": {
        "name": "opening_hours",
        "description": "Hours of a place",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
        },
    },
}
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "opening_hours", "arguments": '{"place": "pool Tönning"}'},
}
CUT_OFF = "The user wants a list. I start in the north: the museum of"


def outcomes(name: str) -> dict[int, list[Exchange | Reject]]:
    """The outcomes of a golden file by line."""
    by_line: dict[int, list[Exchange | Reject]] = {}
    for outcome in read_exchanges(log_files(str(GOLDEN / name))):
        by_line.setdefault(outcome.place.line, []).append(outcome)
    return by_line


def one_each(name: str) -> dict[int, Exchange | Reject]:
    """Like `outcomes`, for a file with one outcome per row."""
    found = outcomes(name)
    assert all(len(of_line) == 1 for of_line in found.values())
    return {line: of_line[0] for line, of_line in found.items()}


def reasons(found: dict[int, Exchange | Reject]) -> dict[int, str]:
    """The reasons of the rejects."""
    return {line: outcome.reason for line, outcome in found.items() if isinstance(outcome, Reject)}
