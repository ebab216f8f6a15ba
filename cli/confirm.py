"""`outrider confirm`: compares a report with the counters of the servers in production.

curl -s http://HOST:8000/metrics -o before.txt      # then restart with the bundle, and wait
outrider confirm runs/march --metrics http://HOST:8000 --before before.txt
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outrider.cli.options import ResultAsJson
from outrider.cli.printing import print_json, wants_json
from outrider.common.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.eval.confirm.confirm import Conditions, Confirmation
    from outrider.eval.confirm.scrape import Scrape

Sources = Annotated[
    tuple[str, ...], Parameter(consume_multiple=True, negative="", show_default=False)
]


def confirm_report(
    run: Annotated[Path, Parameter(help="Run directory, or its report.json.")],
    *,
    metrics: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")],
    since: Sources = (),
    before: Sources = (),
    model: str | None = None,
    as_json: ResultAsJson = False,
) -> int:
    """Compare a report with what vLLM's own /metrics counted in production.

    Needs nothing in the servers: acceptance, time per output token and time to first token of plain
    vLLM are compared with the report's, with intervals and the causes of a difference: K, load,
    prefix hits or traffic. Exit status: 0 as reported or better, 3 worse, 4 undecided.

    Parameters
    ----------
    metrics
        Servers that run the speculator: addresses such as http://HOST:8000, or files with the text
        of /metrics. Several are replicas, whose counts are summed. Counts begin at each server's
        start.
    since
        Earlier scrapes of the same servers, in the same order: only what was counted since then is
        compared.
    before
        Scrapes of the same endpoint from before the restart with the bundle, with the old
        speculator or without speculation: the change is compared with the report's, too.
    model
        The server's name for the target, if it is not that of the report, or one of several.
    """
    if not metrics:
        raise UsageError("--metrics: give a server's address, or a file with its /metrics")
    if since and len(since) != len(metrics):
        raise UsageError(
            f"--since has {len(since)} scrapes and --metrics {len(metrics)}; give one for each"
            " server, in the same order"
        )
    from rich.console import Console

    from outrider.eval.confirm.confirm import check_model, confirm
    from outrider.eval.confirm.scrape import MetricsWindow, check_distinct, read_scrape
    from outrider.eval.results.report import Report

    report = Report.read(run if run.suffix == ".json" else run / "report.json")
    servers = [read_scrape(source, model) for source in metrics]
    old = [read_scrape(source, model) for source in before]
    check_distinct([*servers, *old])
    if model is None:
        check_model(report, [*servers, *old])
    seen = _since(servers, [read_scrape(source, model) for source in since])
    confirmed = confirm(report, MetricsWindow(seen), MetricsWindow(old) if old else None)
    _print(confirmed, Console(stderr=True, markup=False, highlight=False))
    if wants_json(as_json):
        print_json(confirmed.model_dump(mode="json"))
    if confirmed.worse:
        return 3
    return 4 if confirmed.reading == "undecided" else 0


def _since(servers: "list[Scrape]", earlier: "list[Scrape]") -> "list[Scrape]":
    if not earlier:
        return servers
    return [now.since(then) for now, then in zip(servers, earlier, strict=True)]


def _print(confirmed: "Confirmation", console: "Console") -> None:
    """Prints figures, conditions and the answer."""
    from rich.table import Table

    from outrider.eval.report.formatting import WIDTH
    from outrider.eval.results.parts import interval

    console.width = max(console.width, WIDTH)
    figures = Table("figure", "reported", "at", "seen", "seen / reported", "reading")
    for name, figure in confirmed.figures.items():
        figures.add_row(
            name,
            f"{figure.reported:.2f}",
            figure.at,
            f"{figure.seen:.2f}",
            interval(figure.ratio),
            figure.reading,
        )
    conditions = Table("", "requests", "K", "load", "prefix hits", "prompt", "response tokens")
    for name, row in confirmed.conditions.items():
        conditions.add_row(name, *_cells(row))
    console.print(figures)
    console.print(conditions)
    console.print(confirmed.answer, soft_wrap=True)


def _cells(row: "Conditions") -> list[str]:
    """The conditions of a row as text, - for unknown ones."""
    hits = "-" if row.prefix_hits is None else f"{row.prefix_hits:.0%}"
    numbers = [
        "-" if number is None else f"{number:.{digits}f}"
        for number, digits in ((row.load, 1), (row.prompt_tokens, 0), (row.response_tokens, 0))
    ]
    return [f"{row.requests:,}", f"{row.k:.3g}", numbers[0], hits, *numbers[1:]]
