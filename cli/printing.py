"""What commands print at their end: lines on a terminal, one line of JSON elsewhere."""

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outrider.common.inert import printable

if TYPE_CHECKING:
    import outrider
    from outrider.pipeline.runner import Results

SUMMARY_KEYS = (
    "kind",
    "verdict",
    "k",
    "lookup",
    "acceptance_length",
    "tokens_per_s",
    "replay_vs_engine",
    "report",
)


def print_json(value: Mapping[str, object]) -> None:
    """Prints one line of JSON to stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def wants_json(as_json: bool) -> bool:
    """Whether a result is to be JSON: with --json, and where no person reads stdout."""
    return as_json or not sys.stdout.isatty()


def print_result(value: Mapping[str, object], as_json: bool) -> None:
    """Prints a result to stdout: a line for each fact on a terminal, else one line of JSON."""
    if wants_json(as_json):
        print_json(value)
        return
    width = max(map(len, value), default=0)
    for name, fact in value.items():
        if fact is None:
            continue
        text = fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False)
        print(printable(f"{name:<{width}}  {text}"))


def print_run_summary(
    run: "outrider.Run",
    results: "Results",
    *,
    judged: str = "evaluate",
    bundle: str | None = None,
    as_json: bool = False,
) -> int:
    """Prints a run's summary (`print_result`) and returns its verdict's exit status."""
    from outrider.eval.config import EXIT_CODES

    evaluation = results.get(judged)
    if not evaluation:  # an export alone: the verdict is that of the evaluation before it
        evaluation = run.directory.result_of(judged) if "export" in results else {}
    if bundle is None and "export" in results:
        bundle = str(run.directory.bundle)
    summary: dict[str, Any] = {"recipe": run.recipe.name, "run_dir": str(run.directory.root)}
    summary |= {key: evaluation.get(key) for key in SUMMARY_KEYS}
    print_result(summary | {"bundle": bundle, "stages": [*results]}, as_json)
    return EXIT_CODES[evaluation["verdict"]] if evaluation else 0
