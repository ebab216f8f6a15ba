"""Data sets: folders of `save_to_disk`, the Hugging Face Hub, tables of ids."""

import pytest
from datasets import Dataset, DatasetDict

from outrider.data.formats.sources import log_files
from tests.data.logs import read_exchanges

ASKED, ANSWERED = "When is the library open?", "From 10:00 to 13:00."
ROWS = [
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
        Dataset.from_list(ROWS),
        DatasetDict(train=Dataset.from_list(ROWS[:3]), test=Dataset.from_list(ROWS[3:])),
    ],
)
def test_a_folder_of_save_to_disk(tmp_path, data_set):
    data_set.save_to_disk(tmp_path / "saved")
    files = log_files(str(tmp_path / "saved"))
    assert {file.path.rpartition(".")[2] for file in files} == {"arrow"}
    found = sorted(exchange.content for exchange in read_exchanges(files))
    assert found == [f"{ANSWERED} {number}" for number in range(5)]
