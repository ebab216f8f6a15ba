"""Detects personal data with Presidio's recognizers and the words before a value.

A value scores higher if one of the four words before it names its kind ("phone", "telefon",
or a Chinese word). So does a telephone number that begins with + or is written like
(212) 555-0123. Other possible telephone numbers are ignored: ten digits on a receipt are usually an
order number.

Presidio's own analyzer needs a language model to use context and compares every pair of findings
in a text, which is slow. Here its recognizers run directly, on pieces of a text.

Presidio's patterns end at word boundaries, and Python counts Chinese characters as word characters,
so without the ASCII flag a number directly after a Chinese character would be missed. Presidio's
patterns that match too much (an e-mail's local part with `=` and quotes) or too little (only some
16-digit cards) are replaced through the recognizers' constructors.

    finder = Finder(PrivacyConfig(mode="report"))
    finder.find("call +49 30 901820, or write to ada@lovelace.org")
    # [Found("PHONE_NUMBER", 5, 19, 0.75), ...]
"""

import ipaddress
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError
from outrider.data.config import NOT_INSTALLED, PrivacyConfig

try:
    import phonenumbers
    import regex
    from presidio_analyzer import Pattern, PatternRecognizer, predefined_recognizers
    from tldextract import TLDExtract
except ModuleNotFoundError as error:
    raise OutriderError(f"{NOT_INSTALLED} ({error})") from error

RESERVED_DOMAINS = (
    *("example", "example.com", "example.net", "example.org"),
    *("invalid", "localhost", "test"),
)
"""Reserved domains (RFC 2606): not personal; surrogates use them."""

PUBLIC_SUFFIXES = TLDExtract(suffix_list_urls=(), cache_dir=None)
"""The bundled list of public suffixes; Presidio would download one to the home directory."""

NATIONAL = {
    "AU_MEDICARE": "AuMedicareRecognizer",
    "AU_TFN": "AuTfnRecognizer",
    "CA_SIN": "CaSinRecognizer",
    "DE_SOCIAL_SECURITY": "DeSocialSecurityRecognizer",
    "DE_TAX_ID": "DeTaxIdRecognizer",
    "ES_NIE": "EsNieRecognizer",
    "ES_NIF": "EsNifRecognizer",
    "FI_PERSONAL_IDENTITY_CODE": "FiPersonalIdentityCodeRecognizer",
    "IN_AADHAAR": "InAadhaarRecognizer",
    "IT_FISCAL_CODE": "ItFiscalCodeRecognizer",
    "KR_RRN": "KrRrnRecognizer",
    "PL_PESEL": "PlPeselRecognizer",
    "SE_PERSONNUMMER": "SePersonnummerRecognizer",
    "TH_TNIN": "ThTninRecognizer",
    "TR_NATIONAL_ID": "TrNationalIdRecognizer",
    "UK_NHS": "NhsRecognizer",
    "US_ITIN": "UsItinRecognizer",
    "ZA_ID_NUMBER": "ZaIdNumberRecognizer",
}
"""Presidio's classes for national identity numbers; all but US_ITIN have a checksum."""

CLASSES = NATIONAL | {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "URL": "UrlRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
}

LEFT, RIGHT = r"(?<![A-Za-z0-9])(?<!\d[.,])", r"(?![A-Za-z0-9])(?![.,]\d)"
"""Boundaries: not inside a word, a hexadecimal digest or a decimal fraction."""

LETTER, DOMAIN = (
    "A-Za-zÀ-ɏ0-9",
    r"@[a-z0-9]+(?:-+[a-z0-9]+)*(?:\.[a-z0-9]+(?:-+[a-z0-9]+)*)+(?![A-Za-z0-9])",
)
CARDS = {
    "16 digits": r"(?:4\d{3}|5\d{3}|6\d{3}|2[2-7]\d{2}|35\d{2})(?:[- ]?\d{4}){3}",
    "15 digits": r"3[47]\d{2}[- ]?\d{6}[- ]?\d{5}",
    "14 digits": r"3(?:0[0-5]|[689]\d)\d[- ]?\d{6}[- ]?\d{4}",
    "19 digits": r"(?:4\d{3}|62\d{2})(?:[- ]?\d{4}){3}[- ]?\d{3}",
}
"""Patterns by length. 13-digit numbers beginning with 4 are left out: some old Visa cards have
them, but today such numbers are EAN bar codes."""

PATTERNS = {
    "EMAIL_ADDRESS": {
        "plain": (
            rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-]{{0,62}}[{LETTER}_%+\-])?{DOMAIN}",
            0.5,
        ),
        # An apostrophe may be part of a name (O'Brien); one after the address is a closing quote.
        "with an apostrophe": (
            rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-']{{0,62}}[{LETTER}_%+\-])?{DOMAIN}(?!')",
            0.5,
        ),
    },
    "CREDIT_CARD": {name: (LEFT + shape + RIGHT, 0.3) for name, shape in CARDS.items()},
    "US_SSN": {
        "dashes": (rf"{LEFT}\d{{3}}-\d{{2}}-\d{{4}}{RIGHT}", 0.5),
        "spaces": (rf"{LEFT}\d{{3}}([ .])\d{{2}}\1\d{{4}}{RIGHT}", 0.25),
        "bare": (rf"{LEFT}\d{{9}}{RIGHT}", 0.2),
    },
    "URL": {
        "url": (r"(?<![A-Za-z0-9.@])(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\-]{3,2000}", 0.6)
    },
}
"""Patterns and scores that replace Presidio's."""


@dataclass(frozen=True)
class Found:
    """A value detected in a text."""

    kind: str
    start: int
    end: int
    score: float


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
"""For each kind, a pattern that matches part of every value; texts without a match are skipped."""

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
VERSION = ("v", "ver", "version", "release", "build", "firmware", "section", "chapter")
"""Words after which four dot-separated numbers are not an IP address."""

CONTEXT_CHARACTERS = 60

PIECE, OVERLAP = 4000, 400
"""Characters that Presidio reads at a time, and the overlap that keeps values whole."""

PHONE_SCORE = 0.4
"""Presidio's score for a number that is valid in some region; below privacy.min_score."""
BONUS = 0.35
"""Presidio's bonus for a context word."""
NORTH_AMERICAN = re.compile(
    r"(?<!\d)(?:\([2-9]\d{2}\)[ ]?[2-9]\d{2}[ .-]\d{4}|[2-9]\d{2}([.-])[2-9]\d{2}\1\d{4})(?!\d)"
)
DATE = re.compile(
    r"(?:19|20)\d{2}[-./ ]?(?:0[1-9]|1[0-2])[-./ ]?(?:0[1-9]|[12]\d|3[01])"
    r"|\d{1,2}([-./])\d{1,2}\1(?:19|20)?\d{2}(?!\d)"
)

ESCAPE = re.compile(r"\\(?:[bfnrt]|u[0-9a-fA-F]{4})")


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

        `before` is the text that precedes `text`, such as a key.
        """
        # Every value contains one of these; most short texts and keys do not.
        if not re.search(r"[\d@:]|www\.", text, re.IGNORECASE):
            return []
        # Blanks JSON escapes, whose letters would be taken for part of the value after them.
        plain = ESCAPE.sub(lambda escape: " " * len(escape[0]), text) if "\\" in text else text
        candidates = list(self._phones(text, plain, before))
        for begin in range(0, max(len(plain) - OVERLAP, 1), PIECE - OVERLAP):
            piece = plain[begin : begin + PIECE]
            for kind, recognizer in self.recognizers.items():
                there = re.search(SHAPES[kind], piece)
                for one in recognizer.analyze(piece, [kind]) if there else ():
                    value = piece[one.start : one.end]
                    matched_text = value.rstrip(".,;:!?'") if kind == "URL" else value
                    start = begin + one.start
                    end = begin + one.start + len(matched_text)
                    context = _words_before(text, start, before)
                    is_ipv4 = kind == "IP_ADDRESS" and ":" not in matched_text
                    is_version = bool(context) and context[-1] in VERSION
                    if is_ipv4 and (is_version or _goes_on(text, start, end)):
                        continue  # a version or an OID
                    score = _base_score(kind, matched_text, one.score)
                    score += BONUS if self._named(kind, context) else 0.0
                    candidates.append(Found(kind, start, end, min(score, 1.0)))
        sure = [one for one in candidates if one.score >= self.min_score and _is_whole(plain, one)]
        return self._without_overlaps(sure, len(text))

    def _named(self, kind: str, context: list[str]) -> bool:
        """Whether the context names a kind; Chinese words have no spaces between them."""
        return any(
            word in context or (word[0] >= "\u2e80" and any(word in run for run in context))
            for word in self.words[kind]
        )

    def _phones(self, text: str, plain: str, before: str) -> Iterator[Found]:
        """Finds, as Presidio does, the telephone numbers that can reach `min_score`."""
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

    def _without_overlaps(self, candidates: list[Found], length: int) -> list[Found]:
        """Resolves overlaps by score, then length, then the recipe's order of kinds."""

        def rank(one: Found) -> tuple[float, int, int, int]:
            return -one.score, one.start - one.end, self.kinds.index(one.kind), one.start

        disjoint = []
        taken = bytearray(length)
        for one in sorted(candidates, key=rank):
            if not any(taken[one.start : one.end]):
                taken[one.start : one.end] = b"1" * (one.end - one.start)
                disjoint.append(one)
        return sorted(disjoint, key=lambda one: one.start)


def _base_score(kind: str, value: str, score: float) -> float:
    """Returns Presidio's score of a value, or less for an ambiguous shape."""
    if kind == "IP_ADDRESS" and re.fullmatch(r"\d(?:\.\d){3}", value):
        return 0.3  # 1.2.3.4 is usually a version or a section
    if kind in NATIONAL and not any(map(str.isalpha, value)):
        return PHONE_SCORE  # one number in ten has a valid check digit by chance
    return score


def _known_regions(regions: list[str]) -> tuple[str, ...]:
    unknown = sorted(set(regions) - set(phonenumbers.SUPPORTED_REGIONS))
    if unknown:
        raise OutriderError(
            f"privacy.phone_regions: unknown {', '.join(unknown)}; use ISO 3166 codes in "
            "capitals, such as US, GB, DE, CN"
        )
    return tuple(regions)


def _words_before(text: str, start: int, before: str) -> list[str]:
    """Returns the last words before a value, in lower case.

    They come from its line, or from the line above if the value begins its line. Words before an
    earlier long number do not count, so that one label does not apply to a whole row of a table.
    """
    head = text[max(start - CONTEXT_CHARACTERS, 0) : start]
    if len(head) < CONTEXT_CHARACTERS:
        head = before[-CONTEXT_CHARACTERS:] + head
    if "\\" in head:
        head = re.sub(r"\\u([0-9a-fA-F]{4})", lambda escape: chr(int(escape[1], 16)), head)
        head = ESCAPE.sub("\n", head)
    lines = head.rsplit("\n", 2)
    line = lines[-1] if any(map(str.isalpha, lines[-1])) or len(lines) == 1 else lines[-2]
    words: list[str] = []
    for word in reversed(
        re.findall(r"\d{5,}|[A-Z]?[a-zà-ɏ]+|[A-Z]+|[\u0400-\u04ff]+|[\u2e80-\ud7ff]+", line)
    ):
        if word.isdigit() or len(words) >= 4:
            break
        words.append(word.lower())
    return words[::-1]


def _is_whole(text: str, one: Found) -> bool:
    """Whether a value is not part of a longer number or word."""
    # Some of Presidio's patterns have no boundaries.
    digits_only = not any(map(str.isalpha, text[one.start : one.end]))
    glued = re.compile(r"\d" if digits_only else r"[A-Za-z0-9]")
    return not (
        glued.match(text[one.start - 1 : one.start]) or glued.match(text[one.end : one.end + 1])
    )


def _goes_on(text: str, start: int, end: int) -> bool:
    """Whether a dotted number is part of a longer one, such as an OID."""
    before = text[max(start - 2, 0) : start]
    after = text[end : end + 2]
    return bool(re.match(r"\.\d", after) or re.search(r"\d\.$", before))


def recognizers(kinds: Sequence[str]) -> dict[str, PatternRecognizer]:
    """Returns recognizers by kind, except for telephone numbers (`Finder._phones`)."""
    # Otherwise Presidio logs texts that it could not validate.
    logging.getLogger("presidio-analyzer").addFilter(lambda record: False)
    by_kind: dict[str, Any] = {}  # Any: mypy rejects replacing Presidio's methods
    for kind in kinds:
        if kind == "PHONE_NUMBER":
            continue
        shapes = [Pattern(name, *shape) for name, shape in PATTERNS.get(kind, {}).items()]
        by_kind[kind] = getattr(predefined_recognizers, CLASSES[kind])(shapes or None)
        by_kind[kind].global_regex_flags |= regex.ASCII
    if "EMAIL_ADDRESS" in by_kind:
        by_kind["EMAIL_ADDRESS"].validate_result = _is_email
    if "IP_ADDRESS" in by_kind:
        by_kind["IP_ADDRESS"].invalidate_result = _is_not_public
    return by_kind


def _is_email(text: str) -> bool:
    """Whether an address has a public domain that is not reserved."""
    local, _, domain = text.lower().rpartition("@")
    reserved = f".{domain}".endswith(tuple(f".{name}" for name in RESERVED_DOMAINS))
    return not reserved and local != "git" and bool(PUBLIC_SUFFIXES.extract_str(domain).fqdn)


def _is_not_public(text: str) -> bool:
    """Whether an IP address identifies nobody: private, reserved, or unallocated."""
    try:
        address = ipaddress.ip_interface(text).ip
    except ValueError:
        return True
    # 2000::/3 is the allocated part of IPv6; elsewhere `abc::def` is usually a C++ or Rust name.
    routed = address.version == 4 or address in ipaddress.ip_network("2000::/3")
    return not (address.is_global and routed)
