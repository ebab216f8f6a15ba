"""What commands print at their end: one line of JSON on stdout."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def print_summary(
    run: "outrider.Run",
    results: "Results",
    judged: str = "evaluate",
    bundle: str | None = None,
) -> int:
    """Prints a run's JSON summary and returns its verdict's exit status."""
    from outrider.eval.config import EXIT_CODES

    evaluation = results.get(judged)
    if not evaluation:  # an export alone: the verdict is that of the evaluation before it
        evaluation = run.directory.result_of(judged) if "export" in results else {}
    if bundle is None and "export" in results:
        bundle = str(run.directory.bundle)
    summary: dict[str, Any] = {"recipe": run.recipe.name, "run_dir": str(run.directory.root)}
    summary |= {key: evaluation.get(key) for key in SUMMARY_KEYS}
    print_json(summary | {"bundle": bundle, "stages": [*results]})
    return EXIT_CODES[evaluation["verdict"]] if evaluation else 0
