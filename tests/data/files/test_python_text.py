"""Python's text of objects, in place of JSON."""

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.data.exchange import Exchange
from outrider.data.files.python_text import LONGEST, MOST_COMMAS, python_value
from outrider.data.files.sources import log_files
from tests.data.logs import pair, read_exchanges
from tests.fuzzing import examples

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(st.dictionaries(st.text(), VALUES, min_size=1))
@examples(50)
def test_what_python_writes_is_read_as_it_was(value):
    text = repr(value)
    # Python writes a key with a single quote in double quotes, and infinity without a literal.
    if text.startswith("{'") and "inf" not in text:
        assert python_value(text) == value


def test_a_model_is_an_object_of_its_fields():
    text = "Reply(id='a', choices=[Choice(index=0, message=Message(content='b', calls=None))])"
    message = {"content": "b", "calls": None}
    assert python_value(text) == {"id": "a", "choices": [{"index": 0, "message": message}]}


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "'a'", '{"a": 1}', "{'a': 1", "{'a': b}", "{'a': 1, 'a': 2}", "{1: 2}"),
        *("{'a': f()}", "{'a': 1 .real}", "Model(__import__('os'))", "Model(a=open('x'))"),
        *("{'a': [x for x in y]}", "{**{'a': 1}}", "{'a': b'x'}", "Model(a=1).b", "Model('a')"),
        "{'a': " * 3000,
        "{'a': '" + "x" * LONGEST + "'}",
        "{'a': [" + "1, " * MOST_COMMAS + "1, 1]}",
    ],
)
def test_other_text_is_neither_read_nor_run(text):
    with pytest.raises(ValueError):
        python_value(text)


def test_rows_and_cells_that_python_wrote_are_read(tmp_path):
    row = pair([{"role": "user", "content": "It's \\n"}], "r\n", "a")
    (tmp_path / "printed.log").write_text(f"{row}\n")
    with (tmp_path / "pandas.csv").open("w", newline="") as table:
        csv.writer(table).writerows([row.keys(), row.values()])
    for name in ("printed.log", "pandas.csv"):
        (exchange,) = read_exchanges(log_files(str(tmp_path / name)))
        assert isinstance(exchange, Exchange)
        assert (exchange.reasoning, exchange.content) == ("r\n", "a")
