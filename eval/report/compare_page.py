"""Runs side by side as one page: workloads, speculators over time, and every figure; offline, as the report is.

write_page(Path("runs.html"), names=names_of(runs), workloads=workloads(runs), series=over_time(runs), rows=rows, notes=notes)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.eval.report.charts import history_chart
from outrider.eval.report.drift import TITLE, table
from outrider.eval.report.formatting import environment
from outrider.eval.report.tables import WORKLOAD_HEAD, workload_cells


def write_page(
    path: Path,
    names: Sequence[str],
    workloads: Sequence[Mapping[str, Any]],
    series: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    notes: Sequence[str],
) -> None:
    """`workloads`, `series` (`over_time`), `rows` and `notes` (`side_by_side`) are what eval/report/compare.py makes of the runs called `names`."""
    page = (
        environment()
        .get_template("compare.html.j2")
        .render(
            names=names,
            workload_head=WORKLOAD_HEAD,
            workloads=[workload_cells(row) for row in workloads],
            series=[(one["weights"], history_chart(one["points"]), table(one)) for one in series],
            title=TITLE,
            rows=rows,
            notes=notes,
        )
    )
    with publish(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
