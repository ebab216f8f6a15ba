"""Personal data that tries to get through: what is found, what is not, and where it may stay.

`labelled.jsonl` measures recall; these are the forms that an attacker's or a careless user's text
has. A value holds if all of it is found with the kinds of a recipe's default.
"""

import json
from pathlib import Path

import pytest

from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.privacy.detection import PersonalDataFinder
from tests.data.logs import pair, write_log

SURROGATE = PrivacyConfig(mode="surrogate")

DOCUMENTED = [
    ("Write to ada@lovelace-labs.org", "ada@lovelace-labs.org"),
    ("Write to ADA.L+x@LOVELACE-LABS.ORG.", "ADA.L+x@LOVELACE-LABS.ORG"),
    ("Write to ada (at) lovelace-labs (dot) org", "ada (at) lovelace-labs (dot) org"),
    ("Write to ada[at]lovelace-labs.org", "ada[at]lovelace-labs.org"),
    ("user=john%40acme-works.com&x=1", "john%40acme-works.com"),
    ("user=john%2540acme-works.com", "john%2540acme-works.com"),
    ("Écrivez à luc@société.fr", "luc@société.fr"),
    ("Ask build@ci.acme.internal", "build@ci.acme.internal"),
    ("mail: ada\u200b@lovelace-labs.org", "ada\u200b@lovelace-labs.org"),
    ("mail: ａｄａ＠ｌａｂｓ．ｏｒｇ", "ａｄａ＠ｌａｂｓ．ｏｒｇ"),
    ("mail: ada&#64;lovelace-labs.org", "ada&#64;lovelace-labs.org"),
    ("call +49 30 901820", "+49 30 901820"),
    ("call +1 (212) 736-5000", "+1 (212) 736-5000"),
    ("phone 212-736-5000", "212-736-5000"),
    ("dial 0044 20 7946 0958", "0044 20 7946 0958"),
    ("звоните 8 (495) 123-45-67", "8 (495) 123-45-67"),
    ("phone \u0662\u0661\u0662-\u0667\u0663\u0666-\u0665\u0660\u0660\u0660",
     "\u0662\u0661\u0662-\u0667\u0663\u0666-\u0665\u0660\u0660\u0660"),
    ("tel 030\u2011901\u2011820", "030\u2011901\u2011820"),
    ("手机 13812345678", "13812345678"),
    ("card 4111 1111 1111 1111", "4111 1111 1111 1111"),
    ("card 4111.1111.1111.1111", "4111.1111.1111.1111"),
    ("card 4111\u00a01111\u00a01111\u00a01111", "4111\u00a01111\u00a01111\u00a01111"),
    ("card ４１１１１１１１１１１１１１１１", "４１１１１１１１１１１１１１１１"),
    ("card 4111_1111_1111_1111", "4111_1111_1111_1111"),
    ("card 378282246310005", "378282246310005"),
    ("IBAN DE89 3704 0044 0532 0130 00", "DE89 3704 0044 0532 0130 00"),
    ("iban de89370400440532013000", "de89370400440532013000"),
    ("IBAN DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000",
     "DE89\u00a03704\u00a00044\u00a00532\u00a00130\u00a000"),
    ("IBAN GB82-WEST-1234-5698-7654-32", "GB82-WEST-1234-5698-7654-32"),
    ("from 81.2.69.142", "81.2.69.142"),
    ("from 2001:4860:4860::8888", "2001:4860:4860::8888"),
    ("ssn 219-09-9999", "219-09-9999"),
    ("ssn 219 09 9999", "219 09 9999"),
    ("wallet 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"),
    ("wallet bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq",
     "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"),
    ("wallet 0x52908400098527886E0F7030069857D2E4169EE7",
     "0x52908400098527886E0F7030069857D2E4169EE7"),
    ("key sk-proj-9bQ2vXk7Lr0TzWmC5dJf9bQ2", "sk-proj-9bQ2vXk7Lr0TzWmC5dJf9bQ2"),
    ("key AKIA2VXK7LRQTZWMC5DJ", "AKIA2VXK7LRQTZWMC5DJ"),
    ("key ghp_9bQ2vXk7Lr0TzWmC5dJf9bQ2vXk7Lr0TzWmC", "ghp_9bQ2vXk7Lr0TzWmC5dJf9bQ2vXk7Lr0TzWmC"),
    ("auth eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.9bQ2vXk7Lr0TzWmC5dJf",
     "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.9bQ2vXk7Lr0TzWmC5dJf"),
    # Left: benchmarks/results/security.md
    ('Write to "ada l"@lovelace-labs.org', '"ada l"@lovelace-labs.org'),
    ("Write to ada@[81.2.69.142]", "ada@[81.2.69.142]"),
    ("Write to ada@\nlovelace-labs.org", "ada@\nlovelace-labs.org"),
    ("card 4111,1111,1111,1111", "4111,1111,1111,1111"),
    ("cardx4111111111111111", "4111111111111111"),
    ("key sk-proj-9bQ2\u200bvXk7Lr0TzWmC5dJf9bQ2", "sk-proj-9bQ2\u200bvXk7Lr0TzWmC5dJf9bQ2"),
    ("call two one two, seven three six, five thousand",
     "two one two, seven three six, five thousand"),
]  # fmt: skip
"""Texts with values of the documented kinds: (text, value)."""

LEFT = {
    '"ada l"@lovelace-labs.org': "a quoted name in an address",
    "ada@[81.2.69.142]": "an address with a numeric host",
    "ada@\nlovelace-labs.org": "a line break in an address",
    "4111,1111,1111,1111": "a card's number with commas",
    "4111111111111111": "a card's number with letters before it",
    "sk-proj-9bQ2\u200bvXk7Lr0TzWmC5dJf9bQ2": "a zero-width space in a key",
    "two one two, seven three six, five thousand": "a number in words; documented",
}

NOT_PROMISED = [
    ("I am Ada Lovelace", "Ada Lovelace"),
    ("Ich bin Karl-Heinz Müller", "Karl-Heinz Müller"),
    ("Je m'appelle Amélie Dupuis", "Amélie Dupuis"),
    ("我叫王小明", "王小明"),
    ("меня зовут Иван Петров", "Иван Петров"),
    ("12 St James's Square, London SW1Y 4JH", "12 St James's Square, London SW1Y 4JH"),
    ("Invalidenstraße 117, 10115 Berlin", "Invalidenstraße 117, 10115 Berlin"),
    ("born on 10 December 1815", "10 December 1815"),
    ("born 1815-12-10", "1815-12-10"),
    ("I work at Babbage & Co in the mill", "Babbage & Co"),
    ("she has diabetes type 1", "diabetes type 1"),
    ("my password is Countess1815!", "Countess1815!"),
    ("customer number 88123-A", "88123-A"),
    ("passport C01X00T47", "C01X00T47"),
    ("licence B072RRE2I55", "B072RRE2I55"),
    ("plate B-AL 1815", "B-AL 1815"),
    ("my handle is @adalovelace", "@adalovelace"),
    ("at 52.51627, 13.37770", "52.51627, 13.37770"),
    ("see https://www.linkedin.com/in/ada-lovelace", "https://www.linkedin.com/in/ada-lovelace"),
    ("mac 00:1a:2B:3C:4D:5E", "00:1a:2B:3C:4D:5E"),
    ("from 10.0.0.7", "10.0.0.7"),
    ("PESEL 44051401359", "44051401359"),
]  # fmt: skip
"""Kinds that docs/how-to/privacy.md says are not found, or only if a recipe lists them."""


def covers(text: str, value: str) -> bool:
    start = text.index(value)
    end = start + len(value)
    spans = PersonalDataFinder(SURROGATE).find(text)
    return any(span.start <= start and span.end >= end for span in spans)


def case(text: str, value: str, reason: str | None) -> object:
    """A pair of a text and its value; with a reason, the value is known to be left."""
    marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
    return pytest.param(text, value, id=value.encode("unicode_escape").decode(), marks=marks)


@pytest.mark.attack("personal")
@pytest.mark.parametrize(
    ("text", "value"), [case(text, value, LEFT.get(value)) for text, value in DOCUMENTED]
)
def test_a_value_of_a_documented_kind(text: str, value: str) -> None:
    assert covers(text, value)


@pytest.mark.attack("not_promised")
@pytest.mark.parametrize(
    ("text", "value"),
    [case(text, value, "docs/how-to/privacy.md: not found") for text, value in NOT_PROMISED],
)
def test_a_value_that_is_not_promised(text: str, value: str) -> None:
    assert covers(text, value)


EMAIL = "ada@lovelace-labs.org"
QUESTION = [{"role": "user", "content": "Hi"}]
CALL = {
    "id": EMAIL,
    "type": "function",
    "function": {"name": "mail", "arguments": json.dumps({"to": EMAIL})},
}
SCHEMA = {
    "type": "function",
    "function": {
        "name": "mail",
        "description": f"as {EMAIL} asked",
        "parameters": {"properties": {"to": {"enum": [EMAIL]}}},
    },
}
FIELDS: dict[str, dict[str, object]] = {
    "session": {"request__metadata__session_id": EMAIL},
    "user": {"request__user": EMAIL},
    "tenant": {"request__metadata__tenant": EMAIL},
    "route": {"request__metadata__route": EMAIL},
    "model": {"request__model": "nano-r1", "response__system_fingerprint": EMAIL},
    "system": {"request__messages": [{"role": "system", "content": EMAIL}, *QUESTION]},
    "name": {"request__messages": [{**QUESTION[0], "name": EMAIL}]},
    "parts": {
        "request__messages": [{"role": "user", "content": [{"type": "text", "text": EMAIL}]}]
    },
    "tool-call": {
        "request__messages": [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": EMAIL, "content": f"sent to {EMAIL}"},
        ]
    },
    "tool-schema": {"request__tools": [SCHEMA]},
    "template": {"request__chat_template_kwargs": {EMAIL: EMAIL}},
    "grammar": {"request__response_format": {"type": "json_object", "note": EMAIL}},
    "stop": {"request__stop": [EMAIL]},
    "metadata": {"request__metadata__note": EMAIL},
    "reasoning": {"response__choices__0__message__reasoning": f"I write to {EMAIL}"},
    "response": {"response__choices__0__message__content": f"I write to {EMAIL}"},
    "response-id": {"response__id": EMAIL},
}
"""Fields of a row that may have personal data."""


def texts_below(folder: Path) -> bytes:
    """Names and contents of all files below a folder."""
    paths = sorted(folder.rglob("*"))
    names = [str(path.relative_to(folder)).encode() for path in paths]
    return b"\n".join([*names, *(path.read_bytes() for path in paths if path.is_file())])


@pytest.mark.attack("fields")
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_row(
    text_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str
) -> None:
    """No file of the ingest and no message has it, whether the row is kept or dropped."""
    row = pair(QUESTION, "r", "a", **{"response__id": "c-2", **FIELDS[field]})
    write_log(tmp_path / "log.jsonl", [pair(QUESTION, "r", "a", response__id="c-1"), row])
    traffic = TrafficConfig(path=str(tmp_path / "log.jsonl"), max_reject_fraction=0.9)
    ingest(text_target, traffic, tmp_path / "out", workers=0, privacy=SURROGATE)
    printed = capsys.readouterr()
    assert b"lovelace" not in texts_below(tmp_path / "out")
    assert "lovelace" not in printed.out + printed.err


@pytest.mark.attack("fields")
@pytest.mark.parametrize(
    "line",
    [
        f'{{"request": {{"messages": "{EMAIL}"',
        f'"{EMAIL}"',
        f'{{"{EMAIL}": 1}}',
        f"{EMAIL} called at noon",
    ],
    ids=["cut", "text", "key", "words"],
)
def test_a_broken_row(
    text_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    write_log(tmp_path / "log.jsonl", [pair(QUESTION, "r", "a"), line.encode()])
    traffic = TrafficConfig(path=str(tmp_path / "log.jsonl"), max_reject_fraction=0.9)
    ingest(text_target, traffic, tmp_path / "out", workers=0, privacy=SURROGATE)
    printed = capsys.readouterr()
    assert b"lovelace" not in texts_below(tmp_path / "out")
    assert "lovelace" not in printed.out + printed.err


@pytest.mark.attack("fields")
@pytest.mark.xfail(
    strict=True, reason="the name of a log's file is stored, so that rows are traced"
)
def test_a_file_name(text_target: Path, tmp_path: Path) -> None:
    write_log(tmp_path / f"{EMAIL}.jsonl", [pair(QUESTION, "r", "a")])
    traffic = TrafficConfig(path=str(tmp_path / f"{EMAIL}.jsonl"))
    ingest(text_target, traffic, tmp_path / "out", workers=0, privacy=SURROGATE)
    assert b"lovelace" not in texts_below(tmp_path / "out")
