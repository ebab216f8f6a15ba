"""results.json as a typed artifact: what is written is read back, another version is refused."""

import inspect
import json

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.results.parts import Drafters, Variants
from outrider.eval.results.report import Results
from tests.eval.sample_results import sample_results


@pytest.fixture(scope="module")
def results() -> Results:
    return sample_results()


def test_what_is_written_is_read_back(results, tmp_path):
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def test_another_version_or_shape_is_an_error_that_names_it(results, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results.model_dump(mode="json") | {"version": 5}))
    with pytest.raises(OutriderError, match=r"results.json: version 5, but this Outrider reads 1"):
        Results.read(path)
    value = results.model_dump(mode="json")
    value["replay"]["ratio"]["value"] = None
    path.write_text(json.dumps(value))
    with pytest.raises(OutriderError, match=r"replay\.ratio\.value: Input should be"):
        Results.read(path)


def test_the_types_of_a_generic_model_are_made_without_reading_sources(monkeypatch):
    """Pydantic looks for attribute docstrings at every frame of the stack, in all modules."""

    def reads(*_):
        raise AssertionError("sources were searched")

    monkeypatch.setattr(inspect, "getmodule", reads)
    for model in (Drafters, Variants):
        made = model[frozenset[bytes]]
        assert all(field.description for field in made.model_fields.values())
