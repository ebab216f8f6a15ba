"""The end of every evaluation: the verdict, everything written down, and the line that scripts read.

summary(results)["acceptance_length"]["ratio"]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.common.files import write_json
from outrider.eval.config import EvalConfig
from outrider.eval.gate import judge
from outrider.eval.prediction.cost import money


def conclude(
    results: dict[str, Any],
    evaluation: EvalConfig,
    run_dir: Path,
    out_dir: Path,
    report_dir: Path,
    private: bool = False,
) -> dict[str, Any]:
    """Prices and judges what was measured, writes results.json (`private`: it holds customer text) and the report; returns the line."""
    from outrider.eval.report.report import write_report

    results["cost"] = money(results["served"], evaluation.cost) if evaluation.cost else None
    results["verdict"] = judge(results, evaluation.gate, evaluation.parity)
    write_json(out_dir / "results.json", results, private=private)
    return {
        **summary(results),
        "report": str(write_report(run_dir, out_dir, report_dir)),
        "bundle": None,
    }


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """The contract for scripts; the caller adds `report` and `bundle`."""
    counted, against = results["counted"], results["verification"]["replay_vs_engine"]
    return {
        "recipe": results["recipe"],
        "run_dir": results["run_dir"],
        "verdict": results["verdict"]["verdict"],
        "reason": results["verdict"]["reason"],
        "acceptance_length": {
            "k": results["k"],
            "base": counted["base"]["acceptance_length"],
            "custom": counted["custom"]["acceptance_length"],
            "ratio": counted["ratio"]["value"],
            "ratio_ci95": [counted["ratio"]["low"], counted["ratio"]["high"]],
        },
        "tokens_per_s": {
            mode: {
                concurrency: {
                    **{
                        variant: row[variant]["tokens_per_s"]
                        for variant in ("none", "base", "custom")
                    },
                    "custom_over_base": row["custom_over_base"]["value"],
                    "custom_over_base_ci95": [
                        row["custom_over_base"]["low"],
                        row["custom_over_base"]["high"],
                    ],
                }
                for concurrency, row in measured["speed"].items()
            }
            for mode, measured in results["served"].items()
        },
        "replay_vs_engine": {v: against[v] for v in ("base", "custom")} if against else None,
    }
