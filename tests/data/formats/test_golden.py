"""Golden logs of every producer against their expected outcomes, row by row.

`golden/expected.json` is the reference: each exchange with the text that its tokens spell, and each
reject with its reason. After an intended change, write it again and review its diff:

    WRITE_GOLDEN=1 .venv/bin/python -m pytest tests/data/formats/test_golden.py

Folders of `save_to_disk` and what forces tokens have tests of their own.
"""

import dataclasses
import json
import os
import pickle
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.sources import log_files
from outrider.data.formats import FORMATS, files_by_format, parse_record, read_records
from outrider.data.formats.calls.sampling import constraint_of, sampling_of
from outrider.data.tokenize.tokens import SequenceBuilder
from tests.data.logs import read_exchanges

GOLDEN = Path(__file__).parents[1] / "golden"
EXPECTED = GOLDEN / "expected.json"
FOLDERS = {
    path.name: path.name if path.name in FORMATS else "openai_pairs"
    for path in sorted(GOLDEN.iterdir())
    if path.is_dir()
}
"""Format of each folder. Those without a format's name have other spellings of one."""
FOLDERS["openai_chunks"] = "openai_joined"

CUSTOMERS_WORDS = ("Husum", "Tönning", "museum", "résumé", "screening", "Ines")


@pytest.fixture(scope="module")
def expected():
    held = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    yield held
    if os.environ.get("WRITE_GOLDEN"):
        EXPECTED.write_text(one_outcome_a_line(held), encoding="utf-8")


def one_outcome_a_line(held: dict) -> str:
    folders = [
        f'"{name}": [\n'
        + ",\n".join(json.dumps(one, ensure_ascii=False, sort_keys=True) for one in held[name])
        + "\n]"
        for name in FOLDERS
    ]
    return "{\n" + ",\n".join(folders) + "\n}\n"


def test_every_format_has_a_golden_log():
    assert set(FOLDERS.values()) == set(FORMATS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_golden_log_gives_its_expected_outcomes(folder, builder, expected, tmp_path):
    files = log_files(str(GOLDEN / folder))
    assert set(files_by_format(files)) == {FOLDERS[folder]}
    items = list(read_records(FOLDERS[folder], files, tmp_path))
    assert sum(item.rows for item in items) == sum(file.rows for file in files) > 0
    outcome_records = []
    for item in items:
        rows = {"rows": item.rows} if item.rows > 1 else {}
        if isinstance(item, Record):
            item = pickle.loads(pickle.dumps(item))  # as a worker receives it
            outcomes = parse_record(FOLDERS[folder], item)
        else:
            outcomes = [item]
        outcome_records += [described(outcome, builder) | rows for outcome in outcomes]
    details = " ".join(outcome.get("detail", "") for outcome in outcome_records)
    assert not any(word in details for word in CUSTOMERS_WORDS)
    if os.environ.get("WRITE_GOLDEN"):
        expected[folder] = outcome_records
    assert outcome_records == expected[folder]


def described(outcome: Exchange | Reject, builder: SequenceBuilder) -> dict:
    """An outcome as JSON: what was logged, and what the training sequence says."""
    row_reference = f"{Path(outcome.place.file).relative_to(GOLDEN)}:{outcome.place.line}"
    if isinstance(outcome, Reject):
        return {"at": row_reference, "reason": outcome.reason, "detail": outcome.detail}
    fields = {
        field.name: getattr(outcome, field.name)
        for field in dataclasses.fields(outcome)
        if field.name != "place"
        and getattr(outcome, field.name) not in (None, field.default, (), {})
    }
    try:
        sequence = builder.build(outcome)
    except Reject as reject:
        built = {"rejected": reject.reason}
    else:
        completion = builder.decode(sequence.token_ids[sequence.completion_start :])
        built = {"prompt": sequence.prompt_text, "completion": completion}
    return json.loads(json.dumps({"at": row_reference, **fields, "tokens": built}))


ASKED, ANSWERED = "When is the library open?", "From 10:00 to 13:00."
CONVERSATIONS = [
    {
        "messages": [
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": f"{ANSWERED} {number}", "reasoning_content": "Hm."},
        ]
    }
    for number in range(5)
]


@pytest.mark.parametrize(
    "data_set",
    [
        Dataset.from_list(CONVERSATIONS),
        DatasetDict(
            train=Dataset.from_list(CONVERSATIONS[:3]), test=Dataset.from_list(CONVERSATIONS[3:])
        ),
    ],
)
def test_a_folder_of_save_to_disk(tmp_path, data_set):
    data_set.save_to_disk(tmp_path / "saved")
    not_read = []
    (files,) = files_by_format(log_files(str(tmp_path / "saved")), not_read=not_read).values()
    assert {file.path.rpartition(".")[2] for file in files} == {"arrow"}
    assert all(".json (rows with the keys" in entry for entry in not_read)
    contents = sorted(exchange.content for exchange in read_exchanges(files))
    assert contents == [f"{ANSWERED} {number}" for number in range(5)]


TOOL = {"type": "function", "function": {"name": "opening_hours", "parameters": {}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
STRICT = {**TOOL, "function": {**TOOL["function"], "strict": True}}


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, "grammar"),
        ({"response_format": JSON_SCHEMA}, "grammar"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "grammar"),
        ({"guided_json": {"type": "object"}}, "grammar"),
        ({"guided_choice": None}, None),
        ({"regex": "a+"}, "grammar"),
        ({"tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "auto"}, None),
        ({"tools": [TOOL], "tool_choice": "none"}, None),
        ({"tools": [], "tool_choice": "required"}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, "grammar"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "grammar"),
        ({"tools": [STRICT]}, "grammar"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "grammar"),
        ({"logit_bias": {"5": -100}}, "other_sampling"),
        ({"logit_bias": {}, "min_tokens": 0, "use_beam_search": False}, None),
        ({"min_tokens": 8}, "other_sampling"),
        ({"logit_bias": {"5": 1}, "response_format": JSON_SCHEMA}, "grammar"),
        ({"use_beam_search": True}, "beam_search"),
        ({"use_beam_search": True, "response_format": JSON_SCHEMA}, "beam_search"),
    ],
)
def test_what_forces_tokens(request_fields, expected):
    assert constraint_of(request_fields) == expected


SCHEMA = {"type": "object", "properties": {"total": {"type": "number"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
OLD_TAG = {"type": "structural_tag", "structures": [], "triggers": ["<f"]}


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": FORMAT}, {"json": SCHEMA}),
        ({"response_format": TAG}, {"structural_tag": json.dumps(TAG)}),
        ({"response_format": OLD_TAG}, {"structural_tag": json.dumps(OLD_TAG)}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"structural_tag": "{}"}}, {"structural_tag": "{}"}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": json.dumps(SCHEMA)}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": "root ::= 'a'"}, {"grammar": "root ::= 'a'"}),
        ({"extra_body": {"guided_choice": ["a"]}}, {"choice": ["a"]}),
        ({"extra_body": {"structured_outputs": {"choice": ["a"]}}}, {"choice": ["a"]}),
        ({"tools": [TOOL], "tool_choice": "none", "response_format": FORMAT}, {"json": SCHEMA}),
        # Not vLLM's, ambiguous, or not all that shapes the tokens: hard labels.
        ({"regex": "a+"}, None),
        ({"response_format": {"type": "json_schema"}}, None),
        ({"response_format": FORMAT, "guided_regex": "a"}, None),
        ({"response_format": FORMAT, "logit_bias": {"5": 1}}, None),
        ({"response_format": FORMAT, "tools": [TOOL]}, None),
        ({"tools": [TOOL], "tool_choice": "required"}, None),
        ({"response_format": FORMAT, "use_beam_search": True}, None),
        ({}, None),
    ],
    ids=json.dumps,
)
def test_grammars_are_read_as_vllm_normalizes_them(request_fields, expected):
    """tests/serving/vllm_hooks/test_grammar_masks.py compares them with vLLM's protocol."""
    sampling = sampling_of(request_fields, "request")
    grammar = sampling["grammar"]
    assert (None if grammar is None else json.loads(grammar)) == expected
    assert (sampling["constraint"] is not None) is bool(request_fields)
