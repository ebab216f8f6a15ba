"""results.json as a typed artifact: what is written is read back, older versions are converted."""

import inspect
import json

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.results.parts import Drafters, Variants
from outrider.eval.results.report import VERSION, Results
from tests.eval.sample_results import sample_results


@pytest.fixture(scope="module")
def results() -> Results:
    return sample_results()


def test_what_is_written_is_read_back(results, tmp_path):
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results


def as_version_8(results):
    value = results.model_dump(mode="json") | {"version": 8}
    for check in value["verdict"]["checks"]:
        check["passed"] = check.pop("outcome") == "passed"
        del check["needed"]
    for name in ("main_concurrency", "current_k", "by_batch_size", "counted_same_k"):
        del value[name]
    value["k"] = value["k"]["custom"]
    value["choice"] |= {"k": value["k"]}
    for name in ("k_per_batch_size", "acceptance_length", "tokens_per_s"):
        value["choice"][name] = value["choice"][name]["custom"]
    for name in ("reason", "step_ms_ci95", "idle_step_ms", "rounds"):
        del value["choice"][name]
    del value["replay"]["same_k"]
    for served in value["served"].values():
        del served["repeats"]
        for row in served["speed"].values():
            for name in ("same_k", "current", "better", "drafts"):
                del row[name]
    return value


def test_version_8_is_converted(results, tmp_path):
    path = tmp_path / "results.json"
    value = as_version_8(results)
    value["verdict"]["checks"][1]["passed"] = False
    path.write_text(json.dumps(value))
    found = Results.read(path)
    assert found.version == VERSION and found.counted == results.counted
    assert found.k.base == found.k.custom == results.k.custom and found.main_concurrency == 1
    assert found.choice.acceptance_length.custom == results.choice.acceptance_length.custom
    assert found.choice.tokens_per_s.base is None
    assert [check.outcome for check in found.verdict.checks[:3]] == ["passed", "failed", "passed"]


def as_version_7(results, **verification):
    value = as_version_8(results) | {"version": 7}
    value["verification"] |= verification
    del value["verification"]["greedy_acceptance_length"]
    return value


def test_version_7_is_converted(results, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(as_version_7(results)))
    found = Results.read(path)
    assert found.version == VERSION and found.replay.ratio == results.replay.ratio
    greedy = results.verification.replay_vs_engine.details.greedy
    lengths = found.verification.greedy_acceptance_length
    assert lengths.custom == greedy.custom.acceptance_length_counters
    # A speculator without an unroll had an empty table of draft parity.
    counted = as_version_7(results, parity={}, replay_vs_engine=None)
    path.write_text(json.dumps(counted))
    found = Results.read(path)
    assert found.verification.parity is None
    assert found.verification.greedy_acceptance_length.custom is None


def test_another_version_or_shape_is_an_error_that_names_it(results, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results.model_dump(mode="json") | {"version": 5}))
    with pytest.raises(OutriderError, match=r"results.json: version 5, but this Outrider reads 7"):
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
