"""Surrogates: keyed replacements for personal values, with the same shape.

A value is first normalized, so that all its spellings are equal (`+1 212-736-5000` and `(212) 736
5000` are one number). HMAC-SHA256 of the result under the key seeds the random surrogate. So the
same value always has the same surrogate, which cannot be reversed without the key. E-mail addresses
and URLs use documentation domains, IP addresses use documentation ranges, and social security
numbers use an area that is never issued. National numbers and Bitcoin addresses keep their shape,
not their check digits. Surrogates of cards, accounts and telephone numbers pass the checks; by
chance they may belong to somebody, but not to the owner of the value.

Faker cannot replace these generators: its national numbers depend on the current date or (Spain,
Thailand) on the global random state, so a value would get a different surrogate in the next run. It
also does not keep a value's spelling.

    surrogates = Surrogates(key, ["US", "DE"])
    both = surrogates.replacements([("PHONE_NUMBER", "(212) 736-5000"),
                                    ("EMAIL_ADDRESS", "a@b.org")])
    both.sub("212.736.5000 again")     # "279.664.4286 again"
"""

import dataclasses
import hmac
import ipaddress
import random
import re
import string
from collections.abc import Callable, Iterable

import phonenumbers

from outrider.common.key_forms import KEY_PREFIX
from outrider.data.privacy.plain_text import PlainText

SEPARATOR = r"[ \t().\-/]{0,3}"
PHONE_SEPARATOR = r"[^\w\n]{0,3}"
"""phonenumbers accepts brackets, tildes and all kinds of dashes within a number."""
BEFORE, AFTER = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
BEFORE_DIGITS, AFTER_DIGITS = r"(?<!\d)", r"(?!\d)"

DOCUMENTATION_IPV4 = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
DOCUMENTATION_DOMAINS = ("example.com", "example.net", "example.org")


@dataclasses.dataclass(frozen=True)
class Value:
    """A detected value with all its spellings in plain text (plain_text.py)."""

    spellings: str
    """Pattern, without groups, that matches every spelling."""
    respelled: Callable[[str], str]
    """Maps a spelling to the surrogate in the same spelling."""


class Replacements:
    """Replaces many values in one pass; surrogates are not replaced again."""

    def __init__(self, values: Iterable[Value]):
        unique: dict[str, Value] = {}
        for value in values:
            unique.setdefault(value.spellings, value)  # of several detected kinds, the first wins
        # Longest first, so that `a.b@c.org` is replaced as a whole, not only `b@c.org`.
        self.values = sorted(
            unique.values(), key=lambda value: (-len(value.spellings), value.spellings)
        )
        self.pattern = re.compile("|".join(f"({value.spellings})" for value in self.values))

    def hold(self, text: str) -> bool:
        """Whether the text contains one of the values."""
        return self.pattern.search(PlainText(text).text) is not None

    def sub(self, text: str) -> str:
        """Replaces the values in a text with surrogates."""
        plain = PlainText(text)
        parts = []
        end = 0
        for match in self.pattern.finditer(plain.text):
            start, next_end = plain.span(match.start(), match.end())
            surrogate = plain.respell_span(match.start(), match.end(), self._surrogate(match))
            parts += [text[end:start], surrogate]
            end = next_end
        return "".join(parts) + text[end:]

    def _surrogate(self, match: re.Match[str]) -> str:
        assert match.lastindex is not None
        return self.values[match.lastindex - 1].respelled(match[0])


class Surrogates:
    """Creates surrogates with one key."""

    def __init__(self, key: bytes, phone_regions: list[str]):
        self.key = key
        self.regions = phone_regions

    def replacements(self, values: Iterable[tuple[str, str]]) -> Replacements:
        """Returns the replacements for values, given as (kind, text)."""
        return Replacements(self.value(kind, text) for kind, text in values)

    def value(self, kind: str, text: str) -> Value:
        """Returns the `Value` that matches and replaces all spellings of `text`."""
        text = PlainText(text).text
        if kind == "PHONE_NUMBER":
            country, core = _national_number(text, self.regions)
            prefix = (
                rf"(?:(?:(?:\+|00)?{country}|0|1|8){PHONE_SEPARATOR}(?:\(0\){PHONE_SEPARATOR})?)?"
                if country
                else ""
            )
            return Value(
                BEFORE_DIGITS + prefix + PHONE_SEPARATOR.join(core) + AFTER_DIGITS,
                lambda spelled: respell(spelled, self._core(kind, core, country)),
            )
        of_one_spelling = {"EMAIL_ADDRESS": self._email, "URL": self._url, "IP_ADDRESS": self._ip}
        if kind in of_one_spelling:
            return Value(f"(?i:{BEFORE}{re.escape(text)}{AFTER})", of_one_spelling[kind])
        if kind == "SECRET":
            return Value(f"{BEFORE}{re.escape(text)}{AFTER}", self._secret)
        core = "".join(filter(str.isalnum, text)).upper()
        before, after = (BEFORE_DIGITS, AFTER_DIGITS) if core.isdigit() else (BEFORE, AFTER)
        separator = "[:.-]?" if kind == "MAC_ADDRESS" else SEPARATOR
        return Value(
            f"(?i:{before}{separator.join(core)}{after})",
            lambda spelled: respell(spelled, self._core(kind, core)),
        )

    def _core(self, kind: str, core: str, country: str = "") -> str:
        """Returns the letters and digits of a surrogate with `core`'s shape.

        It is never `core`. It is a telephone number of the country unless none is drawn.
        """
        surrogate = ""
        for number in range(1000):  # most telephone numbers pass within ten draws
            rng = self._random(f"{kind} {country}", core, number)
            drawn = _with_check_digits(kind, _like(core, rng, KEPT.get(kind, 1)))
            if drawn == core:
                continue
            surrogate = drawn
            if not country or _is_phone(country, drawn):
                break
        return surrogate

    def _email(self, text: str) -> str:
        local, _, domain = text.rpartition("@")
        rng = self._random("EMAIL_ADDRESS", text.lower(), 0)
        return f"{_like(local, rng)}@{self._domain(domain)}"

    def _domain(self, domain: str) -> str:
        """Returns the same domain for all addresses of an organization."""
        rng = self._random("domain", domain.lower(), 0)
        return f"{_like('a' * rng.randrange(5, 9), rng)}.{rng.choice(DOCUMENTATION_DOMAINS)}"

    def _url(self, text: str) -> str:
        match = re.fullmatch(r"(?is)(https?://|)([^/?#]*)(.*)", text)
        assert match is not None
        scheme, host, rest = match.groups()
        rng = self._random("URL", text.lower(), 0)
        return f"{scheme}{self._domain(host.removeprefix('www.'))}{_like(rest, rng)}"

    def _ip(self, text: str) -> str:
        address, slash, prefix = text.partition("/")
        rng = self._random("IP_ADDRESS", str(ipaddress.ip_address(address)), 0)
        if ":" in address:
            # 2001:db8::/32 is reserved for documentation (RFC 3849), as are the IPv4 networks (RFC
            # 5737).
            drawn = f"2001:db8::{rng.randrange(1, 2**16):x}:{rng.randrange(1, 2**16):x}"
        else:
            drawn = str(ipaddress.ip_network(rng.choice(DOCUMENTATION_IPV4))[rng.randrange(1, 255)])
        return drawn + slash + prefix

    def _secret(self, text: str) -> str:
        """Returns a key that keeps its issuer's prefix."""
        prefix = KEY_PREFIX.match(text)
        return _like(text, self._random("SECRET", text, 0), prefix.end() if prefix else 0)

    def _random(self, kind: str, value: str, number: int) -> random.Random:
        # Keyed by the value: the same value has the same surrogate in all requests, and nobody
        # without the key can test a guess.
        return random.Random(hmac.digest(self.key, f"{kind}\n{value}\n{number}".encode(), "sha256"))


def respell(text: str, core: str) -> str:
    """Replaces the last letters and digits of `text` with those of `core`.

    Case, separators and preceding characters, such as a country code, are kept.
    """
    characters = list(text)
    alphanumeric_indices = [index for index, character in enumerate(text) if character.isalnum()]
    for index, character in zip(reversed(alphanumeric_indices), reversed(core), strict=False):
        characters[index] = character.lower() if characters[index].islower() else character
    return "".join(characters)


def _like(text: str, rng: random.Random, prefix_length: int = 0) -> str:
    """Redraws digits and letters, keeping case, after the first `prefix_length` characters."""
    drawn = text[:prefix_length]
    for character in text[prefix_length:]:
        if character.isdigit():
            character = str(rng.randrange(10))
        elif character.isalpha():
            letter = rng.choice(string.ascii_lowercase)
            character = letter.upper() if character.isupper() else letter
        drawn += character
    return drawn


KEPT = {"CREDIT_CARD": 2, "IBAN_CODE": 4, "CRYPTO": 3, "US_SSN": 0, "MAC_ADDRESS": 0}
"""Number of leading characters (1 for other kinds) that are kept because they identify nobody: a
card's issuer, an account's country, the form of a Bitcoin address, a number's first digit."""


def _with_check_digits(kind: str, drawn: str) -> str:
    if kind == "CREDIT_CARD":
        return next(drawn[:-1] + digit for digit in string.digits if _luhn(drawn[:-1] + digit))
    if kind == "IBAN_CODE":
        # ISO 13616: country and 00 at the end, letters as 10 to 35; 98 minus the rest modulo 97.
        number = "".join(str(int(character, 36)) for character in drawn[4:] + drawn[:2] + "00")
        return f"{drawn[:2]}{98 - int(number) % 97:02d}{drawn[4:]}"
    if kind == "US_SSN":
        # Areas of 900 and above are never issued; groups below 50 are not used in taxpayer numbers.
        return f"9{drawn[1:3]}{int(drawn[3:5]) % 49 + 1:02d}{drawn[5:]}"
    if kind == "MAC_ADDRESS":
        # 02: locally administered, not assigned by a manufacturer.
        return "02" + "".join(c if c.isdigit() else "ABCDEF"[ord(c) % 6] for c in drawn[2:])
    return drawn


def _luhn(digits: str) -> bool:
    # Luhn, ISO/IEC 7812-1: every second digit from the right is doubled, its digits are added.
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _is_phone(country: str, national: str) -> bool:
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(f"+{country}{national}"))
    except phonenumbers.NumberParseException:
        return False


def _national_number(text: str, regions: list[str]) -> tuple[str, str]:
    """Returns country code and national digits; if no region fits, all digits."""
    main = re.split(r"(?i)\s*(?:,|;|x|ext|#)", text, maxsplit=1)[0]
    digits = "".join(filter(str.isdigit, main))
    for region in ["ZZ"] if text.lstrip("( ").startswith("+") else regions:
        try:
            number = phonenumbers.parse(main, region)
        except phonenumbers.NumberParseException:
            continue
        national = phonenumbers.national_significant_number(number)
        if phonenumbers.is_valid_number(number) and digits.endswith(national):
            return str(number.country_code), national
    return "", digits
