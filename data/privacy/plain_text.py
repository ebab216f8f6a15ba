"""Text as the patterns of personal data read it, with positions in the original.

A value has many spellings: no-break spaces and hyphens from PDFs, full-width forms and digits of
other scripts, invisible characters, escapes of JSON and URLs, `(at)` for @. In `PlainText.text`
all are plain ASCII separators, digits and signs.

    plain = PlainText("mail ada%40lovelace.org")
    plain.text              # "mail ada@lovelace.org"
    plain.span(5, 21)       # (5, 23)
"""

import re
import unicodedata
from array import array

_ENCODED = re.compile(
    # JSON in JSON has two backslashes, a page in a page &amp;, and a URL in a URL %25.
    r"\\{1,8}u(?P<code>[0-9a-fA-F]{4})|\\(?P<tab>t)|\\(?P<line>[bfnr])"
    r"|(?P<space>&(?:amp;)*(?:nbsp|\#160|\#xa0);)"
    r"|(?P<at>%(?:25)*40|&(?:amp;)*(?:commat|\#64|\#x40);"
    r"| ?[(\[{] ?(?i:at|ät|arroba|arobase|chiocciola|собака) ?[)\]}] ?"
    r"| (?i:at) (?=[\w.-]{1,64} (?i:dot) [A-Za-z]))"
    r"|(?P<dot>%(?:25)*2[eE]|&(?:amp;)*(?:period|\#46|\#x2[eE]);"
    # RFC 3490, section 3.1: the ideographic full stop separates labels of a domain, too.
    r"|(?<=[A-Za-z0-9])[\u3002\uff61](?=[A-Za-z0-9])"
    r"| ?[(\[{] ?(?i:\.|dot|punkt|point|punto|ponto|точка) ?[)\]}] ?"
    r"| (?i:dot) (?=[A-Za-z]))"
    # Soft hyphens, accents as separate characters, joiners, directions, variants and order marks.
    r"|(?P<invisible>[\u00ad\u0300-\u036f\u061c\u200c-\u200f\u202a-\u202e\u2060-\u2064"
    r"\u2066-\u2069\ufe00-\ufe0f\ufeff]+"
    # Pages let a long address break here. Elsewhere it separates words.
    r"|(?<!\u200b)\u200b+(?=[@.])|(?<=[@.])\u200b+)"
)
_MEANINGS = {"tab": "\t", "line": "\n", "space": " ", "at": "@", "dot": ".", "invisible": ""}


class _PlainCharacters(dict[int, str]):
    """Plain forms of characters for `str.translate`, computed when first looked up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        category = unicodedata.category(character)
        plain = character
        if category == "Nd":
            plain = str(unicodedata.decimal(character))
        elif category == "Zs" or character == "\u200b":  # a zero-width space separates words
            plain = " "
        elif category == "Pd" or character == "\u2212":
            plain = "-"
        elif 0xFF01 <= code <= 0xFF5E or 0xFE50 <= code <= 0xFE6B:  # full-width and small forms
            plain = unicodedata.normalize("NFKC", character)
        self[code] = plain
        return plain


_PLAIN = _PlainCharacters()


class PlainText:
    """A text's plain form and where each character of it comes from."""

    def __init__(self, original: str):
        self.original = original
        # Positions in the original of each plain character; None while the lengths are the same.
        self._starts: array[int] | None = None
        self._ends: array[int] | None = None
        decoded = self._decoded() if _ENCODED.search(original) else original
        self.text = decoded if decoded.isascii() else decoded.translate(_PLAIN)

    def _decoded(self) -> str:
        starts = array("q")
        ends = array("q")
        pieces = []
        end = 0
        for match in _ENCODED.finditer(self.original):
            pieces += [self.original[end : match.start()], _meaning(match)]
            starts.extend(range(end, match.start()))
            ends.extend(range(end + 1, match.start() + 1))
            if pieces[-1]:
                starts.append(match.start())
                ends.append(match.end())
            end = match.end()
        pieces.append(self.original[end:])
        starts.extend(range(end, len(self.original)))
        ends.extend(range(end + 1, len(self.original) + 1))
        self._starts = starts
        self._ends = ends
        return "".join(pieces)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Returns where `text[start:end]`, which is not empty, is in the original."""
        if self._starts is None or self._ends is None:
            return start, end
        return self._starts[start], self._ends[end - 1]

    def respell_span(self, start: int, end: int, surrogate: str) -> str:
        """Returns a surrogate for `text[start:end]` with the original's separators.

        A surrogate of another length is returned unchanged.
        """
        plain = self.text[start:end]
        if len(surrogate) != len(plain):
            return surrogate
        characters = []
        for index, character in enumerate(surrogate):
            first, last = self.span(start + index, start + index + 1)
            is_separator = character == plain[index] and not character.isalnum()
            characters.append(self.original[first:last] if is_separator else character)
        return "".join(characters)


def _meaning(match: re.Match[str]) -> str:
    """Returns the character that an encoded one is, or none for an invisible one."""
    if match["code"] is None:
        assert match.lastgroup is not None
        return _MEANINGS[match.lastgroup]
    character = chr(int(match["code"], 16))
    # Half of a character beyond 16 bits is no digit and no separator.
    is_half = unicodedata.category(character) == "Cs"
    return " " if is_half else _ENCODED.sub("", character)
