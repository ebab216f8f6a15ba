"""The report as Markdown: the verdict and the tables, for a pull request or an e-mail.

markdown(report)
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.data.ingest.traffic_facts import facts
from outrider.data.on_policy.check import two_lines
from outrider.eval.replay.example_traces import markdown_lines
from outrider.eval.report.formatting import interval, number
from outrider.eval.report.k_section import k_reasons, k_words, schedule_words
from outrider.eval.report.kinds_section import kinds_lines
from outrider.eval.report.rates_section import rates_lines
from outrider.eval.report.results_table import HEAD, table_rows
from outrider.eval.report.run_sections import privacy_line
from outrider.eval.results.acceptance import Slice
from outrider.eval.results.report import Report


def markdown(report: Report) -> str:
    """The whole text."""
    verdict = report.verdict
    lines = [f"# {report.recipe}: {verdict.verdict}", "", verdict.reason, ""]
    lines += ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows(report)]
    lines.append("")
    for check in verdict.checks:
        outcome = check.outcome if check.outcome == "passed" else f"**{check.outcome}**"
        lines.append(f"- {outcome}: {check.name}: {check.seen}; {check.demand}")
    lines += [f"- not checked: {what}: {why}" for what, why in report.not_measured.items()]
    if report.kinds:
        lines += ["", *kinds_lines(report.kinds)]
    lines += ["", *rates_lines(report)]
    if report.slices:
        lines += ["", "## By slice", "", *slice_lines(report.slices)]
    if report.samples:
        lines += ["", "## Step by step", "", *markdown_lines(report.samples.model_dump())]
    if report.on_policy:
        lines += ["", *two_lines(report.on_policy)]
    if report.traffic:
        lines += ["", "## Traffic", "", *traffic_lines(report.traffic)]
    lines += [f"- lost ends: {text}" for text in report.lost_ends]
    if (task := report.verification.task) and task.errors:
        lines.append(f"- the check raised on {task.errors} responses, first {task.first_error}")
    if report.privacy:
        lines += ["", privacy_line(report.privacy)]
    lines += ["", *(f"- {line}" for line in (*k_reasons(report.choice), *schedules(report)))]
    lines += ["", f"K = {k_words(report.k)}; intervals are 95 %. Definitions: docs/evaluation.md"]
    return "\n".join(lines) + "\n"


def schedules(report: Report) -> list[str]:
    """The schedules of drafts that were served."""
    return schedule_words(report.choice) if report.by_batch_size else []


def slice_lines(slices: Mapping[str, Sequence[Slice]]) -> list[str]:
    """The table of acceptance length by exact replay in every slice."""
    lines = ["| slice | responses | base | custom | custom / base |", "|---|---|---|---|---|"]
    for dimension, rows in slices.items():
        for row in rows:
            # A tenant's name may hold anything.
            name = " ".join(f"{dimension}: {row.name}".split()).replace("|", "\\|")
            base, custom = number(row.base.value), number(row.custom.value)
            lines.append(
                f"| {name} | {row.sequences} | {base} | {custom} | {interval(row.ratio)} |"
            )
    return lines


def traffic_lines(traffic: Mapping[str, Any]) -> list[str]:
    """The ingest's counts."""
    lines = [f"- {name}: {text}" for name, text in facts(traffic)]
    if traffic["rejects"]:
        rejects = (f"{reason} {count}" for reason, count in traffic["rejects"].items())
        lines.append(f"- rejects: {', '.join(rejects)}")
    for name, lengths in traffic["lengths"].items():
        if lengths["n"]:
            quantiles = (f"{key} {lengths[key]:,}" for key in ("p50", "p90", "p99", "max"))
            lines.append(f"- {name}, tokens: {', '.join(quantiles)} (n = {lengths['n']:,})")
    return lines
