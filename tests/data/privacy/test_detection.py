"""Personal data that is found, and similar text that is not, for every kind."""

import sys
import time
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.data.config import PersonalKind, PrivacyConfig
from outrider.data.privacy.detection import PIECE, RESERVED_DOMAINS, PersonalDataFinder
from outrider.data.privacy.guard import PrivacyGuard
from tests.data.personal import EXAMPLES
from tests.data.privacy.recall import SECOND, THIRD, false_alarms, labelled_rows, recall_by_kind
from tests.fuzzing import examples


@pytest.fixture(scope="module")
def default():
    return PersonalDataFinder(PrivacyConfig(mode="report"))


@pytest.fixture(scope="module")
def every():
    return PersonalDataFinder(
        PrivacyConfig(mode="report", entities=list(typing.get_args(PersonalKind)))
    )


def found(finder, text, before=""):
    return [(one.kind, text[one.start : one.end]) for one in finder.find(text, before)]


@pytest.mark.parametrize(("kind", "before", "value"), EXAMPLES)
def test_each_kind_is_found_beside_words_and_chinese(every, kind, before, value):
    for text in (
        f"{before} {value}",
        f"{before}: {value}.",
        f"请看 {before}：{value}，谢谢",
        f"({before} {value})",
    ):
        assert (kind, value) in found(every, text), text


@pytest.mark.parametrize(
    "text",
    [
        "Order 4155552671, receipt number 2125550198, total 1,234.50, invoice 030901820",
        "TABLE 12 34 56 78 90 12 34 56, 2024-05-01 12:30:11, 01/05/2024 18:22:01",
        "EAN 4006381333931, order 4539578763621487, 0.4539578763621486 and a4539578763621486f",
        "version 1.2.3.4, v8.8.8.8, build: 81.2.69.142, OID 1.3.6.1.4.1.5923, section 1.2.3.4",
        "127.0.0.1 192.168.1.20 10.0.0.1 0.0.0.0 255.255.255.0 fe80::1 ::1 198.51.100.7",
        "std::vector abc::def Add::new cafe::main",
        "a @ b, @decorator, x@y, react@18.2.0, user@localhost, ada@example.com, "
        "git@github.com:outrider/x.git",
        "123-45-6789 000-12-3456 219 09 9999 219099999",
        "DE89 3704 0044 0532 0130 01, GB82TEST12345698765432X",
        "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN3",
        "https://docs.python.org/3/library/re.html, see www.python.org",
        "",
        "no digit here",
    ],
)
def test_what_only_looks_like_it_is_left_alone(default, text):
    assert found(default, text) == []


def test_a_telephone_number_needs_a_word_or_a_shape_of_its_own(default):
    assert found(default, "Phone: (212) 736-5000\nOrder 4155552671") == [
        ("PHONE_NUMBER", "(212) 736-5000")
    ]
    assert found(default, "on 2124567890") == [] != found(default, "tel 2124567890")
    assert found(default, "Tel:\n030 901820") == [("PHONE_NUMBER", "030 901820")]
    assert found(default, "+49 (0)30 901820, +1 212 736 5000 ext. 12") == [
        ("PHONE_NUMBER", "+49 (0)30 901820"),
        ("PHONE_NUMBER", "+1 212 736 5000 ext. 12"),
    ]
    assert found(default, '{"phone": "2127365000", "order": "4155550132"}') == [
        ("PHONE_NUMBER", "2127365000")
    ]
    assert found(default, "2127365000", before="contactPhone: ") == [("PHONE_NUMBER", "2127365000")]
    assert found(default, r"{\"\u7535\u8bdd\": \"13812345678\"}") == [
        ("PHONE_NUMBER", "13812345678")
    ]
    only_us = PersonalDataFinder(PrivacyConfig(mode="report", phone_regions=["US"]))
    assert found(only_us, "tel 030 901820, tel 2127365000") == [("PHONE_NUMBER", "2127365000")]


def test_values_stand_clear_of_escapes_quotes_and_markup(default):
    text = r'{"text": "hi\nada@lovelace.org\n4111111111111111\u7535+49 30 901820"}'
    assert [value for _, value in found(default, text)] == [
        "ada@lovelace.org",
        "4111111111111111",
        "+49 30 901820",
    ]
    for text in (
        "f'ada@lovelace.org'",
        "mailto:ada@lovelace.org?x",
        "to=ada@lovelace.org;",
        "<ada@lovelace.org>",
        "**ada@lovelace.org**",
    ):
        assert found(default, text) == [("EMAIL_ADDRESS", "ada@lovelace.org")], text
    assert found(default, "o'brien@lovelace.org") == [("EMAIL_ADDRESS", "o'brien@lovelace.org")]


def test_an_encrypted_private_key_is_found_whole(default):
    """Its headers have hyphens (RFC 1421)."""
    body = "MIIEowIBAAKCAQEA7bq98M0a1kS2vGhyT3nR5wXzQ4cJ8dLf"
    key = (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0A1B\n\n"
        f"{body}\n{body}\n-----END RSA PRIVATE KEY-----"
    )
    assert found(default, f"key:\n{key}\n") == [("SECRET", key)]


def test_a_card_with_underscores_is_found(default):
    assert found(default, "4111_1111_1111_1111") == [("CREDIT_CARD", "4111_1111_1111_1111")]


def test_a_long_row_of_values_is_cut_nowhere(default):
    values = [f"person{index}@lovelace.org" for index in range(3 * PIECE // 20)]
    assert [value for _, value in found(default, " ".join(values))] == values


def test_a_missing_installation_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "presidio_analyzer", None)
    monkeypatch.delitem(sys.modules, "outrider.data.privacy.detection")
    with pytest.raises(OutriderError, match="privacy"):
        PrivacyGuard(PrivacyConfig(), bytes(32), str)


@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "1 2 ",
        "@",
        "a@",
        "a.",
        ":",
        "a:",
        "1.",
        "\\n",
        "+1",
        "tel 1 ",
        "DE12 ",
        "A1",
        "ada@lovelace.org ",
        " at a dot b",
        "&#64;",
        "00 1 ",
        "sk-",
        "-eyJ-",
        "token=",
        "-----BEGIN PRIVATE KEY-----",
        "\u00ad1",
    ],
)
def test_hostile_texts_take_time_in_proportion_to_their_length(default, piece):
    def seconds(length):
        begin = time.process_time()
        default.find(piece * (length // len(piece)))
        return time.process_time() - begin

    seconds(1000)
    # Twenty times the length; a quadratic search would take 400 times the time.
    assert seconds(200_000) < 100 * max(seconds(10_000), 0.002)


def test_recall_and_false_alarms_of_the_labelled_set():
    """At least 97 % of each kind; of a kind with fewer than 34 values, all."""
    counts, missed = recall_by_kind([row for row in labelled_rows() if row["kind"]])
    assert counts.total() == 300
    for kind, count in counts.items():
        missed_of_kind = [row for row in missed if row["kind"] == kind]
        assert len(missed_of_kind) <= 0.03 * count, missed_of_kind
    alarms, words = false_alarms([row["text"] for row in labelled_rows() if not row["kind"]])
    assert words > 300 and alarms == []


def test_recall_of_a_second_author_s_values():
    """Addresses of reserved domains, which nobody has, stay; the author could not know that."""
    rows = [row for row in labelled_rows(SECOND) if row["kind"]]
    personal = [row for row in rows if not row["value"].endswith(RESERVED_DOMAINS)]
    counts, missed = recall_by_kind(personal)
    assert counts.total() > 240
    assert len(missed) <= 0.03 * counts.total(), missed


def test_recall_of_a_third_author_s_values():
    """Missed are passwords in sentences and the addresses of documentation, which nobody has."""
    rows = labelled_rows(THIRD)
    counts, missed = recall_by_kind([row for row in rows if row["kind"]])
    assert counts.total() == 200
    assert len(missed) <= 0.03 * counts.total(), missed
    alarms, words = false_alarms([row["text"] for row in rows if not row["kind"]])
    assert words > 900 and alarms == []


SEPARATORS = {" ": " \u00a0\u202f\u2007\u2009\u3000", "-": "-\u2010\u2011\u2012\u2013\u2212\uff0d"}
"""Spellings of separators in texts from PDFs, word processors and input methods."""


@st.composite
def spelled(draw):
    """A value of any kind in another spelling, between marks of direction or not."""
    kind, word, value = draw(st.sampled_from(EXAMPLES))
    characters = [draw(st.sampled_from(SEPARATORS.get(one, one))) for one in value]
    if draw(st.booleans()):
        characters = [chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in characters]
    spelling = "".join(characters)
    before, after = draw(st.sampled_from([("", ""), ("\u202a", "\u202c"), ("\u200e", "")]))
    return kind, f"{word} {before}{spelling}{after} ", spelling


@examples(200)
@given(spelled())
def test_a_value_is_found_in_every_spelling(every, drawn):
    kind, text, spelling = drawn
    assert (kind, spelling) in found(every, text)


def test_names_of_programs_are_not_keys(default):
    text = "hf_hub_download_with_retries, sk-loading-indicator-two, secret_santa_list_of_all, token"
    assert found(default, text) == []
