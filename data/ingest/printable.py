"""Makes text of a log safe to print: control characters become visible.

printable("\x1b[2J")      # "␛[2J"
"""

import re

# Escape sequences move the cursor and rename windows; direction marks reorder the text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Replaces control characters by pictures of them; keeps line ends and tabs."""
    return _CONTROL.sub(
        lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text
    )
