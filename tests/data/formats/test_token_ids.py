"""Rows of token ids: JSON lines, Parquet and Arrow."""

import pytest

from outrider.common.errors import OutriderError
from outrider.data.formats import read_exchanges
from outrider.data.ingest.sources import log_files
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.formats.golden import GOLDEN
from tests.data.formats.golden_rows import ANSWERED, THOUGHT, one_each, reasons

LINES = "token_ids/ids.jsonl"


def test_ids_and_what_stands_beside_them():
    one = one_each(LINES)[1]
    assert (one.prompt_token_ids, one.completion_token_ids) == ([0, 17, 23, 42], [51, 52, 53, 1])
    assert (one.temperature, one.top_p, one.finish_reason, one.time) == (
        0.6,
        0.95,
        "stop",
        1782900001.0,
    )
    assert (one.model, one.session, one.tenant, one.weight) == (
        "deepseek-r1",
        "session-1",
        "acme",
        1.0,
    )


def test_texts_tool_calls_and_a_cut_off():
    found = one_each(LINES)
    assert (found[2].reasoning, found[2].content) == (THOUGHT, "\n\n" + ANSWERED)
    assert (found[3].finish_reason, found[3].weight) == ("stop", 0.5)
    assert found[4].finish_reason == "length"


def test_rows_that_are_no_exchange():
    assert reasons(one_each(LINES)) == {
        5: "incomplete_pair",
        6: "wrong_type",
        7: "not_finished",
        8: "not_json",
    }


@pytest.mark.parametrize("name", ["ids.parquet", "data-00000-of-00001.arrow"])
def test_tables_hold_the_same(name):
    found = one_each(f"token_ids/{name}")
    assert [found[row].completion_token_ids for row in (1, 2)] == [[51, 52, 1], [51, 1]]
    assert [found[row].temperature for row in (1, 2)] == [0.6, None]


def test_an_arrow_file_is_read_as_an_arrow_stream_is(tmp_path):
    import pyarrow as pa

    with pa.ipc.open_stream(str(GOLDEN / "token_ids/data-00000-of-00001.arrow")) as stream:
        table = stream.read_all()
    with (
        pa.OSFile(str(tmp_path / "ids.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    files = log_files(str(tmp_path / "ids.arrow"))
    assert [exchange.completion_token_ids for exchange in read_exchanges(files)] == [
        [51, 52, 1],
        [51, 1],
    ]
    cut = tmp_path / "cut.arrow"
    cut.write_bytes((tmp_path / "ids.arrow").read_bytes()[:300])
    with pytest.raises(OutriderError, match="damaged Arrow"):
        list(read_exchanges(log_files(str(cut))))


def test_they_are_used_untouched(text_target):
    sequence = SequenceBuilder(text_target).build(one_each(LINES)[1])
    assert sequence.fidelity == "exact" and sequence.token_ids == [0, 17, 23, 42, 51, 52, 53, 1]
    assert sequence.completion_start == 4
