"""The report: an offline page for people, Markdown, JSON for machines, and the terminal's table.

python -m outrider.eval.report.report runs/resume_screening      # renders results.json again
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from outrider.common.files import publish, write_json
from outrider.data.ingest.traffic_facts import facts
from outrider.data.on_policy.check import groups_of, two_lines
from outrider.eval.config import DO_NOT_SHIP, SHIP, UNDECIDED
from outrider.eval.report import charts
from outrider.eval.report.formatting import Interval, environment
from outrider.eval.report.k_section import k_reasons, k_words, schedule_words
from outrider.eval.report.kinds_section import kinds_page
from outrider.eval.report.markdown import markdown
from outrider.eval.report.rates_section import rates_page
from outrider.eval.report.results_table import print_table
from outrider.eval.report.run_sections import (
    export_note,
    load,
    privacy_line,
    provenance_lines,
    training_metrics,
)
from outrider.eval.results.report import Report, Results

VERDICT_CLASSES = {SHIP: "ship", DO_NOT_SHIP: "hold", UNDECIDED: "open"}
"""Verdict -> its class in style.css."""


class Tile(NamedTuple):
    """A figure at the top of the page."""

    label: str
    value: str
    note: str


def write_report(
    run_dir: Path, out_dir: Path, report_dir: Path, trained_dir: Path | None = None
) -> Path:
    """Renders `out_dir`/results.json into `report_dir` and prints the table; returns the page.

    Writes report.html, report.md and report.json. `trained_dir` has the training's metrics.jsonl;
    None: `run_dir`.
    """
    run_dir, report_dir = Path(run_dir), Path(report_dir)
    report = load(run_dir, Results.read(Path(out_dir) / "results.json"), trained_dir)
    page = report_dir / "report.html"
    private = report.samples is not None  # customer text
    for path, text in (
        (page, render_html(report, training_metrics(trained_dir or run_dir))),
        (report_dir / "report.md", markdown(report)),
    ):
        with publish(path) as temporary:
            temporary.touch(mode=0o600 if private else 0o666)
            temporary.write_text(text, encoding="utf-8")
    print_table(report, Console(stderr=True))
    # Last: its presence marks the stage as complete.
    write_json(report_dir / "report.json", report.model_dump(mode="json"), private)
    return page


def render_html(report: Report, metrics: list[dict[str, Any]]) -> str:
    """The page; `metrics` are the training's."""
    replay, traffic, privacy = report.replay, report.traffic, report.privacy
    speeds = {mode: charts.speed_chart(served.speed) for mode, served in report.served.items()}
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            r=report,
            k_words=k_words(report.k),
            k_reasons=[*k_reasons(report.choice), *schedule_words(report.choice)],
            verdict_class=VERDICT_CLASSES[report.verdict.verdict],
            headline=headline(report),
            acceptance=charts.acceptance_chart(report),
            lengths=charts.length_chart(replay.by_k, report.k) if replay else None,
            speeds=speeds,
            rates=rates_page(report),
            kinds=kinds_page(report),
            slices=charts.slice_chart(report.slices) if report.slices else None,
            samples=report.samples,
            training=charts.training_chart(metrics),
            export_note=export_note(metrics),
            story=provenance_lines(report.provenance),
            slower=slower_than_none(report),
            privacy=privacy,
            privacy_line=privacy_line(privacy) if privacy else "",
            on_policy=on_policy_section(report.on_policy) if report.on_policy else None,
            facts=[
                *(facts(traffic) if traffic else []),
                *(("lost ends", text) for text in report.lost_ends),
            ],
            rejects=traffic["rejects"] if traffic else {},
            token_lengths=length_figures(traffic) if traffic else [],
        )
    )
    return str(page)


def headline(results: Results) -> list[Tile]:
    """The figures at the top of the page."""
    label = f"acceptance length, custom / base, {results.at_k}"
    tiles = [_tile(label, results.acceptance_ratio)]
    own_k = "" if results.k.base == results.k.custom else ", each at its own K"
    for mode, measured in results.served.items():
        main = str(results.main_concurrency)
        row = measured.speed[main]
        for versus, speedup in (
            ("base", row.custom_over_base),
            ("no speculation", row.custom_over_none),
        ):
            label = f"tokens/s, custom / {versus}, {mode}, concurrency {main}{own_k}"
            tiles.append(_tile(label, speedup))
    return tiles


def slower_than_none(results: Results) -> list[str]:
    """Where custom is slower than no speculation."""
    slower = []
    for mode, measured in results.served.items():
        for concurrency, row in measured.speed.items():
            ratio = row.custom_over_none.value
            if ratio < 1:
                slower.append(f"{mode} at concurrency {concurrency} ({ratio:.2f}×)")
    return slower


def on_policy_section(on_policy: Mapping[str, Any]) -> dict[str, Any]:
    """The capture's on-policy check: two lines, groups of sequences, the chart of z."""
    return {
        "lines": two_lines(on_policy),
        "groups": groups_of(on_policy),
        "z": charts.z_chart(on_policy),
    }


def length_figures(traffic: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any], str]]:
    """Name, quantiles and histogram of each kind of length."""
    return [
        (name, lengths, charts.histogram_chart(lengths["bins"]))
        for name, lengths in traffic["lengths"].items()
        if lengths["n"]
    ]


def _tile(label: str, estimate: Interval) -> Tile:
    note = "no interval: too few sessions"
    if estimate.low is not None and estimate.high is not None:
        note = f"{estimate.low:.2f} to {estimate.high:.2f}"
    return Tile(label, f"{estimate.value:.2f}×", note)


if __name__ == "__main__":
    (run,) = map(Path, sys.argv[1:])
    print(write_report(run, run / "evaluation", run))
