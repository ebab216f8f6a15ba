"""Runs side by side, from whole reports."""

import json

import pytest
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.eval.report.compare import print_comparison, print_workloads, side_by_side, workloads
from tests.eval.sample_results import sample_results


@pytest.fixture
def runs(tmp_path):
    """Two evaluations; the second knows other slices and another k."""
    made = []
    for name, results in (("march", sample_results()), ("april", sample_results(custom_speed=0.5))):
        results = json.loads(json.dumps(results))
        if name == "april":
            results["k"] = 2
            del results["slices"]["tenant"][1]
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(results))
        made.append(tmp_path / name)
    return made


def test_figures_stand_side_by_side_and_what_one_lacks_is_a_dash(runs):
    rows, notes = side_by_side(runs)
    by_name = {row["figure"]: row["values"] for row in rows}
    assert by_name["verdict"] == ["ship", "do not ship"] and by_name["k"] == [3, 2]
    ratios = by_name["tokens/s eager, at 1, custom / base"]
    assert ratios[0]["value"] > 1.2 > 0.7 > ratios[1]["value"]
    assert by_name["tenant: <b>small</b>, ratio"][1] is None
    assert not any("tokens_per_s" in name for name in by_name)
    assert len(notes) == 1 and "differ in k (march 3, april 2)" in notes[0]
    console = Console(record=True, width=160)
    print_comparison(rows, notes, runs, console)
    text = console.export_text()
    assert (
        "march" in text
        and "ship" in text
        and f"[{ratios[0]['low']:.2f}, {ratios[0]['high']:.2f}]" in text
    )


def test_workloads_stand_in_rows_with_what_custom_saves(runs):
    rows = workloads(runs)
    assert [(row["workload"], row["mode"]) for row in rows] == [
        (name, mode) for name in ("march", "april") for mode in ("eager", "compiled")
    ]
    for row in rows:
        assert row["saved_share"]["value"] == pytest.approx(
            1 - 1 / row["custom_over_none"]["value"]
        )
    console = Console(record=True, width=160)
    print_workloads(rows, console)
    text = console.export_text()
    assert (
        "base / none" in text
        and f"{rows[0]['saved_share']['value']:.0%} [" in text
        and "eager, at 1" in text
    )


def test_what_is_no_evaluated_run_is_named(runs, tmp_path):
    with pytest.raises(OutriderError, match=r"--compare .*nowhere: no report.json"):
        side_by_side([runs[0], tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "report.json").write_text("{}")
    with pytest.raises(OutriderError, match="no verdict, replay, served, k in it"):
        side_by_side([tmp_path / "empty"])
