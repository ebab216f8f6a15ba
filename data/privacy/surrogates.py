"""Surrogates: what stands in for a personal value, of the same shape, the same for the same value, not to be undone without the key.

A value is reduced to what all its spellings share (`+1 212-736-5000` and `(212) 736 5000` are one number); HMAC-SHA256 of that under
the key draws the surrogate, again and again until it passes the checks that its kind has. E-mail addresses and URLs get domains
reserved for documentation, IP addresses the ranges reserved for it, social security numbers an area that is never issued. Cards,
accounts and telephone numbers are invented, and might by chance be somebody's, but not those of anyone in the log.

    surrogates = Surrogates(key, ["US", "DE"])
    both = Replacements([surrogates.value("PHONE_NUMBER", "(212) 736-5000"), surrogates.value("EMAIL_ADDRESS", "a@b.org")])
    both.sub("212.736.5000 again")     # "279.664.4286 again"
"""

import dataclasses
import functools
import hashlib
import hmac
import ipaddress
import random
import re
import string
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from outrider.data.privacy.recognizers import CARDS, recognisers

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

SEPARATOR = r"[ \t().\-/\u00a0]{0,3}"
BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{4}))"
"""A value begins where no letter or digit stands before it, or where one does that belongs to an escape of JSON."""
BEFORE_DIGITS = r"(?:(?<!\d)|(?<=\\u[0-9a-fA-F]{4}))"
MAC_SEPARATOR = "[:.-]?"
AFTER, AFTER_DIGITS = r"(?![A-Za-z0-9])", r"(?!\d)"

DRAWS = 20_000
"""Most draws for one value. A birth date and a check letter pass one draw in a thousand."""

DOCUMENTATION_IPV4 = [
    ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]
DOCUMENTATION_DOMAINS = ("example.com", "example.net", "example.org")
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


@dataclasses.dataclass(frozen=True)
class Value:
    """A value that was found, whichever way it is spelled."""

    spellings: str
    """A pattern, without groups of its own, that finds every spelling."""
    respelled: Callable[[str], str]
    """From a spelling to the surrogate, spelled so too."""


class Replacements:
    """Many values at once, in one pass, so that no surrogate is replaced again."""

    def __init__(self, values: Iterable[Value]):
        unique: dict[str, Value] = {}
        for value in values:
            unique.setdefault(
                value.spellings, value
            )  # of one number that was found as two kinds, the first
        # The longest first: of `a.b@c.org` and `b@c.org` the whole.
        self.values = sorted(
            unique.values(), key=lambda value: (-len(value.spellings), value.spellings)
        )
        self.pattern = re.compile("|".join(f"({value.spellings})" for value in self.values))

    def hold(self, text: str) -> bool:
        """Whether one of the values stands in the text."""
        return self.pattern.search(text) is not None

    def sub(self, text: str) -> str:
        """The text with surrogates for the values."""
        return self.pattern.sub(
            lambda match: self.values[match.lastindex - 1].respelled(match[0]), text
        )


class Surrogates:
    """Of one key."""

    def __init__(self, key: bytes, phone_regions: list[str]):
        self.key = key
        self.regions = tuple(phone_regions)
        self._core = functools.lru_cache(maxsize=100_000)(self._draw_core)

    def value(self, kind: str, text: str) -> Value:
        """What was found as `text`, to be replaced wherever it stands."""
        match kind:
            case "EMAIL_ADDRESS":
                return Value(f"(?i:{BEFORE}{re.escape(text)}{AFTER})", self._email)
            case "URL":
                return Value(f"(?i:{BEFORE}{re.escape(text)}{AFTER})", self._url)
            case "IP_ADDRESS":
                return Value(BEFORE + re.escape(text) + AFTER, self._ip)
            case "CRYPTO":
                return Value(BEFORE + re.escape(text) + AFTER, self._coin)
            case "PHONE_NUMBER":
                return self._phone(text)
        core = "".join(filter(str.isalnum, text)).upper()
        before, after = (BEFORE_DIGITS, AFTER_DIGITS) if core.isdigit() else (BEFORE, AFTER)
        return Value(
            f"(?i:{before}{(MAC_SEPARATOR if kind == 'MAC_ADDRESS' else SEPARATOR).join(core)}{after})",
            lambda spelled: respell(spelled, self._core(kind, core, text)),
        )

    def _phone(self, text: str) -> Value:
        country, core = _national_number(text, self.regions)
        prefix = (
            rf"(?:(?:(?:\+|00)?{country}|0|1|8){SEPARATOR}(?:\(0\){SEPARATOR})?)?"
            if country
            else ""
        )
        return Value(
            BEFORE_DIGITS + prefix + SEPARATOR.join(core) + AFTER_DIGITS,
            lambda spelled: respell(spelled, self._core(f"PHONE_NUMBER {country}", core, text)),
        )

    def _draw_core(self, kind: str, core: str, text: str) -> str:
        """Letters and digits of a surrogate: as many as `core` has, each of its own sort, that pass where those of `text` did."""
        passes = _check_of(kind)
        for number in range(DRAWS):
            drawn = _with_check_digits(
                kind, _like(core, self._random(kind, core, number), kept=_kept(kind))
            )
            if drawn != core and passes(drawn, text):
                break
        return drawn

    def _email(self, text: str) -> str:
        local, _, domain = text.rpartition("@")
        rng = self._random("EMAIL_ADDRESS", text.lower(), 0)
        return f"{_pronounceable(local, rng)}@{self._domain(domain)}"

    def _domain(self, domain: str) -> str:
        """One for each organisation, whoever writes from it."""
        rng = self._random("domain", domain.lower(), 0)
        return (
            f"{_pronounceable('a' * rng.randrange(5, 9), rng)}.{rng.choice(DOCUMENTATION_DOMAINS)}"
        )

    def _url(self, text: str) -> str:
        scheme, host, rest = re.fullmatch(
            r"(https?://|)([^/?#]*)(.*)", text, re.IGNORECASE | re.DOTALL
        ).groups()
        rng = self._random("URL", text.lower(), 0)
        return f"{scheme}{self._domain(host.removeprefix('www.'))}{_pronounceable(rest, rng)}"

    def _ip(self, text: str) -> str:
        address, slash, prefix = text.partition("/")
        rng = self._random("IP_ADDRESS", str(ipaddress.ip_address(address)), 0)
        if ":" in address:
            groups = ["2001", "db8", *(f"{rng.randrange(1, 2**16):x}" for _ in range(6))]
            drawn = (
                ":".join(groups) if "::" not in address else f"2001:db8:{groups[2]}::{groups[3]}"
            )
        else:
            drawn = str(rng.choice(DOCUMENTATION_IPV4)[rng.randrange(1, 255)])
        return drawn + slash + prefix

    def _coin(self, text: str) -> str:
        """A Bitcoin address of the same kind that no one has the key of."""
        rng = self._random("CRYPTO", text, 0)
        if text.lower().startswith("bc1"):
            return _bech32(text, rng)
        while True:
            drawn = _base58_check(bytes([0 if text[0] == "1" else 5]) + rng.randbytes(20))
            if len(drawn) == len(text) or len(text) < 33:
                return drawn

    def _random(self, kind: str, value: str, number: int) -> random.Random:
        return random.Random(hmac.digest(self.key, f"{kind}\n{value}\n{number}".encode(), "sha256"))


def respell(text: str, core: str) -> str:
    """`text` with its last letters and digits replaced by those of `core`, in their case; what separates them stays, and what stands
    before them, such as a country's code."""
    characters, places = (
        list(text),
        [place for place, character in enumerate(text) if character.isalnum()],
    )
    for place, character in zip(reversed(places), reversed(core), strict=False):
        characters[place] = character.lower() if characters[place].islower() else character
    return "".join(characters)


def _like(core: str, rng: random.Random, kept: int) -> str:
    """Digits for digits and letters for letters, the first `kept` unchanged."""
    drawn = [
        str(rng.randrange(10)) if character.isdigit() else rng.choice(string.ascii_uppercase)
        for character in core[kept:]
    ]
    return core[:kept] + "".join(drawn)


def _kept(kind: str) -> int:
    """How many characters say of what sort the value is, not whose: a card's issuer, an account's country, a number's first digit."""
    return {"CREDIT_CARD": 2, "IBAN_CODE": 4, "US_SSN": 0, "MAC_ADDRESS": 0}.get(kind, 1)


def _with_check_digits(kind: str, drawn: str) -> str:
    if kind == "CREDIT_CARD":
        return next(body for body in (drawn[:-1] + digit for digit in string.digits) if _luhn(body))
    if kind == "IBAN_CODE":
        number = "".join(str(int(character, 36)) for character in drawn[4:] + drawn[:2] + "00")
        return f"{drawn[:2]}{98 - int(number) % 97:02d}{drawn[4:]}"
    if kind == "US_SSN":
        # Areas from 900 on are never issued; groups below 50 keep clear of taxpayer numbers.
        return f"9{drawn[1:3]}{int(drawn[3:5]) % 49 + 1:02d}{drawn[5:]}"
    if kind == "MAC_ADDRESS":
        # 02: given by whoever runs the network, not by a manufacturer.
        return "02" + "".join(c if c.isdigit() else "ABCDEF"[ord(c) % 6] for c in drawn[2:])
    return drawn


def _luhn(digits: str) -> bool:
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _check_of(kind: str) -> Callable[[str, str], bool]:
    """What a value of the kind must pass beside its check digits; asked with the text whose spelling it will have."""
    if kind.startswith("PHONE_NUMBER "):
        country = kind.removeprefix("PHONE_NUMBER ")
        return lambda drawn, text: not country or _is_phone(country, drawn)
    match kind:
        case "CREDIT_CARD":
            issued = re.compile("|".join(CARDS.values()))
            return lambda drawn, text: issued.fullmatch(drawn) is not None
        case "US_SSN":
            return lambda drawn, text: drawn[5:] != "0000"
        case "MAC_ADDRESS":
            return lambda drawn, text: True
    return functools.partial(_is_recognised, kind)


def _is_recognised(kind: str, drawn: str, text: str) -> bool:
    recogniser, spelled = _recogniser(kind), respell(text, drawn)
    checks = "validate_result" in type(recogniser).__dict__
    found = recogniser.analyze(spelled, [kind])
    return any(
        one.end - one.start == len(spelled) and one.score >= (1 if checks else 0.01)
        for one in found
    )


@functools.cache
def _recogniser(kind: str) -> "EntityRecognizer":
    return recognisers([kind])[kind]


def _is_phone(country: str, national: str) -> bool:
    import phonenumbers

    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(f"+{country}{national}"))
    except phonenumbers.NumberParseException:
        return False


@functools.lru_cache(maxsize=10_000)
def _national_number(text: str, regions: tuple[str, ...]) -> tuple[str, str]:
    """A number's country code and the digits behind it; no code and all digits where it cannot be parted so."""
    import phonenumbers

    main = re.split(r"(?i)\s*(?:,|;|x|ext|#)", text, maxsplit=1)[0]
    digits = "".join(filter(str.isdigit, main))
    for region in ("ZZ",) if text.lstrip("( ").startswith("+") else regions:
        try:
            number = phonenumbers.parse(main, region)
        except phonenumbers.NumberParseException:
            continue
        national = phonenumbers.national_significant_number(number)
        if phonenumbers.is_valid_number(number) and digits.endswith(national):
            return str(number.country_code), national
    return "", digits


def _pronounceable(text: str, rng: random.Random) -> str:
    """Letters for letters, vowels after consonants, in their case; digits for digits; all else stays."""
    drawn, vowel = [], bool(rng.randrange(2))
    for character in text:
        if character.isdigit():
            drawn.append(str(rng.randrange(10)))
        elif character.isalpha():
            letter = rng.choice("aeiou" if vowel else "bdfgklmnprstv")
            vowel = not vowel
            drawn.append(letter.upper() if character.isupper() else letter)
        else:
            drawn.append(character)
    return "".join(drawn)


def _base58_check(payload: bytes) -> str:
    data = payload + hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, rest = divmod(number, 58)
        text = BASE58[rest] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def _bech32(text: str, rng: random.Random) -> str:
    """The same witness version, random data of the same length, and the checksum that the version asks for."""
    from presidio_analyzer.predefined_recognizers import CryptoRecognizer

    version = BECH32.index(text[3].lower())
    data = [version, *(rng.randrange(32) for _ in range(len(text) - 10))]
    constant = 1 if version == 0 else 0x2BC830A3
    words = CryptoRecognizer.bech32_hrp_expand("bc") + data + [0] * 6
    checksum = CryptoRecognizer.bech32_polymod(words) ^ constant
    data += [(checksum >> 5 * (5 - place)) & 31 for place in range(6)]
    drawn = "bc1" + "".join(BECH32[word] for word in data)
    return drawn.upper() if text.isupper() else drawn
