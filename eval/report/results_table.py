"""The report's main table, and how it is printed in the terminal.

print_table(results, Console(stderr=True))
"""

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.eval.config import DO_NOT_SHIP, SHIP, UNDECIDED
from outrider.eval.report.formatting import Interval, interval, number
from outrider.eval.report.k_section import k_words
from outrider.eval.results.parts import VARIANTS, k_list
from outrider.eval.results.report import Results

COLORS = {SHIP: "green", DO_NOT_SHIP: "red", UNDECIDED: "yellow"}
WIDTH = 96
"""Least width of the printed table in characters; narrower terminals wrap its lines."""
HEAD = ("", "none", "base", "custom", "custom / base", "custom / none")


def table_rows(results: Results) -> list[list[str]]:
    """Acceptance lengths, then tokens/s by engine mode and concurrency; under HEAD.

    Acceptance lengths are at custom's K for both, except for a row of each at its own. A row of the
    same K, or of base at `eval.current_k`, follows the tokens/s of each at its own.
    """
    k, rows = results.k, []
    for name, replay in (("replay", results.replay), ("general", results.general)):
        if replay:
            label = f"acceptance, {name}, K = {k.custom}"
            rows.append(_acceptance(label, replay.base.value, replay.custom.value, replay.ratio))
    for each, counted in ((k.custom, results.counted_same_k), (k_list(k), results.counted)):
        if counted:
            lengths = counted.base.acceptance_length, counted.custom.acceptance_length
            rows.append(_acceptance(f"acceptance, engine, K = {each}", *lengths, counted.ratio))
    for mode, measured in results.served.items():
        for concurrency, row in measured.speed.items():
            rows.append(
                [
                    f"tokens/s {mode}, concurrency {concurrency}",
                    *(f"{row.of(variant).tokens_per_s:.0f}" for variant in VARIANTS),
                    interval(row.custom_over_base),
                    f"{row.custom_over_none.value:.2f}",
                ]
            )
            others = {_alike(results): row.same_k, "base at eval.current_k": row.current}
            rows += [
                [
                    label,
                    "",
                    f"{other.base.tokens_per_s:.0f}",
                    f"{row.custom.tokens_per_s:.0f}",
                    interval(other.custom_over_base),
                    "",
                ]
                for label, other in others.items()
                if other
            ]
    return rows


def _alike(results: Results) -> str:
    return f"both at K = {results.k.custom}"


def print_table(results: Results, console: Console) -> None:
    """Prints the table and the verdict."""
    table = Table(
        title=f"{results.recipe}: K = {k_words(results.k)}, 95 % intervals",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in HEAD:
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in table_rows(results):
        table.add_row(*row)
    width, console.width = console.width, max(console.width, WIDTH)
    console.print(table, crop=False)
    console.width = width
    verdict = results.verdict
    console.print(
        f"[bold {COLORS[verdict.verdict]}]{verdict.verdict}[/]: {verdict.reason}", soft_wrap=True
    )


def _acceptance(name: str, base: float, custom: float, ratio: Interval) -> list[str]:
    return [name, "1", number(base), number(custom), interval(ratio), ""]
