"""The findings of `inspect-traffic` as tables and histograms for a terminal.

print_inspection(found, Console())
"""

from collections.abc import Mapping
from typing import Any, Literal

from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.data.ingest.traffic_facts import counted, date, facts, printable
from outrider.data.split.split import PARTS

BAR = 24
"""Characters of the longest bar of a histogram."""


def print_inspection(found: Mapping[str, Any], console: Console) -> None:
    """Prints the page. Names from the log are printed as plain text, never as markup."""
    title = f"{found['recipe']}: {counted(found['files'], 'file')}, {found['rows']:,} rows, "
    title += f"{found['exchanges']:,} exchanges"
    console.print(Text(title, "bold"), soft_wrap=True)
    if found["rows_per_file"]:
        limit = f"--first: only the first {found['rows_per_file']:,} rows of each file were read. "
        limit += "All figures are of these rows, cost and split included; an exchange of several "
        limit += "rows may be cut off at the end."
        console.print(Text(limit, "yellow"))
    if found["ingested_in"]:
        console.print(
            Text(f"as ingested in {found['ingested_in']}; nothing has changed since", "dim"),
            soft_wrap=True,
        )
    print_facts(found, console)
    if found["rejects"]:
        console.print(_rejects(found))
    if found["split"]:
        console.print(_split(found["split"]))
    histograms = [
        _histogram(name, lengths) for name, lengths in found["lengths"].items() if lengths["n"]
    ]
    console.print(Columns(histograms, padding=(0, 4)))
    print_advice(found, console)


def print_facts(found: Mapping[str, Any], console: Console) -> None:
    """Prints a line for each fact of the log."""
    console.print(_facts(found))


def print_advice(found: Mapping[str, Any], console: Console) -> None:
    """Prints what would make more of the log usable."""
    for text in found["advice"]:
        console.print(Text.assemble(("advice: ", "bold yellow"), text))


def _facts(found: Mapping[str, Any]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in (("target", found["target"]), *facts(found), ("capture", _capture(found))):
        grid.add_row(name, Text(printable(text)))
    return grid


def _rejects(found: Mapping[str, Any]) -> Table:
    table = _table("rejects")
    for column in ("reason", "rows", "first at", ""):
        justify: Literal["left", "right"] = "right" if column == "rows" else "left"
        table.add_column(column, justify=justify, overflow="fold")
    for reason, count in found["rejects"].items():
        example = found["reject_examples"][reason]
        table.add_row(
            reason, f"{count:,}", *(Text(printable(example[key])) for key in ("place", "detail"))
        )
    return table


def _split(split: Mapping[str, Any]) -> Table:
    left_out = [f"{reason} {count:,}" for reason, count in split["left_out"].items()]
    caption = f"left out: {', '.join(left_out) or 'nothing'}"
    if not split["prompts_compared"]:
        caption += "; prompts were not compared, so near duplicates are still included"
    table = _table("split", caption=caption, caption_justify="left")
    for column in ("", "sessions", "sequences", "tokens", "trained on", "from"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for part in PARTS:
        row = split[part]
        counts = (
            f"{row[key]:,}" for key in ("sessions", "sequences", "tokens", "completion_tokens")
        )
        began = row["first_time"]
        table.add_row(part, *counts, "not logged" if began is None else date(began))
    return table


def _histogram(name: str, lengths: Mapping[str, Any]) -> Text:
    text = Text.assemble((f"{name}, tokens", "bold"), (f"  n {lengths['n']:,}\n", "dim"))
    text.append("  ".join(f"{key} {lengths[key]:,}" for key in ("p50", "p90", "p99", "max")) + "\n")
    highest = max(count for *_, count in lengths["bins"])
    width = len(f"{lengths['bins'][-1][0]:,}")
    for least, _, count in lengths["bins"]:
        bar = "█" * round(BAR * count / highest) or ("▏" if count else "")
        text.append(f"{least:>{width},} ", "dim")
        text.append(f"{bar} ", "cyan")
        text.append(f"{count:,}\n" if count else "\n")
    return text


def _table(title: str, **options: Any) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        **options,
    )


def _capture(found: Mapping[str, Any]) -> str:
    of = "what the split keeps" if found["split"] else "everything"
    return f"{found['predicted']['text']}; of {of}"
