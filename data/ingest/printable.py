"""A text of a log made safe to print: whatever a terminal would obey is made visible.

printable("\x1b[2J")      # "␛[2J"
"""

import re

# Escape sequences move the cursor and rename windows; marks of direction make a text read otherwise than it is written.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with pictures of control characters in their place; line ends and tabs stay."""
    return _CONTROL.sub(
        lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text
    )
