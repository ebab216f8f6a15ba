"""Presidio's recognizers for logs: no model, no network, boundaries in any script.

Presidio's patterns end at word boundaries, and Python counts Chinese characters as word characters:
a number directly after one is missed, hence the ASCII flag. Where Presidio's pattern matches too
much (an e-mail's local part with `=` and quotes) or too little (cards of any issuer with 16
digits), it is replaced through the constructor.

    recognizers(["EMAIL_ADDRESS"])["EMAIL_ADDRESS"].analyze("ada@lovelace.org", ["EMAIL_ADDRESS"])
"""

import importlib
import ipaddress
import logging
import sys
from collections.abc import Sequence
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

LEFT, RIGHT = r"(?<![A-Za-z0-9])(?<!\d[.,])", r"(?![A-Za-z0-9])(?![.,]\d)"
"""Not inside a word, a hexadecimal digest or a decimal fraction."""

LETTER, DOMAIN = (
    "A-Za-zÀ-ɏ0-9",
    r"@[a-z0-9]+(?:-+[a-z0-9]+)*(?:\.[a-z0-9]+(?:-+[a-z0-9]+)*)+(?![A-Za-z0-9])",
)
EMAILS = {
    "plain": rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-]{{0,62}}[{LETTER}_%+\-])?{DOMAIN}",
    # An apostrophe is part of O'Brien; before a closing one it is a quotation mark.
    "with an apostrophe": rf"(?<![{LETTER}])[{LETTER}]"
    rf"(?:[{LETTER}._%+\-']{{0,62}}[{LETTER}_%+\-])?{DOMAIN}(?!')",
}
CARDS = {
    "16 digits": r"(?:4\d{3}|5\d{3}|6\d{3}|2[2-7]\d{2}|35\d{2})(?:[- ]?\d{4}){3}",
    "15 digits": r"3[47]\d{2}[- ]?\d{6}[- ]?\d{5}",
    "14 digits": r"3(?:0[0-5]|[689]\d)\d[- ]?\d{6}[- ]?\d{4}",
    "19 digits": r"(?:4\d{3}|62\d{2})(?:[- ]?\d{4}){3}[- ]?\d{3}",
}
"""By issuer. 13 digits that begin with 4, as on old Visa cards, are nowadays EAN bar codes."""
SSN = {
    "dashes": (r"\d{3}-\d{2}-\d{4}", 0.5),
    "spaces": (r"\d{3}([ .])\d{2}\1\d{4}", 0.25),
    "bare": (r"\d{9}", 0.2),
}
URL = r"(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\-]{3,2000}"


def recognizers(kinds: Sequence[str]) -> dict[str, "PatternRecognizer"]:
    """Recognizers of each kind except telephone numbers, which detection.py reads itself."""
    presidio = _presidio()
    _keep_values_out_of_logs()
    import regex

    made = {kind: _recognizer(kind, presidio) for kind in kinds if kind != "PHONE_NUMBER"}
    for recognizer in made.values():
        recognizer.global_regex_flags |= regex.ASCII
    return made


def _recognizer(kind: str, presidio: Any) -> "PatternRecognizer":
    from presidio_analyzer import Pattern

    def patterns(shapes: dict[str, tuple[str, float]]) -> list[Pattern]:
        return [
            Pattern(name, LEFT + shape + RIGHT, score) for name, (shape, score) in shapes.items()
        ]

    match kind:
        case "EMAIL_ADDRESS":
            return _email(presidio, [Pattern(name, shape, 0.5) for name, shape in EMAILS.items()])
        case "CREDIT_CARD":
            return presidio.CreditCardRecognizer(
                patterns({name: (shape, 0.3) for name, shape in CARDS.items()})
            )
        case "US_SSN":
            return presidio.UsSsnRecognizer(patterns(SSN))
        case "URL":
            return presidio.UrlRecognizer([Pattern("url", rf"(?<![A-Za-z0-9.@]){URL}", 0.6)])
        case "IP_ADDRESS":
            return _public_ip(presidio)
        case "IBAN_CODE":
            return presidio.IbanRecognizer()
        case "CRYPTO":
            return presidio.CryptoRecognizer()
        case "MAC_ADDRESS":
            return presidio.MacAddressRecognizer()
    return getattr(presidio, NATIONAL[kind])()


def _email(presidio: Any, patterns: list) -> "PatternRecognizer":
    from tldextract import TLDExtract

    # Presidio's own call downloads the list of suffixes and writes it below the home directory.
    suffixes = TLDExtract(suffix_list_urls=(), cache_dir=None)

    class Email(presidio.EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            local, _, domain = pattern_text.lower().rpartition("@")
            reserved = any(
                domain == name or domain.endswith("." + name) for name in RESERVED_DOMAINS
            )
            return not reserved and local != "git" and bool(suffixes.extract_str(domain).fqdn)

    return Email(patterns)


def _public_ip(presidio: Any) -> "PatternRecognizer":
    class PublicIp(presidio.IpRecognizer):
        def invalidate_result(self, pattern_text: str) -> bool:
            try:
                address = ipaddress.ip_interface(pattern_text).ip
            except ValueError:
                return True
            return not address.is_global or (address.version == 6 and address not in ROUTED_IPV6)

    return PublicIp()


def _presidio() -> Any:
    """Imports Presidio without torch and transformers.

    It and spaCy import them, if installed, for models that are not used here: 25 s and 570 MB per
    process instead of 2 s and 100 MB.
    """
    names = ("torch", "transformers")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    for name in names:
        sys.modules[name] = None  # type: ignore[assignment]  # makes the import fail
    try:
        return importlib.import_module("presidio_analyzer.predefined_recognizers")
    except ModuleNotFoundError as error:
        if error.name != "presidio_analyzer":
            raise
        raise OutriderError(NOT_INSTALLED) from None
    finally:
        for name in names:
            del sys.modules[name]
        sys.modules.update(before)


def _keep_values_out_of_logs() -> None:
    """Silences Presidio, which logs texts that it could not validate."""
    logging.getLogger("presidio-analyzer").addFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
