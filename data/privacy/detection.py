"""Detects personal data with Presidio's recognizers and the words before a value.

Texts are searched in their plain form (plain_text.py). A value scores higher if one of the four
words before it names its kind ("phone", "telefon", or a Chinese word). Telephone numbers are in
phones.py, keys and tokens in common/key_forms.py.

Presidio's own analyzer needs a language model to use context and compares every pair of findings
in a text, which is slow. Here its recognizers run directly, on pieces of a text.

Presidio's patterns end at word boundaries, and Python counts Chinese characters as word characters,
so without the ASCII flag a number directly after a Chinese character would be missed. Presidio's
patterns that match too much (an e-mail's local part with `=` and quotes) or too little (only some
16-digit cards) are replaced through the recognizers' constructors. IBANs are
matched here, by the country's length, in any case.

    finder = PersonalDataFinder(PrivacyConfig(mode="report"))
    finder.find("call +49 30 901820, or write to ada@lovelace.org")
    # [PersonalDataSpan("PHONE_NUMBER", 5, 19, 0.75), ...]
"""

import ipaddress
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.key_forms import KEYS, POSSIBLE_KEY, key_span
from outrider.data.config import NOT_INSTALLED, PrivacyConfig
from outrider.data.privacy.plain_text import PlainText

try:
    import regex
    from presidio_analyzer import Pattern, predefined_recognizers
    from tldextract import TLDExtract

    from outrider.data.privacy.phones import known_regions, phone_numbers
except ModuleNotFoundError as error:
    raise OutriderError(f"{NOT_INSTALLED} ({error})") from error

RESERVED_DOMAINS = (
    *("example", "example.com", "example.net", "example.org"),
    *("invalid", "localhost", "test"),
)
"""Reserved domains (RFC 2606): not personal; surrogates use them."""

PUBLIC_SUFFIXES = TLDExtract(suffix_list_urls=(), cache_dir=None)
"""The bundled list of public suffixes; Presidio would download one to the home directory."""

INTERNAL_SUFFIXES = (".local", ".internal", ".intranet", ".private", ".corp", ".home", ".lan")
"""Suffixes of internal networks (RFC 6762, appendix G; ICANN's .internal)."""

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
    "CRYPTO": "CryptoRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
}

LEFT, RIGHT = r"(?<![A-Za-z0-9])(?<!\d[.,])", r"(?![A-Za-z0-9])(?![.,]\d)"
"""Boundaries: not inside a word, a hexadecimal digest or a decimal fraction."""

LETTER = "A-Za-z0-9À-ɏͰ-ϿЀ-ӿ"
"""Letters of addresses: Latin, Greek and Cyrillic; Chinese has no spaces around an address."""
LABEL = rf"[{LETTER}]+(?:-+[{LETTER}]+)*"
DOMAIN = rf"@{LABEL}(?:\.{LABEL})+(?![{LETTER}])"
GAP = r"[ ._\-]{0,3}"
"""Between the groups of a card's number."""
CARDS = {
    "16 digits": rf"(?:[4-6]\d{{3}}|2[2-7]\d{{2}}|35\d{{2}}|8[12]\d{{2}})(?:{GAP}\d{{4}}){{3}}",
    "15 digits": rf"3[47]\d{{2}}{GAP}(?:\d{{6}}{GAP}\d{{5}}|\d{{4}}{GAP}\d{{4}}{GAP}\d{{3}})",
    "14 digits": rf"3(?:0[0-59]|[689]\d)\d{GAP}(?:\d{{6}}{GAP}\d{{4}}|(?:\d{{4}}{GAP}){{2}}\d\d)",
    "19 digits": rf"(?:4\d{{3}}|62\d{{2}})(?:{GAP}\d{{4}}){{3}}{GAP}\d{{3}}|62\d{{4}}{GAP}\d{{13}}",
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
        "dashes": (rf"(?<!\d-){LEFT}\d{{3}}-\d{{2}}-\d{{4}}{RIGHT}(?!-\d)", 0.5),
        "spaces": (rf"{LEFT}\d{{3}}([ .])\d{{2}}\1\d{{4}}{RIGHT}", 0.25),
        "bare": (rf"{LEFT}\d{{9}}{RIGHT}", 0.2),
    },
    "URL": {
        "url": (r"(?<![A-Za-z0-9.@])(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\-]{3,2000}", 0.6)
    },
}
"""Patterns and scores that replace Presidio's."""


@dataclass(frozen=True)
class PersonalDataSpan:
    """A value detected in a text."""

    kind: str
    start: int
    end: int
    score: float


SHAPES = {
    "EMAIL_ADDRESS": r"@",
    "CREDIT_CARD": r"\d(?:[ ._-]{0,3}\d){13}",
    "IBAN_CODE": r"[A-Za-z]{2}[\s.-]{0,2}\d",
    "IP_ADDRESS": r"\d\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f]{0,4}:",
    "US_SSN": r"\d{3}[- .]?\d{2}[- .]?\d{4}",
    "CRYPTO": r"(?:bc1|BC1|[13])[a-zA-HJ-NP-Z0-9]{25}|0x[0-9a-fA-F]{40}",
    "URL": r"://|[wW]{3}\.",
    "MAC_ADDRESS": r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}",
} | dict.fromkeys(NATIONAL, r"\d{4}|\d{2}[A-Z]\d|\d{3}[ -]\d{2}")
"""For each kind, a pattern that matches part of every value; texts without a match are skipped."""

_WORDS = {
    # `WhatsApp` is two words (WORD).
    "PHONE_NUMBER": "phone telephone tel fax mobile cell cellphone whats hotline call text sms "
    "freecall freephone tollfree belt bellen bereikbaar "
    "reach contact ruf "
    "telefon handy mobil festnetz rückruf anruf anrufen erreichbar rufnummer kontakt "
    "téléphone tél portable appelez appeler joindre joignable "
    "teléfono móvil movil celular llámame llame llama contacto "
    "telefono cellulare chiamami chiamare recapito telefone telemóvel ligue ligar contato fone "
    "dzwonić dzwoń zadzwoń infolinia "
    "telefoon mobiel телефон тел моб мобильный сотовый звоните звонить позвоните "
    "هاتف جوال फ़ोन मोबाइल 전화 휴대폰 핸드폰 "
    "电话 手机 热线 联系方式 拨打 微信 電話 携帯",
    "CREDIT_CARD": "credit card visa mastercard amex kreditkarte carte tarjeta 卡号 信用卡 银行卡",
    "IBAN_CODE": "iban bank",
    "IP_ADDRESS": "ip ipv4 ipv6 address host client remote adresse dirección indirizzo endereço "
    "адрес 地址",
    "US_SSN": "social security ssn seguro 社会安全",
    "MAC_ADDRESS": "mac hardware ethernet",
} | {
    "AU_MEDICARE": "medicare",
    "AU_TFN": "tfn tax",
    "CA_SIN": "sin insurance nas",
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
PHRASES = (
    *("new number", "neue nummer", "nouveau numéro", "nuevo número", "nuovo numero"),
    *("novo número", "nowy numer", "nieuwe nummer", "новый номер", "toll free", "numero verde"),
    *("número gratuito", "numéro vert", "linea verde"),
    *("my number", "meine nummer", "ruf an", "mon numéro", "mi número", "mio numero"),
    *("pod numer", "numer do", "meu número", "mijn nummer", "мой номер"),
)
WORDS = {kind: tuple(words.split()) for kind, words in _WORDS.items()}
"""Words that name a kind before a value, in the languages of logs."""
WORDS["PHONE_NUMBER"] += PHRASES
VERSION = frozenset(
    [
        *("v", "ver", "version", "versión", "versione", "versão", "версия", "версии", "сборка"),
        *("release", "build", "firmware", "section", "abschnitt"),
        *("chapter", "kapitel", "chapitre", "capítulo", "capitolo", "глава", "article", "artikel"),
    ]
)
"""Words after which four dot-separated numbers are not an IP address."""

CONTEXT_CHARACTERS = 60

WORD = re.compile(r"\d{5,}|[A-ZÀ-Þ]?[a-zß-ɏ]+|[A-ZÀ-Þ]+|[^\W\dA-Za-zÀ-ɏ_]+")
"""A long number, a word of Latin letters (`contactPhone` is two), or of other letters."""

PIECE, OVERLAP = 4000, 400
"""Characters that Presidio reads at a time, and the overlap that keeps values whole."""

WEAK = 0.4
"""Presidio's score for a number that has only a check digit; below privacy.min_score."""
BONUS = 0.35
"""Presidio's bonus for a context word."""
SHAPE_BONUS = 0.25
"""For a number's national shape alone: a word that names another kind outweighs it."""

POSSIBLE = re.compile(rf"[\d@:]|www\.|{POSSIBLE_KEY.pattern}", re.IGNORECASE)
"""A part of every value; most short texts and keys have none."""

Recognizer = Callable[[str], Iterator[tuple[int, int, float]]]
"""Yields the start, the end and the score of each value in a piece of a text."""


class PersonalDataFinder:
    """Finds personal data of the configured kinds."""

    def __init__(self, config: PrivacyConfig):
        self.min_score = config.min_score
        self.kinds: list[str] = list(config.entities)
        self.recognizers = recognizers(self.kinds)
        self.regions = known_regions(config.phone_regions) if "PHONE_NUMBER" in self.kinds else ()

    def find(self, text: str, before: str = "") -> list[PersonalDataSpan]:
        """Returns the values in `text`, in order and without overlaps.

        `before` is the text that precedes `text`, such as a key.
        """
        plain = PlainText(text)
        if not POSSIBLE.search(plain.text):
            return []
        candidates = list(self._by_pattern(plain.text, PlainText(before).text))
        if "SECRET" in self.kinds and POSSIBLE_KEY.search(plain.text):
            spans = map(key_span, KEYS.finditer(plain.text))
            candidates += [PersonalDataSpan("SECRET", start, end, 1.0) for start, end in spans]
        sure = [one for one in candidates if one.score >= self.min_score]
        whole = [one for one in sure if _is_whole(plain.text, one)]
        return [
            PersonalDataSpan(one.kind, *plain.span(one.start, one.end), one.score)
            for one in self._without_overlaps(whole, len(plain.text))
        ]

    def _by_pattern(self, text: str, before: str) -> Iterator[PersonalDataSpan]:
        """Yields telephone numbers and what the recognizers find, with scores."""

        def is_named(start: int) -> bool:
            return _is_named("PHONE_NUMBER", _words_before(text, start, before))

        for start, end in phone_numbers(text, self.regions, is_named) if self.regions else ():
            is_sure = text[start] == "+" or is_named(start)
            yield PersonalDataSpan(
                "PHONE_NUMBER", start, end, WEAK + (BONUS if is_sure else SHAPE_BONUS)
            )
        for begin in range(0, max(len(text) - OVERLAP, 1), PIECE - OVERLAP):
            piece = text[begin : begin + PIECE]
            for kind, recognizer in self.recognizers.items():
                if not re.search(SHAPES[kind], piece):
                    continue
                for start, end, score in recognizer(piece):
                    one = _scored(
                        text, before, PersonalDataSpan(kind, begin + start, begin + end, score)
                    )
                    if one is not None:
                        yield one

    def _without_overlaps(
        self, candidates: list[PersonalDataSpan], length: int
    ) -> list[PersonalDataSpan]:
        """Resolves overlaps by score, then length, then the recipe's order of kinds."""

        def rank(one: PersonalDataSpan) -> tuple[bool, float, int, int, int]:
            # In https://KEY@github.com, an address has the key.
            is_other = one.kind != "SECRET"
            place = self.kinds.index(one.kind)
            return is_other, -one.score, one.start - one.end, place, one.start

        disjoint = []
        taken = bytearray(length)
        for one in sorted(candidates, key=rank):
            if not any(taken[one.start : one.end]):
                taken[one.start : one.end] = b"1" * (one.end - one.start)
                disjoint.append(one)
        return sorted(disjoint, key=lambda one: one.start)


def _is_named(kind: str, context: list[str]) -> bool:
    """Whether the words before a value name its kind.

    Words of five letters and more may go on, such as `telefonnummer`. Chinese words have no
    spaces between them.
    """
    line = f" {' '.join(context)} "
    for word in WORDS.get(kind, ()):
        if word[0] >= "\u2e80":
            is_there = word in line
        else:
            is_there = f" {word}" in line if len(word) >= 5 else f" {word} " in line
        if is_there:
            return True
    return False


def _scored(text: str, before: str, one: PersonalDataSpan) -> PersonalDataSpan | None:
    """Returns a finding with the score of its shape and its context, or None for a version."""
    value = text[one.start : one.end]
    if one.kind == "URL":
        value = value.rstrip(".,;:!?'")
    end = one.start + len(value)
    context = _words_before(text, one.start, before)
    score = one.score
    if one.kind == "IP_ADDRESS" and ":" not in value:
        if _is_version(text, one.start, end, context):
            return None
        if re.fullmatch(r"\d(?:\.\d){3}", value):
            score = 0.3  # 1.2.3.4 is usually a version or a section
    if one.kind in NATIONAL and not any(map(str.isalpha, value)):
        score = WEAK  # one number in ten has a valid check digit by chance
    score += BONUS if _is_named(one.kind, context) else 0.0
    return PersonalDataSpan(one.kind, one.start, end, min(score, 1.0))


def _is_version(text: str, start: int, end: int, context: list[str]) -> bool:
    """Whether four numbers are a version, or a part of a longer number such as an OID."""
    before = text[max(start - 2, 0) : start]
    is_product = re.search(r"[A-Za-z]/$", before)  # RFC 9110: product/version
    is_inside = re.match(r"\.\d", text[end : end + 2]) or re.search(r"\d\.$", before)
    word = context[-1] if context else ""
    return bool(is_product or is_inside) or word in VERSION or word.endswith("版本")


def _words_before(text: str, start: int, before: str) -> list[str]:
    """Returns the last words before a value, in lower case.

    They come from its line, or from the line above if the value begins its line. Words before an
    earlier long number do not count, so that one label does not apply to a whole row of a table.
    """
    head = text[max(start - CONTEXT_CHARACTERS, 0) : start]
    if len(head) < CONTEXT_CHARACTERS:
        head = before[-CONTEXT_CHARACTERS:] + head
    lines = head.rsplit("\n", 2)
    line = lines[-1] if any(map(str.isalpha, lines[-1])) or len(lines) == 1 else lines[-2]
    words: list[str] = []
    for word in reversed(WORD.findall(line)):
        if word.isdigit() or len(words) >= 4:
            break
        words.append(word.lower())
    return words[::-1]


def _is_whole(text: str, one: PersonalDataSpan) -> bool:
    """Whether a value is not part of a longer number or word."""
    # Some of Presidio's patterns have no boundaries.
    digits_only = not any(map(str.isalpha, text[one.start : one.end]))
    glued = re.compile(r"\d" if digits_only else r"[A-Za-z0-9]")
    return not (
        glued.match(text[one.start - 1 : one.start]) or glued.match(text[one.end : one.end + 1])
    )


def recognizers(kinds: Sequence[str]) -> dict[str, Recognizer]:
    """Returns recognizers by kind, except for telephone numbers and keys."""
    # Otherwise Presidio logs texts that it could not validate.
    logging.getLogger("presidio-analyzer").addFilter(lambda record: False)
    by_kind = {kind: _of_presidio(kind) for kind in kinds if kind in CLASSES}
    return by_kind | ({"IBAN_CODE": _ibans} if "IBAN_CODE" in kinds else {})


def _of_presidio(kind: str) -> Recognizer:
    shapes = [Pattern(name, *shape) for name, shape in PATTERNS.get(kind, {}).items()]
    # Any: mypy rejects replacing Presidio's methods.
    presidio: Any = getattr(predefined_recognizers, CLASSES[kind])(shapes or None)
    presidio.global_regex_flags |= regex.ASCII
    if kind == "EMAIL_ADDRESS":
        presidio.validate_result = _is_email
    if kind == "IP_ADDRESS":
        presidio.invalidate_result = _is_not_public
    if kind == "CREDIT_CARD":
        presidio.replacement_pairs = [("-", ""), (" ", ""), (".", ""), ("_", "")]
    if kind == "CRYPTO":
        # BIP 173: an address may be all upper case, as in QR codes.
        is_valid = presidio.validate_result
        presidio.validate_result = lambda text: is_valid(
            text.lower() if text.startswith("BC1") else text
        )

    def recognize(piece: str) -> Iterator[tuple[int, int, float]]:
        if kind == "IP_ADDRESS":
            piece = LABEL_COLON.sub(" ", piece)
        for result in presidio.analyze(piece, [kind]):
            yield result.start, result.end, result.score
        for match in ETHEREUM.finditer(piece) if kind == "CRYPTO" else ():
            yield *match.span(), 1.0

    return recognize


ETHEREUM = re.compile(
    r"(?<![A-Za-z0-9])0x(?:[0-9a-f]{40}|[0-9A-F]{40}|[0-9A-Fa-f]{40})(?![A-Za-z0-9])"
)
"""An address on Ethereum and the chains with its form; capitals are a checksum (EIP-55)."""

LABEL_COLON = re.compile(r"(?<![0-9A-Fa-f:]):(?=[0-9A-Fa-f])")
"""The colon of `ip:2001:db8::1`, which Presidio's pattern takes for a part of the address."""

IBAN_START = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}(?=[\s.\-]{0,2}\d[\s.\-]{0,2}\d)")
IBAN_LENGTHS = {
    entry[:2]: int(entry[2:])
    for entry in re.findall(
        r"[A-Z]{2}\d\d",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
        "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
        "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
        "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30",
    )
}
"""Characters of an account number by country (ISO 13616 registry). Presidio has 76 of the
89; its Portugal, Mauritius, Palestine and Qatar are too short."""


DIGITS_ONLY = frozenset(
    [
        *("AE", "AT", "BA", "BE", "BI", "CR", "CZ", "DE", "DK", "EE", "EG", "ES", "FI", "FO", "GL"),
        *("HR", "HU", "IL", "IS", "LT", "LY", "ME", "MN", "MR", "NO", "PL", "PT", "RS", "SE", "SI"),
        *("SK", "SO", "TL", "TN", "VA", "XK"),
    ]
)
"""Countries whose account numbers have no letters (ISO 13616 registry)."""


def _ibans(piece: str) -> Iterator[tuple[int, int, float]]:
    for beginning in IBAN_START.finditer(piece):
        length = IBAN_LENGTHS.get(beginning[0].upper(), 0)
        rest = rf"(?:[\s.\-]{{0,2}}[A-Za-z0-9]){{{length - 2}}}(?![A-Za-z0-9])"
        match = re.compile(rest, re.ASCII).match(piece, beginning.end()) if length else None
        if match is None:
            continue
        account = "".join(filter(str.isalnum, beginning[0] + match[0])).upper()
        number = int("".join(str(int(character, 36)) for character in account[4:] + account[:4]))
        # Accounts have few letters; a sentence has a valid check digit in one of 97.
        has_letters = any(map(str.isalpha, account[4:]))
        if account[:2] in DIGITS_ONLY and has_letters:
            continue
        if number % 97 == 1 and sum(map(str.isdigit, account)) > length // 3:
            yield beginning.start(), match.end(), 1.0


def _is_email(text: str) -> bool:
    """Whether an address has a public or internal domain that is not reserved."""
    local, _, domain = text.lower().rpartition("@")
    reserved = f".{domain}".endswith(tuple(f".{name}" for name in RESERVED_DOMAINS))
    is_public = bool(PUBLIC_SUFFIXES.extract_str(domain).fqdn)
    is_host = is_public or domain.endswith(INTERNAL_SUFFIXES)
    return not reserved and local != "git" and is_host


def _is_not_public(text: str) -> bool:
    """Whether an IP address identifies nobody: private, reserved, or unallocated."""
    try:
        address = ipaddress.ip_interface(text).ip
    except ValueError:
        return True
    # 2000::/3 is the allocated part of IPv6; elsewhere `abc::def` is usually a C++ or Rust name.
    routed = address.version == 4 or address in ipaddress.ip_network("2000::/3")
    return not (address.is_global and routed)
