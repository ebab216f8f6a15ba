"""Rows whose logged text has a mask where the engine had other tokens."""

import dataclasses

import pytest

from outrider.data.config import TrafficConfig
from outrider.data.files.sources import log_files
from outrider.data.ingest.ingest import ingest
from outrider.data.tokenize.masked import MASK
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import pair, read_exchanges, write_log

MASKED = "Write to [REDACTED], please."


def row(content, **counts):
    messages = [{"role": "user", "content": content}]
    return pair(messages, "r\n", "\n\na", response__usage=counts)


def counts_of(target, tmp_path, content):
    """The tokens of a prompt and its response."""
    (exchange,) = read_exchanges(log_files(str(write_log(tmp_path / "one.jsonl", [row(content)]))))
    sequence = SequenceBuilder(target).build(dataclasses.replace(exchange, place=None))
    prompt = sequence.completion_start
    return {"prompt_tokens": prompt, "completion_tokens": len(sequence.token_ids) - prompt}


def rejects(target, tmp_path, rows):
    path = write_log(tmp_path / "log.jsonl", rows)
    traffic = TrafficConfig(path=str(path), max_reject_fraction=0.99)
    return ingest(target, traffic, tmp_path / "out")["rejects"]


def test_a_masked_text_is_rejected_if_the_engine_counted_other_tokens(text_target, tmp_path):
    counts = counts_of(text_target, tmp_path, MASKED)
    others = counts | {"prompt_tokens": counts["prompt_tokens"] + 5}
    rows = [row(MASKED, **others), row("Write to Ada, please.", **others)]
    assert rejects(text_target, tmp_path, rows) == {"redacted": 1}


@pytest.mark.parametrize("is_counted", [True, False])
def test_a_mask_that_the_engine_read_is_text(text_target, tmp_path, is_counted):
    counts = counts_of(text_target, tmp_path, MASKED) if is_counted else {}
    assert rejects(text_target, tmp_path, [row(MASKED, **counts)]) == {}


@pytest.mark.parametrize(
    "text",
    ["[REDACTED]", "[redacted-email]", "[EMAIL_ADDRESS]", "<PERSON>", "{NAME}", "[Filtered]"],
)
def test_masks_of_loggers(text):
    assert MASK.search(f"To {text}.")


@pytest.mark.parametrize(
    "text", ["Write to ********: her refund", "My SSN: *********", "is *********."]
)
def test_asterisks_inside_a_sentence_are_a_mask(text):
    assert MASK.search(text)


@pytest.mark.parametrize("text", ["/*********\n * main.c", "Title\n********\n", "rate it *****"])
def test_asterisks_of_code_and_markdown_are_none(text):
    assert not MASK.search(text)


@pytest.mark.parametrize(
    "text", ["[1]", "<div>", "{x}", "[see below]", "List<String>", "[]", "**b**", "***** five"]
)
def test_other_brackets_are_no_masks(text):
    assert not MASK.search(f"To {text}.")
