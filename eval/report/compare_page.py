"""The page of compared runs: workloads, drift and every figure side by side; offline.

write_page(Path("runs.html"), compare(runs))
"""

from pathlib import Path

from outrider.common.files import publish
from outrider.eval.report.charts import history_chart
from outrider.eval.report.compare import Comparison, figure_text
from outrider.eval.report.drift import TITLE, table
from outrider.eval.report.formatting import environment
from outrider.eval.report.tables import WORKLOAD_HEAD, workload_cells


def write_page(path: Path, compared: Comparison) -> None:
    """Publishes the page at `path`."""
    figures = []
    for row in compared.figures:
        figures.append([row.figure, *(figure_text(value) for value in row.values)])
    page = (
        environment()
        .get_template("compare.html.j2")
        .render(
            names=compared.names,
            workload_head=WORKLOAD_HEAD,
            workloads=[workload_cells(row) for row in compared.workloads],
            series=[
                (series.weights, history_chart(series.points), table(series))
                for series in compared.history
            ],
            title=TITLE,
            figures=figures,
            notes=compared.notes,
        )
    )
    with publish(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
