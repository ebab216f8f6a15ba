"""Text from logs, recipes and bundles, made inert for terminals and Markdown pages.

printable("\\x1b]0;title\\x07")             # "␛]0;title␇"
inert_markdown("<script> ![x](http://y)")  # "&lt;script> !\\\\[x](http://y)"
"""

import re

# Escape sequences can move the cursor and rename windows; direction marks reorder text. Some
# viewers break a line at U+2028 and U+2029.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")

# Tags, also in a span of code: a lone backtick of a value would otherwise hide them.
_TAG = re.compile(r"<(?=[A-Za-z/!?])")

# What a spreadsheet takes for a formula in a line or a table's cell that is pasted into it. Items
# of a list (`- a`, `+ a`) and numbers (`-0.5`) are none.
_FORMULA = re.compile(r"(?m)(^[ \t]*|\|[ \t]*)(?=[=@]|[+-][A-Za-z(@=])")


def printable(text: str) -> str:
    """Replaces control characters with visible symbols; keeps line breaks and tabs."""
    return _CONTROL.sub(
        lambda match: chr(0x2400 + ord(match[0])) if match[0] < " " else "\ufffd", text
    )


def inert_markdown(text: str) -> str:
    """Returns Markdown without HTML, formulas, images that a viewer would load, and controls."""
    text = _TAG.sub("&lt;", printable(text)).replace("![", "!\\[")
    return _FORMULA.sub(r"\1\\", text)
