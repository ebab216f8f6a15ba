"""Detection of personal data: Presidio's recognizers, scored with the words before a value.

A loose shape scores higher after a word of its kind ("phone", "telefon", or in Chinese) among the
four words before it on its line; a telephone number also when it begins with + or is spelled
(212) 555-0123. National numbers without such a word are not examined further: ten digits on a
receipt are mostly an order number.

Presidio's own analyzer needs a language model for this, and compares all findings of a text with
each other; so the recognizers run on pieces of a text.

    finder = Finder(PrivacyConfig(mode="report"))
    finder.find("call +49 30 901820, or write to ada@lovelace.org")
    # [Found("PHONE_NUMBER", 5, 19, 0.75), ...]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from outrider.common.errors import OutriderError
from outrider.data.config import PrivacyConfig
from outrider.data.privacy.recognizers import NATIONAL, recognizers


@dataclass(frozen=True)
class Found:
    """One value in a text."""

    kind: str
    start: int
    end: int
    score: float


NEEDED = re.compile(r"[\d@:]|www\.", re.IGNORECASE)
"""Every kind has one of these; most short texts and keys do not."""

SHAPES = {
    "EMAIL_ADDRESS": r"@",
    "CREDIT_CARD": r"\d(?:[ -]?\d){13}",
    "IBAN_CODE": r"[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}",
    "IP_ADDRESS": r"\d\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f]{0,4}:",
    "US_SSN": r"\d{3}[- .]?\d{2}[- .]?\d{4}",
    "CRYPTO": r"(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25}",
    "URL": r"://|[wW]{3}\.",
    "MAC_ADDRESS": r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}",
} | dict.fromkeys(NATIONAL, r"\d{4}|\d{2}[A-Z]\d|\d{3}[ -]\d{2}")
"""Part of every value of a kind; most texts lack it, and Presidio need not read them for it."""

PHONE = re.compile(r"(?<![\dA-Za-z])(?:\+[ ]?)?\(?\d(?:[ \t().\-/\u00a0]{0,3}\d){6,16}(?!\d)")

WORDS = {
    "PHONE_NUMBER": "phone telephone tel fax mobile cell cellphone whatsapp hotline "
    "telefon telefonnummer handy handynummer mobil "
    "téléphone portable teléfono móvil celular telefono cellulare telefone celular telefoon mobiel "
    "电话 手机 号码 热线 联系方式 電話 携帯",
    "CREDIT_CARD": "credit card visa mastercard amex kreditkarte carte tarjeta 卡号 信用卡 银行卡",
    "IBAN_CODE": "iban bank",
    "IP_ADDRESS": "ip ipv4 ipv6 address host client remote",
    "US_SSN": "social security ssn",
    "MAC_ADDRESS": "mac hardware ethernet",
} | {
    "AU_MEDICARE": "medicare",
    "AU_TFN": "tfn tax",
    "CA_SIN": "sin insurance",
    "DE_SOCIAL_SECURITY": "rentenversicherungsnummer sozialversicherungsnummer rvnr svnr",
    "DE_TAX_ID": "steuer steueridentifikationsnummer idnr tin",
    "IN_AADHAAR": "aadhaar aadhar uidai",
    "KR_RRN": "resident registration rrn 주민등록번호",
    "PL_PESEL": "pesel",
    "SE_PERSONNUMMER": "personnummer",
    "TH_TNIN": "tnin citizen identification",
    "TR_NATIONAL_ID": "tc kimlik",
    "UK_NHS": "nhs",
    "US_ITIN": "itin taxpayer",
    "ZA_ID_NUMBER": "id identity",
}
VERSION = {"v", "ver", "version", "release", "build", "firmware", "section", "chapter"}
"""Words before four numbers with dots that are not an address."""

WORDS_BEFORE = 4
CONTEXT_CHARACTERS = 60

PIECE, OVERLAP = 4000, 400
"""Characters of a text that Presidio reads at once, and of those that it reads again with the next
piece, so that none cuts a value."""

PHONE_SCORE = 0.4
"""Presidio's score for digits that are a number of some region; below privacy.min_score."""
BONUS = 0.35
"""Presidio's bonus for a word of the context."""
NORTH_AMERICAN = re.compile(
    r"(?<!\d)(?:\([2-9]\d{2}\)[ ]?[2-9]\d{2}[ .-]\d{4}|[2-9]\d{2}([.-])[2-9]\d{2}\1\d{4})(?!\d)"
)
DATE = re.compile(
    r"(?:19|20)\d{2}[-./ ]?(?:0[1-9]|1[0-2])[-./ ]?(?:0[1-9]|[12]\d|3[01])"
    r"|\d{1,2}([-./])\d{1,2}\1(?:19|20)?\d{2}(?!\d)"
)

ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")
UNICODE_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
TRAILING = ".,;:!?'"


class Finder:
    """Finds personal data of the configured kinds."""

    def __init__(self, config: PrivacyConfig):
        self.min_score = config.min_score
        self.kinds: list[str] = list(config.entities)
        self.recognizers = recognizers(self.kinds)
        self.regions = _known_regions(config.phone_regions) if "PHONE_NUMBER" in self.kinds else ()
        self.words = {kind: WORDS.get(kind, "").split() for kind in self.kinds}

    def find(self, text: str, before: str = "") -> list[Found]:
        """Returns the values in `text`, in order and without overlaps.

        `before` is the text before it, such as a key.
        """
        if not NEEDED.search(text):
            return []
        # A JSON escape in a text would attach its letter to the value after it.
        plain = ESCAPE.sub(lambda escape: " " * len(escape[0]), text) if "\\" in text else text
        found = list(self._phones(text, plain, before))
        for begin in range(0, max(len(plain) - OVERLAP, 1), PIECE - OVERLAP):
            piece = plain[begin : begin + PIECE]
            for kind, recognizer in self.recognizers.items():
                there = re.search(SHAPES[kind], piece)
                for one in recognizer.analyze(piece, [kind]) if there else ():
                    value = piece[one.start : one.end]
                    kept = value.rstrip(TRAILING) if kind == "URL" else value
                    start = begin + one.start
                    context = _words_before(text, start, before)
                    if kind == "IP_ADDRESS" and _is_version(text, start, kept, context):
                        continue
                    score = _base_score(kind, kept, one.score) + BONUS * self._named(kind, context)
                    found.append(Found(kind, start, start + len(kept), min(score, 1.0)))
        sure = [one for one in found if one.score >= self.min_score and _is_whole(plain, one)]
        return self._without_overlaps(sure, len(text))

    def _named(self, kind: str, context: list[str]) -> bool:
        """Whether a word before a value names its kind; Chinese has no spaces between words."""
        return any(
            word in context or (word[0] >= "\u2e80" and any(word in run for run in context))
            for word in self.words[kind]
        )

    def _phones(self, text: str, plain: str, before: str) -> Iterator[Found]:
        """Finds and scores numbers like Presidio's PhoneRecognizer, where they can reach
        `min_score`.
        """
        import phonenumbers

        for anchor in PHONE.finditer(plain) if self.regions else ():
            number = anchor[0]
            evident = number.startswith("+") or NORTH_AMERICAN.search(number) is not None
            context = _words_before(text, anchor.start(), before)
            if not evident and (DATE.match(number) or not self._named("PHONE_NUMBER", context)):
                continue
            first = max(anchor.start() - 2, 0)
            window = plain[first : anchor.end() + 14]  # an extension may follow
            # A number with + is valid in every region or in none; ZZ is not a region.
            for region in ("ZZ",) if number.startswith("+") else self.regions:
                matches = phonenumbers.PhoneNumberMatcher(
                    window, region, leniency=phonenumbers.Leniency.VALID
                )
                match = next(iter(matches), None)
                if match and first + match.start < anchor.end():
                    start = first + match.start
                    yield Found("PHONE_NUMBER", start, first + match.end, PHONE_SCORE + BONUS)
                    break

    def _without_overlaps(self, found: list[Found], length: int) -> list[Found]:
        """Of overlapping values, keeps the highest score, then the longest, then the recipe's
        order.
        """
        kept, taken = [], bytearray(length)
        for one in sorted(
            found,
            key=lambda one: (
                *(-one.score, one.start - one.end),
                *(self.kinds.index(one.kind), one.start),
            ),
        ):
            if not any(taken[one.start : one.end]):
                taken[one.start : one.end] = b"1" * (one.end - one.start)
                kept.append(one)
        return sorted(kept, key=lambda one: one.start)


def _is_version(text: str, place: int, value: str, context: list[str]) -> bool:
    """Whether numbers with dots are a version or an OID rather than an address."""
    if ":" in value:
        return False
    named = bool(context) and context[-1] in VERSION
    return named or _goes_on(text, place, place + len(value))


def _base_score(kind: str, value: str, score: float) -> float:
    """Presidio's score of a value, lower where its shape is common."""
    if kind == "IP_ADDRESS" and re.fullmatch(r"\d(?:\.\d){3}", value):
        return 0.3  # 1.2.3.4 is mostly a version or a section
    if kind in NATIONAL and not any(map(str.isalpha, value)):
        return PHONE_SCORE  # one number in ten has the check digit by chance
    return score


def _known_regions(regions: list[str]) -> tuple[str, ...]:
    import phonenumbers

    unknown = sorted(set(regions) - set(phonenumbers.SUPPORTED_REGIONS))
    if unknown:
        raise OutriderError(
            f"privacy.phone_regions names {', '.join(unknown)}; they are ISO 3166 codes in "
            "capitals, such as US, GB, DE, CN"
        )
    return tuple(regions)


def _words_before(text: str, place: int, before: str) -> list[str]:
    """The last words before a value, in lower case.

    They are taken from its line, or from the line above where the value begins its line. A longer
    number ends them, so that one label does not count for a whole row of a table.
    """
    head = text[max(place - CONTEXT_CHARACTERS, 0) : place]
    if len(head) < CONTEXT_CHARACTERS:
        head = before[-CONTEXT_CHARACTERS:] + head
    if "\\" in head:
        head = ESCAPE.sub("\n", UNICODE_ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), head))
    lines = head.rsplit("\n", 2)
    line = lines[-1] if any(map(str.isalpha, lines[-1])) or len(lines) == 1 else lines[-2]
    words: list[str] = []
    for word in reversed(
        re.findall(r"\d{5,}|[A-Z]?[a-zà-ɏ]+|[A-Z]+|[\u0400-\u04ff]+|[\u2e80-\ud7ff]+", line)
    ):
        if word.isdigit() or len(words) >= WORDS_BEFORE:
            break
        words.append(word.lower())
    return words[::-1]


def _is_whole(text: str, one: Found) -> bool:
    """Whether a value is not part of a longer number, or of a longer word.

    Some of Presidio's patterns have no boundaries.
    """
    digits_only = not any(map(str.isalpha, text[one.start : one.end]))
    glued = re.compile(r"\d" if digits_only else r"[A-Za-z0-9]")
    return not (
        glued.match(text[one.start - 1 : one.start]) or glued.match(text[one.end : one.end + 1])
    )


def _goes_on(text: str, start: int, end: int) -> bool:
    """Whether a number with dots is part of a longer one, such as an OID."""
    return bool(re.match(r"\.\d", text[end : end + 2])) or bool(
        re.search(r"\d\.$", text[max(start - 2, 0) : start])
    )
