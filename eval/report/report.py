"""The report: one offline page for people, the same as Markdown, JSON for machines, and the table in the terminal.

python -m outrider.eval.report.report runs/resume_screening      # renders it again from evaluation/results.json
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.common.files import publish, read_json, write_json
from outrider.data.ingest.traffic_facts import facts
from outrider.data.on_policy.check import FILE as ON_POLICY
from outrider.data.on_policy.check import groups_of, two_lines
from outrider.eval.gate import SHIP
from outrider.eval.replay.example_traces import markdown_lines
from outrider.eval.report import charts
from outrider.eval.report.formatting import environment, interval, number
from outrider.eval.report.prediction_section import HEAD, predicted_lines, predicted_rows
from outrider.eval.report.rates_section import rates_lines, rates_page

VARIANTS = ("none", "base", "custom")


def write_report(run_dir: Path, out_dir: Path, report_dir: Path) -> Path:
    """Renders `out_dir`/results.json into report.html, report.md and report.json in `report_dir`, and prints the table to stderr."""
    run_dir, report_dir = Path(run_dir), Path(report_dir)
    results = read_json(Path(out_dir) / "results.json")
    provenance = (
        read_json(run_dir / "provenance.json") if (run_dir / "provenance.json").is_file() else {}
    )
    traffic = _traffic(run_dir)
    counts = run_dir / "traffic" / "privacy.json"
    privacy = read_json(counts) if counts.is_file() else None
    judged = run_dir / "features" / ON_POLICY
    on_policy = read_json(judged) if judged.is_file() else None
    page = report_dir / "report.html"
    private = bool(results.get("samples"))  # customer text
    for path, text in (
        (page, render_html(results, _metrics(run_dir), provenance, traffic, privacy, on_policy)),
        (report_dir / "report.md", render_markdown(results, traffic, privacy, on_policy)),
    ):
        with publish(path) as temporary:
            temporary.touch(mode=0o600 if private else 0o666)
            temporary.write_text(text, encoding="utf-8")
    print_table(results, Console(stderr=True))
    whole = {
        **results,
        "traffic": traffic,
        "privacy": privacy,
        "on_policy": on_policy,
        "provenance": provenance,
    }
    write_json(report_dir / "report.json", whole, private)  # last: a stage takes it for the whole
    return page


def render_html(
    results: Mapping[str, Any],
    metrics: list[dict[str, Any]],
    provenance: Mapping[str, Any],
    traffic: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    on_policy: Mapping[str, Any] | None = None,
) -> str:
    """The page."""
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            r=results,
            ships=results["verdict"]["verdict"] == SHIP,
            headline=_headline(results),
            acceptance=charts.acceptance_chart(results),
            lengths=charts.length_chart(results) if results["replay"] else None,
            speeds={
                mode: charts.speed_chart(measured["speed"])
                for mode, measured in results["served"].items()
            },
            predicted_head=HEAD,
            predicted=predicted_rows(results),
            rates=rates_page(results),
            slices=charts.slice_chart(results["slices"]) if results["slices"] else None,
            samples=results.get("samples"),
            training=charts.training_chart(metrics),
            export_note=_export_note(metrics),
            story=_story(provenance),
            slower=_slower_than_none(results),
            privacy=privacy,
            privacy_line=_privacy_line(privacy) if privacy else "",
            own_text=_own_text(on_policy) if on_policy else None,
            facts=facts(traffic) if traffic else [],
            rejects=traffic["rejects"] if traffic else {},
            token_lengths=[
                (name, lengths, charts.histogram_chart(lengths["bins"]))
                for name, lengths in (traffic["lengths"] if traffic else {}).items()
                if lengths["n"]
            ],
        )
    )


def render_markdown(
    results: Mapping[str, Any],
    traffic: Mapping[str, Any] | None = None,
    privacy: Mapping[str, Any] | None = None,
    on_policy: Mapping[str, Any] | None = None,
) -> str:
    """The verdict and the tables, for a pull request or a mail."""
    title, rows = ["", "none", "base", "custom", "custom / base", "custom / none"], _rows(results)
    text = [
        f"# {results['recipe']}: {results['verdict']['verdict']}",
        "",
        results["verdict"]["reason"],
        "",
    ]
    text += ["| " + " | ".join(title) + " |", "|---" * len(title) + "|"]
    text += ["| " + " | ".join(row) + " |" for row in rows]
    text += [
        "",
        *[
            f"- {'passed' if c['passed'] else '**failed**'}: {c['name']}: {c['seen']}; {c['demand']}"
            for c in results["verdict"]["checks"]
        ],
    ]
    text += [
        f"- not checked: {what}: {why}" for what, why in results.get("not_measured", {}).items()
    ]
    text += ["", *rates_lines(results)]
    text += ["", *predicted_lines(results)]
    if results["slices"]:
        text += ["", "## By slice", "", *_slice_lines(results["slices"])]
    if results.get("samples"):
        text += ["", "## Step by step", "", *markdown_lines(results["samples"])]
    if on_policy:
        text += ["", *two_lines(on_policy)]
    if traffic:
        text += ["", "## Traffic", "", *_traffic_lines(traffic)]
    if privacy:
        text += ["", _privacy_line(privacy)]
    text += ["", f"k = {results['k']}; intervals are 95 %. Definitions: docs/evaluation.md"]
    return "\n".join(text) + "\n"


def print_table(results: Mapping[str, Any], console: Console) -> None:
    """The same table in the terminal, and the verdict."""
    title = f"{results['recipe']}: k = {results['k']}, 95 % intervals, tokens/s at so many requests at once"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("", "none", "base", "custom", "custom/base", "custom/none"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    for row in _rows(results):
        table.add_row(*row)
    console.print(table)
    colour = "green" if results["verdict"]["verdict"] == SHIP else "red"
    console.print(
        f"[bold {colour}]{results['verdict']['verdict']}[/]: {results['verdict']['reason']}",
        soft_wrap=True,
    )


def _rows(results: Mapping[str, Any]) -> list[list[str]]:
    counted, replayed = results["counted"], results["replay"]
    rows = [
        [
            "acceptance, engine",
            "1",
            *(number(counted[v]["acceptance_length"]) for v in ("base", "custom")),
            interval(counted["ratio"]),
            "",
        ],
    ]
    if replayed:
        lengths = (number(replayed[v]["value"]) for v in ("base", "custom"))
        rows.append(["acceptance, replay", "1", *lengths, interval(replayed["ratio"]), ""])
    if results["general"]:
        lengths = (number(results["general"][v]["value"]) for v in ("base", "custom"))
        rows.append(
            ["acceptance, general", "1", *lengths, interval(results["general"]["ratio"]), ""]
        )
    for mode, measured in results["served"].items():
        for concurrency, row in measured["speed"].items():
            rows.append(
                [
                    f"tokens/s {mode}, at {concurrency}",
                    *(f"{row[variant]['tokens_per_s']:.0f}" for variant in VARIANTS),
                    interval(row["custom_over_base"]),
                    f"{row['custom_over_none']['value']:.2f}",
                ]
            )
    return rows


def _slice_lines(slices: Mapping[str, Any]) -> list[str]:
    """A Markdown table: acceptance length by exact replay in every slice."""
    lines = ["| slice | responses | base | custom | custom / base |", "|---|---|---|---|---|"]
    for dimension, rows in slices.items():
        for row in rows:
            lengths = (number(row[v]["value"]) for v in ("base", "custom"))
            # A tenant may be called anything.
            name = " ".join(f"{dimension}: {row['name']}".split()).replace("|", "\\|")
            lines.append(
                f"| {name} | {row['sequences']} | {' | '.join(lengths)} | {interval(row['ratio'])} |"
            )
    return lines


def _headline(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """The figures that a reader wants first."""
    ratio = (results["replay"] or results["counted"])["ratio"]
    tiles = [
        {
            "label": "acceptance length, custom / base",
            "value": f"{ratio['value']:.2f}×",
            "note": _range(ratio),
        }
    ]
    for mode, measured in results["served"].items():
        lowest = min(measured["speed"], key=int)
        row = measured["speed"][lowest]
        for under in ("base", "none"):
            ratio = row[f"custom_over_{under}"]
            versus = "base" if under == "base" else "no speculation"
            tiles.append(
                {
                    "label": f"tokens/s, custom / {versus}, {mode}, concurrency {lowest}",
                    "value": f"{ratio['value']:.2f}×",
                    "note": _range(ratio),
                }
            )
    return tiles


def _slower_than_none(results: Mapping[str, Any]) -> list[str]:
    """Where speculating costs more than it brings."""
    return [
        f"{mode} at concurrency {concurrency} ({row['custom_over_none']['value']:.2f}×)"
        for mode, measured in results["served"].items()
        for concurrency, row in measured["speed"].items()
        if row["custom_over_none"]["value"] < 1
    ]


def _own_text(on_policy: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "lines": two_lines(on_policy),
        "groups": groups_of(on_policy),
        "z": charts.z_chart(on_policy),
    }


def _privacy_line(privacy: Mapping[str, Any]) -> str:
    """What was done about personal data, in one sentence."""
    done = {
        "report": "Nothing was changed.",
        "surrogate": f"Surrogates stand in {privacy['replaced']:,} prompts; {sum(privacy['left_out'].values()):,} exchanges were left out, "
        "most because their response holds some.",
    }
    text = f"Personal data: {privacy['with_any']:,} of {privacy['exchanges']:,} exchanges hold some. {done[privacy['mode']]}"
    # Reports are also made of runs whose counts are older.
    if anew := privacy.get("to_regenerate", 0):
        text += f" To {anew:,} prompts the target gave a new response, because the logged one held some."
    return text


def _story(provenance: Mapping[str, Any]) -> dict[str, str]:
    """What of the provenance stands in the page; all of it is in report.json."""
    story = {}
    for name in ("command_line", "started", "git", "hardware", "python", "versions"):
        value = provenance.get(name)
        if isinstance(value, Mapping):
            story[name.replace("_", " ")] = ", ".join(
                f"{key} {item}" for key, item in value.items() if item not in (None, [], "")
            )
        elif value:
            story[name.replace("_", " ")] = (
                value if isinstance(value, str) else " ".join(map(str, value))
            )
    return story


def _traffic(run_dir: Path) -> dict[str, Any] | None:
    """The ingest's summary; None where there is none, or one that describes no lengths."""
    path = run_dir / "traffic" / "summary.json"
    summary = read_json(path) if path.is_file() else {}
    return summary if "lengths" in summary else None


def _traffic_lines(traffic: Mapping[str, Any]) -> list[str]:
    lines = [f"- {name}: {text}" for name, text in facts(traffic)]
    if traffic["rejects"]:
        lines.append(
            "- rejects: "
            + ", ".join(f"{reason} {count}" for reason, count in traffic["rejects"].items())
        )
    for name, lengths in traffic["lengths"].items():
        if lengths["n"]:
            quantiles = ", ".join(f"{key} {lengths[key]:,}" for key in ("p50", "p90", "p99", "max"))
            lines.append(f"- {name}, tokens: {quantiles} (n = {lengths['n']:,})")
    return lines


def _metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The training's metrics.jsonl: the run's, or the last attempt's that trained."""
    attempts = sorted(
        run_dir.glob("logs/attempt_*/metrics.jsonl"),
        key=lambda path: int(path.parent.name.split("_")[-1]),
    )
    for path in (run_dir / "metrics.jsonl", *reversed(attempts)):
        if path.is_file():
            return [
                json.loads(line)
                for line in path.read_text(encoding="utf-8").splitlines()
                if line.endswith("}")
            ]
    return []


def _export_note(metrics: list[dict[str, Any]]) -> str:
    """What the published weights accept beside the trained ones: FP8 blocks, for one, round what was trained."""
    exported = [
        line["exported_acceptance_length"][-1]
        for line in metrics
        if "exported_acceptance_length" in line
    ]
    if not exported:
        return ""
    trained = max(
        line["validation_acceptance_length"][-1]
        for line in metrics
        if "validation_acceptance_length" in line
    )
    return (
        f" Published, in the target's own precision: {exported[-1]:.3f}, {exported[-1] / trained - 1:+.2%} from the best above,"
        f" {trained:.3f}."
    )


def _range(estimate: Mapping[str, float]) -> str:
    return f"{estimate['low']:.2f} to {estimate['high']:.2f}"


if __name__ == "__main__":
    (run,) = map(Path, sys.argv[1:])
    print(write_report(run, run / "evaluation", run))
