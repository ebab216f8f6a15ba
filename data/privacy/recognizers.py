"""Presidio's recognizers for logs: no model, no network, boundaries in any script.

Presidio's patterns end at word boundaries, and Python counts Chinese characters as word characters:
a number directly after one is missed, hence the ASCII flag. Where Presidio's pattern matches too
much (an e-mail's local part with `=` and quotes) or too little (cards of any issuer with 16
digits), it is replaced through the constructor.

    recognizers(["EMAIL_ADDRESS"])["EMAIL_ADDRESS"].analyze("ada@lovelace.org", ["EMAIL_ADDRESS"])
"""

import ipaddress
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.data.config import NOT_INSTALLED

if TYPE_CHECKING:
    from presidio_analyzer import PatternRecognizer

RESERVED_DOMAINS = (
    "example",
    "example.com",
    "example.net",
    "example.org",
    "invalid",
    "localhost",
    "test",
)
"""Reserved domains (RFC 2606): not personal; surrogates use them."""

ROUTED_IPV6 = ipaddress.ip_network("2000::/3")
"""The only allocated part of IPv6. Outside it, `abc::def` is mostly a name in C++ or Rust."""

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
"""National identity numbers by Presidio's class; all have a checksum except US_ITIN."""

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
"""Not inside a word, a hexadecimal digest or a decimal fraction."""

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
"""By issuer. 13 digits that begin with 4, as on old Visa cards, are nowadays EAN bar codes."""

PATTERNS = {
    "EMAIL_ADDRESS": {
        "plain": (
            rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-]{{0,62}}[{LETTER}_%+\-])?{DOMAIN}",
            0.5,
        ),
        # An apostrophe is part of O'Brien; before a closing one it is a quotation mark.
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
        "url": (
            r"(?<![A-Za-z0-9.@])(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\-]{3,2000}",
            0.6,
        )
    },
}
"""Patterns and scores in place of Presidio's."""


def recognizers(kinds: Sequence[str]) -> dict[str, "PatternRecognizer"]:
    """Recognizers of each kind except telephone numbers, which detection.py reads itself."""
    try:
        from presidio_analyzer import Pattern, predefined_recognizers
    except ModuleNotFoundError as error:
        if error.name != "presidio_analyzer":
            raise
        raise OutriderError(NOT_INSTALLED) from None
    import regex

    # Presidio logs texts that it could not validate.
    logging.getLogger("presidio-analyzer").addFilter(lambda record: False)
    found: dict[str, Any] = {}  # mypy refuses the checks of Outrider in place of Presidio's
    for kind in kinds:
        if kind == "PHONE_NUMBER":
            continue
        made = getattr(predefined_recognizers, CLASSES[kind])
        if kind in PATTERNS:
            shapes = PATTERNS[kind].items()
            found[kind] = made([Pattern(name, *shape) for name, shape in shapes])
        else:
            found[kind] = made()
        found[kind].global_regex_flags |= regex.ASCII
    if "EMAIL_ADDRESS" in found:
        found["EMAIL_ADDRESS"].validate_result = _email_check()
    if "IP_ADDRESS" in found:
        found["IP_ADDRESS"].invalidate_result = _is_not_public
    return found


def _email_check() -> Callable[[str], bool]:
    from tldextract import TLDExtract

    # Presidio's own call downloads the list of suffixes and writes it below the home directory.
    suffixes = TLDExtract(suffix_list_urls=(), cache_dir=None)

    def valid(text: str) -> bool:
        local, _, domain = text.lower().rpartition("@")
        reserved = any(domain == name or domain.endswith("." + name) for name in RESERVED_DOMAINS)
        return not reserved and local != "git" and bool(suffixes.extract_str(domain).fqdn)

    return valid


def _is_not_public(text: str) -> bool:
    """Whether an IP address identifies nobody: private, reserved, or unallocated."""
    try:
        address = ipaddress.ip_interface(text).ip
    except ValueError:
        return True
    return not address.is_global or (address.version == 6 and address not in ROUTED_IPV6)
