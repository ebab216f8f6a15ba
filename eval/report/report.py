"""Writes the report: an offline page, Markdown, JSON, and a terminal table.

write_report(report, Path("runs/resume_screening"), Path("runs/resume_screening"))
"""

import functools
import itertools
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from outrider.common.files import publish
from outrider.common.json_forms import parse_form, read_form
from outrider.common.lost_ends import LostEnds
from outrider.data.features.answers import logged_id
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.ingest.load import busy_time_shares, durations_in_words
from outrider.data.ingest.traffic_facts import traffic_facts
from outrider.data.on_policy.check import FILE as ON_POLICY
from outrider.data.on_policy.check import (
    QUARANTINE,
    OnPolicyReport,
    groups_of,
    read_quarantine,
    report_lines,
)
from outrider.eval.report import charts, costs, first_screen, speeds
from outrider.eval.report.formatting import print_markdown, render_report
from outrider.eval.results.parts import (
    DRAFTERS,
    LOOKUP,
    VARIANTS,
    k_list,
)
from outrider.eval.results.report import Report
from outrider.eval.results.sections import Block, CacheUse, KChoice

MOST_SHOWN = 8
"""Largest K of the table of acceptance lengths; a lookup has 24."""

MOST_LOADS = 3
"""Loads of the terminal's summary; the page has all."""


def write_report(report: Report, report_dir: Path, trained_dir: Path) -> Path:
    """Writes report.html, .md and .json and prints the summary; returns the page."""
    values = contents(report, training_metrics(trained_dir))
    page = report_dir / "report.html"
    for path, text in (
        (page, render_report("report.j2", "html", **values)),
        (report_dir / "report.md", render_report("report.j2", "markdown", **values)),
    ):
        with publish(path) as temporary:
            temporary.touch(mode=0o666 if report.samples is None else 0o600)  # customer text
            temporary.write_text(text, encoding="utf-8")
    print_first_screen(values, Console(stderr=True, force_jupyter=False))
    report.write(report_dir / "report.json")  # last: its presence marks the stage as complete
    return page


def print_first_screen(values: dict[str, Any], console: Console) -> None:
    """Prints the first screen, which fits a terminal of 25 lines, with the first loads."""
    loads = values["loads"]
    shown = values | {"loads": loads[:MOST_LOADS], "more_loads": len(loads[MOST_LOADS:])}
    print_markdown(render_report("summary.j2", "markdown", **shown), console)


def sections_of(run_dir: Path) -> dict[str, Any]:
    """Reads the report sections of the run's other stages, if any."""
    return {
        "traffic": _read(run_dir / "traffic" / "summary.json"),
        "privacy": _read(run_dir / "traffic" / "privacy.json"),
        "on_policy": _read(run_dir / "features" / ON_POLICY),
        "further_answers": _further_answers(run_dir),
        "provenance": _read(run_dir / "provenance.json") or {},
    }


def contents(report: Report, metrics: charts.Rows) -> dict[str, Any]:
    """The template's values: the report, its charts and derived tables."""
    replay = report.replay
    depths = [len(replay.by_k[name]) for name in DRAFTERS] if replay else [0]
    depth = min(*depths, MOST_SHOWN)
    acceptance = [
        charts.lengths_figure(report, depth),
        charts.acceptance_figure(report),
        charts.training_figure(metrics),
    ]
    charted = speeds.load_bars(report)
    main_mode, _ = first_screen.main_row(report)
    rates = [
        (f"{scenario.replace('_', ' ')}, {mode}", rows)
        for mode, scenarios in report.rates.items()
        for scenario, rows in scenarios.items()
    ]
    from_log = {row.arrivals for _, rows in rates for row in rows.values()} == {"log"}
    arrivals = "a Poisson process where the log has no times"
    values = {
        "r": report,
        "page_title": first_screen.title(report),
        "subtitle": first_screen.subtitle(report),
        "sentences": first_screen.verdict_sentences(report),
        "advice": first_screen.serving_advice(report),
        "loads": charted,
        "one": speeds.one_over_scale(charted),
        "tiles": speeds.tiles(report),
        "cost_sentence": costs.cost_sentence(report),
        "cost_table": costs.cost_table(report),
        "main_load": speeds.load_label(report, main_mode, report.choice.main_concurrency),
        "currency": speeds.currency(report),
        "blocks_of": functools.partial(speeds.main_blocks, report),
        "more_loads": 0,
        "k_list": k_list(report.choice.k),
        "kinds_figures": [charts.kinds_figure(report)] if report.kinds else [],
        "cached_rows": cached_rows(report),
        "rate_figures": [charts.rate_figure(*scenario) for scenario in rates],
        "arrivals": "those of the log, scaled to the rate" if from_log else arrivals,
        "acceptance_figures": [figure for figure in acceptance if figure],
    }
    values["k_table"] = k_table(report.choice)
    values["load_line"] = load_line(report)
    values["by_k_head"] = [f"K = {k}" for k in range(1, 1 + depth)]
    return values | _facts_of(report)


def cached_rows(report: Report) -> list[tuple[str, CacheUse]]:
    """Use of the KV cache by engine mode, concurrency and variant, with a label."""
    rows = []
    for mode, served in report.served.items():
        for size, row in served.speed.items():
            blocks: list[tuple[str, Block]] = [(variant, row.of(variant)) for variant in VARIANTS]
            if row.lookup is not None:
                blocks.append((LOOKUP, row.lookup.block))
            rows += [
                (f"{mode}, concurrency {size}, {variant}", block.cache)
                for variant, block in blocks
                if block.cache is not None
            ]
    return rows


def _facts_of(report: Report) -> dict[str, Any]:
    """The lines about traffic and on-policy check; empty for a report without them."""
    traffic = report.traffic
    on_policy = cast(OnPolicyReport | None, report.on_policy)  # read from its file
    return {
        "facts": traffic_facts(traffic) if traffic else [],
        "on_policy_lines": report_lines(on_policy) if on_policy else [],
        "on_policy_groups": groups_of(on_policy) if on_policy else [],
    }


def load_line(report: Report) -> str:
    """The share of production's busy time that each measured concurrency covers; or empty."""
    traffic = cast(dict[str, Any] | None, report.traffic)  # read from its file
    load = (traffic or {}).get("load")
    if load is None:
        return ""
    parts = []
    below = 0
    sizes = sorted({int(size) for served in report.served.values() for size in served.speed})
    shares = busy_time_shares(load, sizes)
    for size, share in shares.items():
        numbers = f"{size}" if size == below + 1 else f"{below + 1} to {size}"
        parts.append(f"{numbers} for {share:.0%}")
        below = size
    rest = max(1 - sum(shares.values()), 0.0)
    parts.append(f"more, which was not measured, for {rest:.0%}")
    return (
        "Requests in flight in production, by share of its busy time:"
        f" {', '.join(parts)} (all replicas together; {durations_in_words(load)})."
    )


def k_table(choice: KChoice) -> dict[str, Any]:
    """Step times and acceptance lengths by number of drafts: `head`, and `rows` by label."""
    times: dict[str, dict[int, float]] = {}
    lengths: dict[str, list[float]] = {}
    for drafter, sizes in choice.step_ms.items():
        for size, row in sizes.items():
            label = f"concurrency {size}, {drafter}'s engine"
            prefill_ms = choice.prefill_ms.get(drafter, {}).get(size)
            if prefill_ms is not None:
                label += f" (and {prefill_ms:.2f} ms of prefill per token)"
            times[label] = row
    if choice.acceptance_length is not None:
        lengths |= {name: choice.acceptance_length.of(name) for name in DRAFTERS}
    for name, lookup in choice.lookups.items():
        if lookup.step_ms:
            label = f"concurrency {choice.main_concurrency}, {name} lookup's engine"
            times[label] = lookup.step_ms
            lengths[f"{name} lookup"] = lookup.acceptance_length or []
    numbers = sorted(set(itertools.chain.from_iterable(times.values())))
    rows: dict[str, list[float | str]] = {}
    for label, row in times.items():
        rows[label] = [round(row[k], 1) if k in row else "" for k in numbers]
    for name, by_k in lengths.items():
        # Without drafts, a step delivers one token.
        known = dict(enumerate([1.0, *by_k]))
        rows[f"acceptance length, {name}"] = [
            round(known[k], 3) if k in known else "" for k in numbers
        ]
    return {"head": [f"k = {k}" for k in numbers], "rows": rows}


def _further_answers(run_dir: Path) -> int:
    """Counts the captured answers to prompts that are not quarantined."""
    features = run_dir / "features"
    if not (features / MANIFEST).is_file():
        return 0
    is_checked = (features / QUARANTINE).is_file()
    quarantined = set(read_quarantine(features).sequences if is_checked else ())
    names = FeatureStore.open(features).sequence_ids
    logged = [logged_id(name) for name in names if logged_id(name) != name]
    return sum(name not in quarantined for name in logged)


def lost_ends_in_words(run_dir: Path, trained_dir: Path) -> list[str]:
    """Describes the responses that capture and training truncated or left out."""
    captured = (_read(run_dir / "features" / "summary.json") or {}).get("too_long")
    trained = (_read(trained_dir / "training" / "result.json") or {}).get("lost_ends")
    described = [LostEnds(**counts).describe() for counts in (captured, trained) if counts]
    return [text for text in described if text]


def training_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Reads the training's metrics.jsonl, skipping an incomplete last line."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    whole = [line for line in lines if line.endswith("}")]
    return [parse_form(dict[str, Any], line, path, "delete this line") for line in whole]


def _read(path: Path) -> dict[str, Any] | None:
    fix = "delete it and rerun the command"
    return read_form(dict[str, Any], path, fix) if path.is_file() else None
