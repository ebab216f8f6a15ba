"""The report: an offline page for people, Markdown, JSON for machines, and the terminal's table.

python -m outrider.eval.report.report runs/resume_screening      # renders results.json again
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from outrider.common.files import publish, read_json, write_json
from outrider.common.lost_ends import LostEnds
from outrider.data.ingest.traffic_facts import facts
from outrider.data.on_policy.check import FILE as ON_POLICY
from outrider.data.on_policy.check import groups_of, two_lines
from outrider.eval.report import charts
from outrider.eval.report.formatting import interval, print_markdown, render
from outrider.eval.results.choice import Choice
from outrider.eval.results.parts import DRAFTERS, ClusteredEstimate, Estimate, k_list
from outrider.eval.results.report import Report, Results

CAPTURED = "summary.json"
"""The capture's summary in features/; its module imports torch."""

PROVENANCE = ("command_line", "started", "git", "hardware", "python", "versions")
"""Keys of provenance.json that the page shows; report.json has all of them."""

Metrics = Sequence[Mapping[str, Any]]
"""Lines of the training's metrics.jsonl."""


class Tile(NamedTuple):
    """A figure at the top of the page."""

    label: str
    value: str
    note: str


def write_report(
    run_dir: Path, out_dir: Path, report_dir: Path, trained_dir: Path | None = None
) -> Path:
    """Renders `out_dir`/results.json into `report_dir` and prints its summary; returns the page.

    Writes report.html, report.md and report.json. `trained_dir` has the training's metrics.jsonl;
    None: `run_dir`.
    """
    run_dir, report_dir = Path(run_dir), Path(report_dir)
    trained_dir = trained_dir or run_dir
    report = load(run_dir, Results.read(Path(out_dir) / "results.json"), trained_dir)
    values = contents(report, training_metrics(trained_dir))
    private = report.samples is not None  # customer text
    page = report_dir / "report.html"
    for path, text in (
        (page, render("report.j2", "html", **values)),
        (report_dir / "report.md", render("report.j2", "markdown", **values)),
    ):
        with publish(path) as temporary:
            temporary.touch(mode=0o600 if private else 0o666)
            temporary.write_text(text, encoding="utf-8")
    print_markdown(render("summary.j2", "markdown", **values), Console(stderr=True))
    # Last: its presence marks the stage as complete.
    write_json(report_dir / "report.json", report.model_dump(mode="json"), private)
    return page


def load(run_dir: Path, results: Results, trained_dir: Path) -> Report:
    """The results with what the run's other stages left; absent files give null sections."""
    traffic = _read(run_dir / "traffic" / "summary.json")
    return Report(
        **dict(results) | {"lost_ends": (*lost_ends(run_dir, trained_dir), *results.lost_ends)},
        traffic=traffic if traffic and "lengths" in traffic else None,
        privacy=_read(run_dir / "traffic" / "privacy.json"),
        on_policy=_read(run_dir / "features" / ON_POLICY),
        provenance=_read(run_dir / "provenance.json") or {},
    )


def contents(report: Report, metrics: Metrics) -> dict[str, Any]:
    """What the template shows besides the report's own figures."""
    replay, traffic, on_policy = report.replay, report.traffic, report.on_policy
    depth = len(replay.by_k["custom"]) if replay else 0
    acceptance = [charts.acceptance_figure(report)]
    if training := charts.training_figure(metrics):
        acceptance.append(training)
    rates = [
        (f"{scenario.replace('_', ' ')}, {mode}", rows)
        for mode, scenarios in report.rates.items()
        for scenario, rows in scenarios.items()
    ]
    arrivals = {row.arrivals for _, rows in rates for row in rows.values()}
    return {
        "r": report,
        "k_list": k_list(report.k),
        "tiles": headline(report),
        "slower": slower_than_none(report),
        "speed_figures": [charts.speed_figure(m, one.speed) for m, one in report.served.items()],
        "rate_figures": [charts.rate_figure(*each) for each in rates],
        "arrivals": "those of the log, scaled to the rate"
        if arrivals == {"log"}
        else "a Poisson process where the log has no times",
        "acceptance_figures": acceptance,
        "k_reasons": k_reasons(report.choice),
        "drafts_head": [f"k = {k}" for k in range(0 if report.by_batch_size else 1, 1 + depth)],
        "by_k_head": [f"K = {k}" for k in range(1, 1 + depth)],
        "left_to_win": left_to_win(report),
        "facts": facts(traffic) if traffic else [],
        "on_policy_lines": two_lines(on_policy) if on_policy else [],
        "on_policy_groups": groups_of(on_policy) if on_policy else [],
        "privacy_line": privacy_line(report.privacy) if report.privacy else "",
        "provenance": provenance_lines(report.provenance),
    }


def headline(results: Results) -> list[Tile]:
    """The figures at the top of the page."""
    tiles = [_tile(f"acceptance, custom / base, {results.at_k}", results.acceptance_ratio)]
    own_k = "" if results.k.base == results.k.custom else ", each at its own K"
    main = str(results.main_concurrency)
    for mode, measured in results.served.items():
        row = measured.speed[main]
        for versus, ratio in (("base", row.custom_over_base), ("none", row.custom_over_none)):
            label = f"tokens/s, custom / {versus}, {mode}, concurrency {main}{own_k}"
            tiles.append(_tile(label, ratio))
    return tiles


def slower_than_none(results: Results) -> list[str]:
    """Where custom is slower than no speculation."""
    return [
        f"{mode} at concurrency {concurrency} ({interval(row.custom_over_none)})"
        for mode, measured in results.served.items()
        for concurrency, row in measured.speed.items()
        if row.custom_over_none.value < 1
    ]


def k_reasons(choice: Choice) -> list[str]:
    """K by batch size, for each speculator; empty where not both were timed."""
    lines = []
    for drafter in DRAFTERS:
        rows = choice.k_per_batch_size.of(drafter) if choice.k_per_batch_size else None
        if rows:
            ranges = (f"{first}-{last}: {k}" for first, last, k in rows)
            lines.append(f"{drafter}, K by batch size: {', '.join(ranges)}")
    return lines


def left_to_win(results: Results) -> str:
    """What the ceiling means for this speculator; empty without exact replay."""
    replay, k = results.replay, results.k.custom
    if replay is None:
        return ""
    lookup, custom, ceiling = (
        each.value for each in (replay.lookup, replay.custom, replay.ceiling)
    )
    return (
        f"At K = {k} n-gram lookup, which needs no training, accepts {lookup:.2f} tokens per step,"
        f" custom {custom:.2f}, and a perfect drafter of this sampling {ceiling:.2f}: at most"
        f" {max(ceiling / custom - 1, 0):.0%} more than custom is left to win."
    )


def lost_ends(run_dir: Path, trained_dir: Path) -> list[str]:
    """What capture and training have cut, in words."""
    captured = (_read(run_dir / "features" / CAPTURED) or {}).get("too_long")
    trained = (_read(trained_dir / "training" / "result.json") or {}).get("lost_ends")
    return [text for each in (captured, trained) if each and (text := LostEnds(**each).describe())]


def training_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The training's metrics.jsonl; a last line that is not whole is left out."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def privacy_line(privacy: Mapping[str, Any]) -> str:
    """What was done about personal data, in one or two sentences."""
    text = f"{privacy['with_any']:,} of {privacy['exchanges']:,} exchanges contain personal data. "
    if privacy["mode"] == "report":
        return text + "Nothing was changed."
    text += (
        f"Surrogates replace it in {privacy['replaced']:,} prompts; "
        f"{sum(privacy['left_out'].values()):,} exchanges were left out, most because their "
        "response contains some."
    )
    if privacy["to_regenerate"]:
        text += (
            f" The target wrote {privacy['to_regenerate']:,} responses again, because the logged "
            "ones contained some."
        )
    return text


def provenance_lines(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The page's part of the provenance, name -> text."""
    lines = {}
    for name in PROVENANCE:
        value = provenance.get(name)
        if isinstance(value, Mapping):
            items = (f"{key} {item}" for key, item in value.items() if item not in (None, [], ""))
            lines[name.replace("_", " ")] = ", ".join(items)
        elif value:
            text = value if isinstance(value, str) else " ".join(map(str, value))
            lines[name.replace("_", " ")] = text
    return lines


def _tile(label: str, estimate: Estimate | ClusteredEstimate) -> Tile:
    note = "no interval: too few sessions"
    if estimate.low is not None and estimate.high is not None:
        note = f"{estimate.low:.2f} to {estimate.high:.2f}"
    return Tile(label, f"{estimate.value:.2f}×", note)


def _read(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.is_file() else None


if __name__ == "__main__":
    (run,) = map(Path, sys.argv[1:])
    print(write_report(run, run / "evaluation", run))
