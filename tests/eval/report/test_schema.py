"""The schema against written reports: every key is described, every described key is written."""

import copy
import json

import jsonschema
import pytest

from outrider.eval.report.schema_reference import DOCS, page, schema
from outrider.eval.results.report import Report
from tests.eval.sample_run import write_sample_run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = tmp_path_factory.mktemp("schema")
    write_sample_run(run)
    return json.loads((run / "report.json").read_text())


def complaints(value):
    def messages(errors):
        for error in errors:
            yield error.message
            yield from messages(
                error.context
            )  # of every alternative, where something may also be null

    return list(messages(jsonschema.Draft202012Validator(schema()).iter_errors(value)))


def test_a_written_report_is_as_described(report):
    assert complaints(report) == []
    Report.model_validate(report)
    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_described_key_is_written(report):
    """Of a run that has everything; a key that no report ever has is none."""
    missing = set(schema()["properties"]) - set(report)
    assert missing == set()
    for name in ("privacy", "samples", "cost", "general", "on_policy", "traffic", "heldout_time"):
        assert report[name], name


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("replay",),
        ("replay", "ratio"),
        ("served", "eager", "speed", "1", "custom", "ttft_ms"),
        ("verification", "replay_vs_engine", "details", "greedy", "base"),
        ("verification", "same_text", "custom"),
        ("slices", "tenant", 0),
        ("samples", "examples", 0, "base", "shown", 0),
        ("cost", "eager", "1"),
        ("privacy",),
    ],
    ids=lambda path: ".".join(map(str, path)) or "report",
)
def test_a_key_that_nobody_described_is_found_and_so_is_one_that_is_gone(report, path):
    more, less = copy.deepcopy(report), copy.deepcopy(report)
    added, removed = more, less
    for key in path:
        added, removed = added[key], removed[key]
    added["new_figure"] = 1
    assert any("new_figure" in message for message in complaints(more))
    del removed[next(iter(removed))]
    assert any("is a required property" in message for message in complaints(less))


def test_the_pages_are_what_the_models_say():
    again = "run python -m outrider.eval.report.schema_reference"
    assert json.loads((DOCS / "report.schema.json").read_text()) == json.loads(
        json.dumps(schema())
    ), again
    assert (DOCS / "report.md").read_text() == page(), again
    for name in ("Estimate", "replay_vs_engine", "weights_sha256"):
        assert name in page()


def test_every_key_says_what_it_is():
    described = [("Report", schema()), *schema()["$defs"].items()]
    silent = [
        f"{name}.{key}"
        for name, value in described
        for key, inner in value["properties"].items()
        if not inner.get("description") and "$ref" not in inner
    ]
    assert silent == []
