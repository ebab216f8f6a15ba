"""Presidio's recognisers, set up for logs: no model, no network, boundaries that hold beside any script.

Presidio's own patterns end a value at a word boundary, and Python counts Chinese characters as word characters, so that a number
directly behind one is missed; hence the ASCII flag. Where Presidio's pattern takes too much (an e-mail's local part with `=` and
quotes) or too little (cards by 16 digits of any issuer), it gets another one through the argument that it has for this.

    recognisers(["EMAIL_ADDRESS"])["EMAIL_ADDRESS"].analyze("ada@lovelace.org", ["EMAIL_ADDRESS"])
"""

import importlib
import ipaddress
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from outrider.common.errors import OutriderError
from outrider.data.config import NOT_INSTALLED

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer

RESERVED_DOMAINS = (
    "example",
    "example.com",
    "example.net",
    "example.org",
    "invalid",
    "localhost",
    "test",
)
"""Nobody's (RFC 2606): not personal, and what surrogates use."""

ROUTED_IPV6 = ipaddress.ip_network("2000::/3")
"""The only part of IPv6 that is given to anyone. Outside it `abc::def` is mostly a name in C++ or Rust."""

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
"""Personal numbers of countries, by Presidio's class; each with a checksum, but US_ITIN."""

LEFT, RIGHT = r"(?<![A-Za-z0-9])(?<!\d[.,])", r"(?![A-Za-z0-9])(?![.,]\d)"
"""Not inside a word, a hexadecimal digest or a decimal fraction."""

LETTER, DOMAIN = (
    "A-Za-zÀ-ɏ0-9",
    r"@[a-z0-9]+(?:-+[a-z0-9]+)*(?:\.[a-z0-9]+(?:-+[a-z0-9]+)*)+(?![A-Za-z0-9])",
)
EMAILS = {
    "plain": rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-]{{0,62}}[{LETTER}_%+\-])?{DOMAIN}",
    # An apostrophe belongs to O'Brien; before a closing one it is a quotation mark.
    "with an apostrophe": rf"(?<![{LETTER}])[{LETTER}](?:[{LETTER}._%+\-']{{0,62}}[{LETTER}_%+\-])?{DOMAIN}(?!')",
}
CARDS = {
    "16 digits": r"(?:4\d{3}|5\d{3}|6\d{3}|2[2-7]\d{2}|35\d{2})(?:[- ]?\d{4}){3}",
    "15 digits": r"3[47]\d{2}[- ]?\d{6}[- ]?\d{5}",
    "14 digits": r"3(?:0[0-5]|[689]\d)\d[- ]?\d{6}[- ]?\d{4}",
    "19 digits": r"(?:4\d{3}|62\d{2})(?:[- ]?\d{4}){3}[- ]?\d{3}",
}
"""By issuer; thirteen digits that begin with 4, as old Visa cards have, are EAN bar codes nowadays."""
SSN = {
    "dashes": (r"\d{3}-\d{2}-\d{4}", 0.5),
    "spaces": (r"\d{3}([ .])\d{2}\1\d{4}", 0.25),
    "bare": (r"\d{9}", 0.2),
}
URL = r"(?:https?://|www\.)[A-Za-z0-9._~:/?#@!$&*+,;=%\-]{3,2000}"


def recognisers(kinds: Sequence[str]) -> dict[str, "EntityRecognizer"]:
    """Of each kind but telephone numbers, which data/privacy/detection.py reads with python-phonenumbers as Presidio does."""
    presidio = _presidio()
    _keep_values_out_of_logs()
    import regex

    made = {kind: _recogniser(kind, presidio) for kind in kinds if kind != "PHONE_NUMBER"}
    for recogniser in made.values():
        recogniser.global_regex_flags |= regex.ASCII
    return made


def _recogniser(kind: str, presidio: ModuleType) -> "EntityRecognizer":
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


def _email(presidio: ModuleType, patterns: list) -> "EntityRecognizer":
    from tldextract import TLDExtract

    # Presidio's own call fetches the list of suffixes from the network, and writes it below the home directory.
    suffixes = TLDExtract(suffix_list_urls=(), cache_dir=None)

    class Email(presidio.EmailRecognizer):
        def validate_result(self, pattern_text: str) -> bool:
            local, _, domain = pattern_text.lower().rpartition("@")
            reserved = any(
                domain == name or domain.endswith("." + name) for name in RESERVED_DOMAINS
            )
            return not reserved and local != "git" and bool(suffixes.extract_str(domain).fqdn)

    return Email(patterns)


def _public_ip(presidio: ModuleType) -> "EntityRecognizer":
    class PublicIp(presidio.IpRecognizer):
        def invalidate_result(self, pattern_text: str) -> bool:
            try:
                address = ipaddress.ip_interface(pattern_text).ip
            except ValueError:
                return True
            return not address.is_global or (address.version == 6 and address not in ROUTED_IPV6)

    return PublicIp()


def _presidio() -> ModuleType:
    """Presidio without torch and transformers, which it and spaCy import, where they are there, for models that are not used here:
    2 s and 100 MB a process instead of 25 s and 570 MB."""
    names = ("torch", "transformers")
    before = {name: sys.modules[name] for name in names if name in sys.modules}
    sys.modules.update(dict.fromkeys(names))  # None: importing it fails
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
    """Presidio logs the text that it could not validate."""
    logging.getLogger("presidio-analyzer").addFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False
