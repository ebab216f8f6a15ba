"""Plain text: what is decoded, and that every position leads back to the original."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.privacy.plain_text import PlainText
from tests.fuzzing import examples


@pytest.mark.parametrize(
    ("original", "plain"),
    [
        ("a\u00a0b\u202fc\u3000d", "a b c d"),
        ("1\u20102\u20113\u20134\u22125", "1-2-3-4-5"),
        ("\uff11\u0662\u09693\U0001d7d2", "12३34".replace("३", "3")),
        ("\uff21\uff20\uff42\uff0e\uff43", "A@b.c"),
        (r"\u7535\u0031\n2\t3", "电1\n2\t3"),
        ("a%40b.c &commat; 1&nbsp;2", "a@b.c @ 1 2"),
        ("a (at) b [dot] c, d at e dot f", "a@b.c, d@e.f"),
        ("lo\u00advelace\u200b1\ufeff", "lovelace 1"),
        ("ada\u200b@\u200bacme.\u200bcom two\u200bwords", "ada@acme.com two words"),
        ("a%2540b%2Ec d&#x2e;e", "a@b.c d.e"),
        (r"a\\u0040b a\\\\u0040b &amp;#64; &amp;amp;commat;", "a@b a@b @ @"),
        ("ada@acme\u3002com \u597d\u3002ok", "ada@acme.com \u597d\u3002ok"),
        (r"\ud83d", " "),
        ("meet me at noon", "meet me at noon"),
    ],
)
def test_plain_forms(original, plain):
    assert PlainText(original).text == plain


@pytest.mark.timeout(120)
@pytest.mark.parametrize("repeated", ["\u200b", "\u200b.", " at ", " (", "&amp;", "\\", "\\u"])
def test_long_texts_take_linear_time(repeated: str) -> None:
    """A search that starts again at every place would take an hour."""
    PlainText(repeated * 300_000)


ALPHABET = "ab1 @.\\u0031nt%40&nbsp;(at)dot\u00a0\u00ad\u2011\uff11\u200b电"


@examples(300)
@given(st.text(st.sampled_from(ALPHABET), max_size=40))
def test_positions_lead_back(original):
    plain = PlainText(original)
    spans = [plain.span(index, index + 1) for index in range(len(plain.text))]
    assert all(0 <= start < end <= len(original) for start, end in spans)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    for (start, end), character in zip(spans, plain.text, strict=True):
        assert PlainText(original[start:end]).text in (character, "\\u")


def test_a_surrogate_keeps_the_separators_of_the_original():
    text = json.dumps({"card": "4111\u00a01111\t2"})
    plain = PlainText(text)
    start = plain.text.index("4111")
    respelled = plain.respell_span(start, start + 11, "5222 3333\t4")
    assert respelled == r"5222\u00a03333\t4"
