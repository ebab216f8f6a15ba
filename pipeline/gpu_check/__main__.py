"""`make gpu-check`: every check that needs a GPU, and one report.

    python -m outrider.pipeline.gpu_check [--out build/gpu_check] [--only parity,fp8]

Writes report.json, report.txt and one log a check. The exit status is 1 if a check failed.
"""

import argparse
import json
import sys
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.pipeline.gpu_check.checks import CHECKS
from outrider.pipeline.gpu_check.report import as_report, as_text
from outrider.pipeline.gpu_check.runner import run_checks, why_no_gpu


def main(arguments: list[str] | None = None) -> int:
    """Runs the checks, prints the report and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("build/gpu_check"))
    parser.add_argument("--only", help="names of checks, separated by commas")
    given = parser.parse_args(arguments)
    names = [check.name for check in CHECKS]
    wanted = given.only.split(",") if given.only else names
    if unknown := set(wanted) - set(names):
        raise OutriderError(f"--only {', '.join(unknown)}: the checks are {', '.join(names)}")
    checks = [check for check in CHECKS if check.name in wanted]
    outcomes = run_checks(checks, given.out, why_no_gpu())
    report = as_report(checks, outcomes)
    text = as_text(report)
    write_json(given.out / "report.json", report)
    (given.out / "report.txt").write_text(text, encoding="utf-8")
    print(text, flush=True)
    failed = [outcome.name for outcome in outcomes if outcome.status == "fail"]
    print(json.dumps({"counts": report["counts"], "failed": failed, "report": str(given.out)}))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OutriderError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
