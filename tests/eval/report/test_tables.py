"""The field's two tables against numbers worked out by hand."""

import subprocess
import sys

import pytest

from outrider.eval.report.past_run import PastRun
from outrider.eval.report.tables import scenario_lines, scenario_rows, workload_lines, workload_rows
from tests.eval.sample_results import sample_results


def ratio(value, low, high):
    return {"value": value, "low": low, "high": high, "observations": 9, "clusters": 3}


def figures(tokens_per_s, own, length, saturated=False):
    return {
        "tokens_per_s": tokens_per_s,
        "request_tokens_per_s": own,
        "acceptance_length": length,
        "achieved": 1.0,
        "saturated": saturated,
        "ttft_ms": {"p50": 1.0},
    }


RATIOS = {
    "custom_over_base": ratio(1.5, 1.25, 1.75),
    "custom_over_none": ratio(2.0, 1.6, 2.5),
    "base_over_none": ratio(4 / 3, 1.2, 1.5),
}
REPORT = {
    "served": {
        "eager": {"speed": {"8": {name: ratio(9.0, 9.0, 9.0) for name in RATIOS}, "2": RATIOS}},
        "compiled": {"speed": {"16": RATIOS | {"custom_over_none": ratio(0.8, 0.5, 1.0)}}},
    },
    "rates": {
        "eager": {
            "long_in_short_out": {
                "0.5": {
                    "none": figures(50.4, 49.6, 1.0),
                    "base": figures(50.6, 70.2, 2.345),
                    "custom": figures(51, 99, 3),
                }
                | RATIOS,
                "16": {
                    "none": figures(400, 20, 1.0, saturated=True),
                    "base": figures(500, 30, 2.4),
                    "custom": figures(600, 45, 3.1),
                }
                | RATIOS,
            }
        }
    },
}
RUN = PastRun.model_validate(REPORT)


def test_a_row_for_each_scenario_and_rate():
    rows = scenario_rows(RUN.rates)
    assert [(row.mode, row.scenario, row.rate) for row in rows] == [
        ("eager", "long_in_short_out", 0.5),
        ("eager", "long_in_short_out", 16.0),
    ]
    lines = scenario_lines(rows)
    assert lines[0] == "Usage scenarios, eager mode"
    assert lines[4] == (
        "| long in short out | 0.5 | 50 | 51 | 51 | 50 | 70 | 99 | 2.35 | 3.00 "
        "| 1.50 [1.25, 1.75] | 2.00 [1.60, 2.50] "
        "| 1.33 [1.20, 1.50] |"
    )
    assert lines[5].startswith("| long in short out | 16 | 400\\* | 500 | 600 |")
    assert lines[-1].startswith("\\* saturated")
    assert len({line.count("|") - line.count("\\|") for line in lines if line.startswith("|")}) == 1
    assert scenario_rows(None) == scenario_rows({}) == []


def test_workloads_at_their_lowest_concurrency_with_what_custom_saves():
    rows = workload_rows({"chat|s": RUN})
    assert [(row.workload, row.mode, row.concurrency) for row in rows] == [
        ("chat|s", "eager", 2),
        ("chat|s", "compiled", 16),
    ]
    assert rows[0].saved_share.model_dump() == pytest.approx(
        {"value": 0.5, "low": 0.375, "high": 0.6}
    )
    assert rows[1].saved_share.model_dump() == pytest.approx(
        {"value": -0.25, "low": -1.0, "high": 0.0}
    )
    lines = workload_lines(rows)
    assert lines[2] == (
        "| chat\\|s | eager, concurrency 2 | 1.33 [1.20, 1.50] | 1.50 [1.25, 1.75] "
        "| 2.00 [1.60, 2.50] | 50% [38%, 60%] |"
    )
    assert lines[3].endswith("| -25% [-100%, 0%] |")


def test_both_are_printed_from_run_directories(tmp_path):
    for name in ("chats", "documents"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(sample_results().model_dump_json())
    command = [
        sys.executable,
        "-m",
        "outrider.eval.report.tables",
        str(tmp_path / "chats"),
        str(tmp_path / "documents"),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.count("Usage scenarios, compiled mode") == 2 and "## Workloads" in printed
    assert (
        "| long in long out | 16 |" in printed and "| documents | eager, concurrency 1 |" in printed
    )
