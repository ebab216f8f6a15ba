"""Detection of personal data: Presidio's recognizers on windows, scored with context.

A recognizer runs on windows around an anchor (an `@`, a run of digits). That makes long prompts
cheap and hostile ones bounded. A loose shape scores higher after a word of its kind ("phone",
"telefon", or in Chinese) among the four words before it on its line; a telephone number also when
it begins with + or is spelled (212) 555-0123. National numbers without such a word are not examined
further: ten digits on a receipt are mostly an order number.

    finder = Finder(PrivacyConfig(mode="report"))
    finder.find("call +49 30 901820, or write to ada@lovelace.org")
    # [Found("PHONE_NUMBER", 5, 19, 0.75), ...]
"""

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.data.config import PrivacyConfig
from outrider.data.privacy.recognizers import NATIONAL, recognizers

if TYPE_CHECKING:
    from presidio_analyzer import PatternRecognizer, RecognizerResult


@dataclass(frozen=True)
class Found:
    """One value in a text."""

    kind: str
    start: int
    end: int
    score: float


NEEDED = re.compile(r"[\d@:]|www\.", re.IGNORECASE)
"""Every kind has one of these; most short texts and keys do not."""

ANCHORS = {
    "EMAIL_ADDRESS": r"@",
    "PHONE_NUMBER": r"(?<![\dA-Za-z])(?:\+[ ]?)?\(?\d(?:[ \t().\-/\u00a0]{0,3}\d){6,16}(?!\d)",
    "CREDIT_CARD": r"\d(?:[ -]?\d){13}",
    "IBAN_CODE": r"[A-Z]{2}\d{2}[ -]?[A-Z0-9]{4}",
    "IP_ADDRESS": r"\d\.\d{1,3}\.\d|[0-9A-Fa-f]:[0-9A-Fa-f]{0,4}:",
    "US_SSN": r"\d{3}[- .]?\d{2}[- .]?\d{4}",
    "CRYPTO": r"(?:bc1|[13])[a-zA-HJ-NP-Z0-9]{25}",
    "URL": r"://|[wW]{3}\.",
    "MAC_ADDRESS": r"[0-9A-Fa-f]{2}[:-][0-9A-Fa-f]{2}[:-]|[0-9A-Fa-f]{4}\.[0-9A-Fa-f]{4}",
} | dict.fromkeys(NATIONAL, r"\d{4}|\d{2}[A-Z]\d|\d{3}[ -]\d{2}")

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

REACH = 80
"""Characters around an anchor that its recognizer sees. The window extends to the next white space,
at most REACH more."""
WINDOW = 2000

PHONE_SCORE = 0.4
"""Presidio's score for digits that are a number of some region; below the default of
privacy.min_score."""
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
        self.kinds: list[str] = [kind for kind in config.entities if kind != "PHONE_NUMBER"]
        self.recognizers = recognizers(config.entities)
        self.regions = (
            _known_regions(config.phone_regions) if "PHONE_NUMBER" in config.entities else ()
        )
        self.order: dict[str, int] = {kind: place for place, kind in enumerate(config.entities)}
        self.anchors: dict[str, re.Pattern[str]] = {
            kind: re.compile(ANCHORS[kind]) for kind in config.entities
        }
        self.context = ContextScore()
        for kind, recognizer in self.recognizers.items():
            recognizer.context = WORDS.get(kind, "").split()
        self.phone_words = frozenset(WORDS["PHONE_NUMBER"].split())

    def find(self, text: str, before: str = "") -> list[Found]:
        """Returns the values in `text`, in order and without overlaps.

        `before` is the text before it, such as a key.
        """
        if not NEEDED.search(text):
            return []
        # A JSON escape in a text would attach its letter to the value after it.
        plain = ESCAPE.sub(lambda escape: " " * len(escape[0]), text) if "\\" in text else text
        found: list[Found] = []
        for kind in self.kinds:
            found += self._of_kind(kind, text, plain, before)
        if self.regions:
            found += self._phones(text, plain, before)
        sure = [one for one in found if one.score >= self.min_score and _stands_alone(plain, one)]
        return _without_overlaps(sure, self.order)

    def _of_kind(self, kind: str, text: str, plain: str, before: str) -> Iterator[Found]:
        recognizer = self.recognizers[kind]
        for start, end in _windows(plain, self.anchors[kind]):
            for result in recognizer.analyze(plain[start:end], [kind]):
                value = plain[start + result.start : start + result.end]
                kept = value.rstrip(TRAILING) if kind == "URL" else value
                place = start + result.start
                context = _words_before(text, place, before)
                if kind == "IP_ADDRESS" and _is_version(text, place, kept, context):
                    continue
                result.score = _base_score(kind, kept, result.score)
                score = self.context.of(result, recognizer, context)
                yield Found(kind, place, place + len(kept), score)

    def _phones(self, text: str, plain: str, before: str) -> Iterator[Found]:
        """Finds and scores numbers like Presidio's PhoneRecognizer, where they can reach
        `min_score`.
        """
        import phonenumbers

        for anchor in self.anchors["PHONE_NUMBER"].finditer(plain):
            number = anchor[0]
            evident = number.startswith("+") or NORTH_AMERICAN.search(number) is not None
            named = not self.phone_words.isdisjoint(_words_before(text, anchor.start(), before))
            score = PHONE_SCORE + (self.context.bonus if evident or named else 0)
            if score < self.min_score or (DATE.match(number) and not evident):
                continue
            first, last = (
                max(anchor.start() - 2, 0),
                min(anchor.end() + 14, len(plain)),
            )  # an extension may follow
            window = plain[first:last]
            # A number with + is valid in every region or in none; ZZ is not a region.
            for region in ("ZZ",) if number.startswith("+") else self.regions:
                if not _may_be_valid(number, region):
                    continue
                matches = phonenumbers.PhoneNumberMatcher(
                    window, region, leniency=phonenumbers.Leniency.VALID
                )
                if match := next(
                    (match for match in matches if first + match.start < anchor.end()), None
                ):
                    yield Found("PHONE_NUMBER", first + match.start, first + match.end, score)
                    break


class ContextScore:
    """Presidio's context enhancer without a language model.

    Presidio reads the words around a value from a spaCy document. Here the words before it are
    passed as external context.
    """

    def __init__(self) -> None:
        from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer
        from presidio_analyzer.nlp_engine import NlpArtifacts

        self.enhancer = LemmaContextAwareEnhancer(
            min_score_with_context_similarity=0.0, context_matching_mode="whole_word"
        )
        nothing: Any = []
        self.no_tokens = NlpArtifacts([], nothing, [], [], None, "en")
        self.bonus = self.enhancer.context_similarity_factor

    def of(
        self, result: "RecognizerResult", recognizer: "PatternRecognizer", words: list[str]
    ) -> float:
        """Score of a result, higher after a word of the recognizer's context."""
        if not recognizer.context or not words:
            return result.score
        (enhanced,) = self.enhancer.enhance_using_context(
            "", [result], self.no_tokens, [recognizer], words
        )
        return enhanced.score


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


def _may_be_valid(number: str, region: str) -> bool:
    """The matcher's own check, ten times as fast.

    Only the matcher decides on a longer row of digits, such as a number next to another.
    """
    import phonenumbers

    if sum(map(str.isdigit, number)) > 11:
        return True
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(number, region))
    except phonenumbers.NumberParseException:
        return False


def _known_regions(regions: list[str]) -> tuple[str, ...]:
    import phonenumbers

    unknown = sorted(set(regions) - set(phonenumbers.SUPPORTED_REGIONS))
    if unknown:
        raise OutriderError(
            f"privacy.phone_regions names {', '.join(unknown)}; they are ISO 3166 codes in "
            "capitals, such as US, GB, DE, CN"
        )
    return tuple(regions)


def _windows(text: str, anchor: re.Pattern) -> Iterator[tuple[int, int]]:
    """Yields windows around the anchors that begin and end at white space, if any is near.

    Close windows are merged up to a length, since Presidio compares all findings of a window with
    each other. Windows of a long row overlap, so that none cuts a value.
    """
    start = end = -1
    for match in anchor.finditer(text):
        if match.end() + REACH <= end:
            continue
        left, right = max(match.start() - REACH, 0), min(match.end() + REACH, len(text))
        if left <= end and right - start <= WINDOW:
            end = right
            continue
        if end > 0:
            yield _to_white_space(text, start, end)
        start, end = left, right
    if end > 0:
        yield _to_white_space(text, start, end)


def _to_white_space(text: str, start: int, end: int) -> tuple[int, int]:
    left, right = max(start - REACH, 0), min(end + REACH, len(text))
    while start > left and not text[start - 1].isspace():
        start -= 1
    while end < right and not text[end].isspace():
        end += 1
    return start, end


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
    return [*_chinese_words(words), *reversed(words)]


def _chinese_words(words: list[str]) -> Iterator[str]:
    """Chinese is written without spaces: any two to four characters may be a word."""
    for word in words:
        if word[0] >= "\u2e80":
            for length in (2, 3, 4):
                yield from (word[place : place + length] for place in range(len(word) - length + 1))


def _stands_alone(text: str, one: Found) -> bool:
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


def _without_overlaps(found: list[Found], order: dict[str, int]) -> list[Found]:
    """Of overlapping values, keeps the highest score, then the longest, then the recipe's order."""
    kept: list[Found] = []  # sorted, without overlaps
    for one in sorted(
        found, key=lambda one: (-one.score, one.start - one.end, order[one.kind], one.start)
    ):
        place = bisect.bisect(kept, one.start, key=lambda other: other.start)
        clear_of_left = place == 0 or kept[place - 1].end <= one.start
        if clear_of_left and (place == len(kept) or one.end <= kept[place].start):
            kept.insert(place, one)
    return kept
