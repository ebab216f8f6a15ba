"""What producers' logs hold beyond the golden logs."""

import pytest
from datasets import Dataset, DatasetDict

from outrider.data.formats.sampling import constraint_of
from outrider.data.formats.sources import log_files
from tests.data.logs import read_exchanges

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
    files = log_files(str(tmp_path / "saved"))
    assert {file.path.rpartition(".")[2] for file in files} == {"arrow"}
    found = sorted(exchange.content for exchange in read_exchanges(files))
    assert found == [f"{ANSWERED} {number}" for number in range(5)]


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
    ],
)
def test_what_forces_tokens(request_fields, expected):
    assert constraint_of(request_fields) == expected
