"""The report's table of predicted and measured speed, for its page, Markdown and benchmarks.

rows = predicted_rows(results.predicted)      # under HEAD; empty where nothing was predicted
"""

from collections.abc import Mapping
from typing import Literal

from outrider.eval.report.formatting import interval
from outrider.eval.results.prediction import (
    PredictedDrafter,
    PredictedRow,
    PredictedTarget,
    Prediction,
)

HEAD = (
    "engine, concurrency",
    "ms per step, none / base / custom: before serving",
    "while serving",
    "base / none: forecast",
    "account",
    "measured",
    "custom / none: forecast",
    "account",
    "measured",
    "custom / base: forecast",
    "account",
    "measured",
    "tokens/s, none / base / custom: account",
)

Predicted = Mapping[str, Mapping[str, PredictedRow]]
"""Engine mode -> concurrency -> prediction."""


def predicted_rows(predicted: Predicted) -> list[list[str]]:
    """A row for each engine mode and concurrency.

    A prediction is followed by its error in brackets; of tokens/s only the error is shown.
    """
    rows = []
    for mode, table in predicted.items():
        for concurrency, row in table.items():
            variants = (row.none, row.base, row.custom)
            cells = [f"{mode}, {concurrency}", _steps(variants, "timed")]
            cells.append(_steps(variants, "as_served"))
            for ratio in (row.base.over_none, row.custom.over_none, row.custom_over_base):
                cells += [_cell(ratio.timed), _cell(ratio.as_served), interval(ratio.served)]
            errors = (_error(each.tokens_per_s.as_served) for each in variants)
            cells.append(" / ".join(errors))
            rows.append(cells)
    return rows


def predicted_lines(predicted: Predicted) -> list[str]:
    """The table as Markdown; empty where nothing was predicted."""
    if not (rows := predicted_rows(predicted)):
        return []
    table = [HEAD, ["---"] * len(HEAD), *rows]
    return ["## Predicted vs measured speed", "", *(f"| {' | '.join(row)} |" for row in table)]


def _cell(prediction: Prediction | None) -> str:
    return f"{prediction.value:.2f} ({prediction.difference:+.0%})" if prediction else "-"


def _error(prediction: Prediction | None) -> str:
    return f"{prediction.difference:+.0%}" if prediction else "-"


def _steps(
    variants: tuple[PredictedTarget, PredictedDrafter, PredictedDrafter],
    which: Literal["timed", "as_served"],
) -> str:
    cells = []
    for variant in variants:
        step_ms = variant.step_ms
        milliseconds = step_ms.timed if which == "timed" else step_ms.as_served
        if milliseconds is None:
            return "-"
        cells.append(f"{milliseconds:.1f}")
    return " / ".join(cells)
