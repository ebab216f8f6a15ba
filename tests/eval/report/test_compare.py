"""Runs side by side, from whole reports."""

import json

import pytest
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.eval.report.compare import compare, print_comparison
from outrider.eval.report.report import write_report
from tests.eval.sample_results import sample_results


@pytest.fixture
def runs(tmp_path):
    """Two evaluations; the second has other slices and another k."""
    made = []
    for name, results in (("march", sample_results()), ("april", sample_results(custom_speed=0.5))):
        results = results.model_dump(mode="json")
        if name == "april":
            results["k"] = {"base": 2, "custom": 2}
            del results["slices"]["tenant"][1]
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(results))
        made.append(tmp_path / name)
    return made


def printed(compared):
    console = Console(record=True, width=160)
    print_comparison(compared, console)
    return console.export_text()


def test_figures_of_all_runs_and_a_dash_where_one_has_none(runs):
    compared = compare(runs)
    by_name = {row.figure: row.values for row in compared.figures}
    assert by_name["verdict"] == ["ship", "do not ship"] and by_name["k, base and custom"] == [
        "2 / 3",
        "2",
    ]
    ratios = by_name["tokens/s eager, concurrency 1, custom / base"]
    assert ratios[0].value > 1.2 > 0.7 > ratios[1].value
    assert by_name["tenant: <b>small</b>, ratio"][1] is None
    assert not any("tokens_per_s" in name for name in by_name)
    (note,) = compared.notes
    assert "differ in k (march 2 / 3, april 2)" in note
    text = printed(compared)
    assert "march" in text and "ship" in text
    assert f"[{ratios[0].low:.2f}, {ratios[0].high:.2f}]" in text
    assert json.loads(compared.model_dump_json())["runs"] == [str(run) for run in runs]


def test_kinds_of_one_run_are_compared(tmp_path):
    """A run of several kinds has an evaluation in a folder for each that was served."""
    runs = []
    for kind, speed in (("mtp", 1.2), ("eagle3", 1.5)):
        results = sample_results(custom_speed=speed)
        identity = results.speculator.model_copy(update={"kind": kind})
        folder = tmp_path / "evaluation" / kind
        results.model_copy(update={"speculator": identity}).write(folder / "results.json")
        write_report(tmp_path, folder, folder)
        runs.append(folder)
    compared = compare(runs)
    by_name = {row.figure: row.values for row in compared.figures}
    assert compared.names == ["mtp", "eagle3"] == by_name["kind of custom"]
    ratios = by_name["tokens/s eager, concurrency 1, custom / none"]
    assert ratios[1].value > 1.15 * ratios[0].value
    assert any("differ in kind (mtp mtp, eagle3 eagle3)" in note for note in compared.notes)
    assert "kind of custom" in printed(compared) and len(compared.workloads) == 4


def test_workloads_are_rows_with_what_custom_saves(runs):
    compared = compare(runs)
    rows = compared.workloads
    assert [(row.workload, row.mode) for row in rows] == [
        (name, mode) for name in ("march", "april") for mode in ("eager", "compiled")
    ]
    for row in rows:
        assert row.saved_share.value == pytest.approx(1 - 1 / row.custom_over_none.value)
    text = printed(compared)
    assert "base / none" in text and f"{rows[0].saved_share.value:.0%} [" in text
    assert "eager, concurrency 1" in text


def test_what_is_no_evaluated_run_is_named(runs, tmp_path):
    with pytest.raises(OutriderError, match=r"--compare .*nowhere: no report.json"):
        compare([runs[0], tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "report.json").write_text("{}")
    with pytest.raises(OutriderError, match="no verdict, replay, served, k in it"):
        compare([tmp_path / "empty"])


def test_a_report_of_another_version_is_refused(runs):
    path = runs[0] / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 9}))
    with pytest.raises(OutriderError, match=r"march/report.json: version 9, but version 1"):
        compare(runs)
