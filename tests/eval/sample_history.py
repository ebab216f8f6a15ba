"""Reports of one speculator on newer and newer traffic, and their comparison.

page, terminal = write_sample_history(tmp_path)
"""

import json

from rich.console import Console

from outrider.eval.report.compare import compare, print_comparison
from outrider.eval.report.compare_page import write_page
from tests.eval.sample_results import sample_results

SPREAD = 0.02


def estimate(value, spread=SPREAD):
    """With an interval of 2 % to either side."""
    return {"value": value, "low": value / (1 + spread), "high": value * (1 + spread)}


def report(time, base, custom, **other):
    """A report of one evaluation, as far as history reads it, `time` in days."""
    whole = sample_results().model_dump(mode="json") | {
        "heldout_time": {"first": 0.0, "last": 1.76e9 + 86400 * time}
    }
    whole["replay"] |= {
        "base": estimate(base),
        "custom": estimate(custom),
        "ratio": estimate(custom / base),
    }
    return whole | other


def write_sample_history(folder):
    """The page of three runs, the last of another speculator, and the terminal's output."""
    runs, other = [], {"speculator": {"weights_sha256": "cd" * 32}}
    reports = {
        "march": report(0, 2, 3),
        "<i>june<|i>": report(9, 2, 2.4),
        "july": report(99, 2, 2, **other),
    }
    for name, whole in reports.items():
        runs.append(folder / name)
        runs[-1].mkdir()
        (runs[-1] / "report.json").write_text(json.dumps(whole))
    compared, console = compare(runs), Console(record=True, width=200)
    print_comparison(compared, console)
    write_page(folder / "compared.html", compared)
    return folder / "compared.html", console.export_text()
