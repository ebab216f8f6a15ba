"""Data sets: folders of `save_to_disk`, the Hugging Face Hub, tables of ids."""

import json

import pytest
from datasets import Dataset, DatasetDict

from outrider.common.errors import OutriderError
from outrider.data.formats import format_of
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


@pytest.mark.parametrize("last, expected", [("user", "openai_joined"), ("assistant", "messages")])
def test_requests_without_responses_are_not_taken_for_it(tmp_path, last, expected):
    messages = [{"role": "user", "content": ASKED}, {"role": last, "content": ANSWERED}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"id": "1", "messages": messages}) + "\n")
    assert [format_of(file) for file in log_files(str(tmp_path))] == [expected]


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


def test_the_hub_is_a_filesystem_as_any_other(tmp_path, monkeypatch):
    from fsspec.implementations.dirfs import DirFileSystem

    folder = tmp_path / "datasets" / "acme" / "hours" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "README.md").write_text("---\n---\n")
    (folder.parent / "dataset_infos.json").write_text("{}")
    Dataset.from_list(ROWS).to_parquet(folder / "train-00000-of-00001.parquet")
    hub = DirFileSystem(str(tmp_path))
    monkeypatch.setattr(
        "outrider.data.formats.sources.url_to_fs", lambda url: (hub, url.removeprefix("hf://"))
    )
    with pytest.raises(
        OutriderError,
        match="no such file or folder; a private or gated data set needs the variable HF_TOKEN",
    ):
        log_files("hf://datasets/acme/hidden")
    files = log_files("hf://datasets/acme/hours")
    assert [file.path for file in files] == [
        "datasets/acme/hours/data/train-00000-of-00001.parquet"
    ]
    assert len(list(read_exchanges(files))) == 5
