"""Surrogates: same shape and checks, equal for all spellings, different under another key."""

import ipaddress
import re

import pytest

from outrider.data.config import PrivacyConfig
from outrider.data.privacy.detection import RESERVED_DOMAINS, PersonalDataFinder
from outrider.data.privacy.plain_text import PlainText
from outrider.data.privacy.surrogates import Replacements, Surrogates
from tests.data.personal import EXAMPLES

KEY = b"k" * 32


def replaced(kind, value, text=None, key=KEY):
    drawn = Surrogates(key, PrivacyConfig().phone_regions).value(kind, value)
    return Replacements([drawn]).sub(value if text is None else text)


def shape(text):
    return re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "0", text)))


FREE_SHAPE = ("EMAIL_ADDRESS", "URL", "IP_ADDRESS", "CRYPTO")
CHECKED = ("PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "MAC_ADDRESS", "US_SSN", "URL")


@pytest.mark.parametrize(("kind", "before", "value"), EXAMPLES)
def test_a_surrogate_has_the_shape_of_its_value(kind, before, value):
    drawn = replaced(kind, value)
    assert drawn != value and drawn == replaced(kind, value)
    assert drawn != replaced(kind, value, key=b"another key of 32 bytes, as long")
    if kind not in FREE_SHAPE:
        assert shape(drawn) == shape(value)
    if kind in CHECKED:
        finder = PersonalDataFinder(PrivacyConfig(mode="report", entities=[kind]))
        kinds_and_lengths = [
            (one.kind, one.end - one.start) for one in finder.find(f"{before} {drawn}")
        ]
        assert kinds_and_lengths == [(kind, len(drawn))]


@pytest.mark.parametrize(
    ("kind", "spellings"),
    [
        (
            "PHONE_NUMBER",
            ["+1 212 736 5000", "(212) 736-5000", "1-212-736-5000", "2127365000", "0012127365000"],
        ),
        ("PHONE_NUMBER", ["+49 30 901820", "030/901820", "+49 (0)30 901820", "004930901820"]),
        ("CREDIT_CARD", ["4111 1111 1111 1111", "4111111111111111", "4111-1111-1111-1111"]),
        (
            "IBAN_CODE",
            ["DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "de89370400440532013000"],
        ),
        ("US_SSN", ["219-09-9999", "219099999", "219 09 9999"]),
        ("MAC_ADDRESS", ["00:1A:2B:3C:4D:5E", "00-1a-2b-3c-4d-5e", "001A.2B3C.4D5E"]),
    ],
)
def test_every_spelling_becomes_the_same_surrogate_in_its_own_spelling(kind, spellings):
    for spelling in spellings[:2]:
        surrogate = replaced(kind, spelling, " | ".join(spellings)).split(" | ")
        assert [shape(text) for text in surrogate] == [shape(text) for text in spellings]
        tails = {"".join(filter(str.isalnum, text)).upper()[-8:] for text in surrogate}
        assert len(tails) == 1 and not tails & {
            "".join(filter(str.isalnum, text)).upper()[-8:] for text in spellings
        }


def test_what_is_drawn_is_nobodys():
    email = replaced("EMAIL_ADDRESS", "Ada.Lovelace99@analytical.org")
    assert re.fullmatch(r"[A-Z][a-z]{2}\.[A-Z][a-z]{7}\d\d@[a-z]+\.example\.(com|net|org)", email)
    colleague = replaced("EMAIL_ADDRESS", "bob@analytical.org")
    assert colleague.partition("@")[2] == email.partition("@")[2], "one organisation, one domain"
    assert (
        replaced("EMAIL_ADDRESS", "bob@analytical.org", "BOB@Analytical.org").lower() == colleague
    )
    for text in ("81.2.69.142", "2001:4860:4860::8888", "2001:4860:4860:1:2:3:4:5"):
        address = ipaddress.ip_address(replaced("IP_ADDRESS", text))
        assert not address.is_global, "of a range reserved for documentation"
    assert replaced("IP_ADDRESS", "81.2.69.142/24").endswith("/24")
    ssn = replaced("US_SSN", "219-09-9999")
    assert ssn[0] == "9" and int(ssn[4:6]) < 50, "never issued, and no taxpayer number"
    url = replaced("URL", "https://www.linkedin.com/in/ada-lovelace?page=1")
    host = re.fullmatch(r"https://([a-z.]+)/[a-z]{2}/[a-z]{3}-[a-z]{8}\?[a-z]{4}=\d", url)[1]
    assert host.endswith(RESERVED_DOMAINS)
    assert not {"ada", "lovelace", "linkedin"} & set(re.split(r"\W", url))


@pytest.mark.parametrize(
    ("kind", "value", "spellings"),
    [
        (
            "PHONE_NUMBER",
            "+49 30 901820",
            ["+49\u00a030\u00a0901820", "0049 30 901820", r"+49\u00a030\u00a0901820"],
        ),
        ("CREDIT_CARD", "4111 1111 1111 1111", ["4111\u20111111\u20111111\u20111111"]),
        ("IBAN_CODE", "DE89 3704 0044 0532 0130 00", ["de89\u202f3704 0044 0532 0130 00"]),
        ("EMAIL_ADDRESS", "ada@lovelace.org", ["ada%40lovelace.org", "ada (at) lovelace.org"]),
    ],
)
def test_unusual_spellings_become_the_same_surrogate(kind, value, spellings):
    usual = "".join(filter(str.isalnum, PlainText(replaced(kind, value)).text)).upper()
    for spelling in spellings:
        surrogate = PlainText(replaced(kind, value, f"[{spelling}]")).text
        assert "".join(filter(str.isalnum, surrogate)).upper()[-8:] == usual[-8:]


def test_a_key_keeps_its_issuers_prefix_only():
    drawn = replaced("SECRET", "sk-ant-api03-9bQ2vXk7Lr0TzWmC5dJf")
    assert re.fullmatch(r"sk-[a-z]{3}-[a-z]{3}\d\d-\d[a-z]Q?.*", drawn) and len(drawn) == 33
    assert "9bQ2" not in drawn
