"""Acceptance of a static and an adapted speculator while the traffic shifts.

    python -m benchmarks.adaptation runs/adaptation          # resumes; one core: 1 h
    python -m benchmarks.adaptation runs/adaptation --table  # figures and plot of what is done

Nano R1's log has 1,000 résumé screenings, then 600 receipts. `adapt-speculator`'s loop reads it:
windows of 100, real captures, real training rounds, real gates, releases in service at once. What
every window's requests would have met is computed by exact replay on them, which agrees with the
engine's counts within 0.1 %: of the target's own MTP layer (base), of the first release (static),
and of the release in service when they arrived (adapted). No endpoint is served, so there is no
canary; what it adds is in benchmarks/canary_decisions.py.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.common.files import read_json, write_json
from outrider.eval.replay.replay import ReplaySums, compare
from outrider.eval.replay.select_sums import joined
from outrider.live.adapt import Adapter
from outrider.live.adapt_gate import replayed
from outrider.live.adapt_state import PROMOTED
from outrider.live.deployer import BASE, Outcome, Serving, in_use
from outrider.live.releases import Releases
from outrider.pipeline.recipe.load import LoadedRecipe, load_recipe
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC

BEFORE, AFTER, WINDOW = 1000, 600, 100
SETTINGS = [
    f"adapt.window={WINDOW}",
    "adapt.from_start=true",
    "adapt.most_behind=1000",
    "adapt.fresh=600",
    "adapt.train_sequences=600",
    "training.processes=1",
    "training.rows_per_step=2",
    "training.wandb_project=null",
]


class AtOnce:
    """A deployer whose releases serve at once."""

    def __init__(self, folder: Path) -> None:
        self.releases, self.note = Releases(folder / "releases"), folder / "serving.json"

    def serving(self) -> Serving:
        """The last release."""
        if not self.note.is_file():
            return Serving(BASE, None)
        release = self.releases.get(read_json(self.note))
        return Serving(release.name, release.directory)

    def deploy(self, bundle: Path) -> Outcome:
        """Promotes the bundle."""
        before = self.serving()
        release = self.releases.add(bundle, before.name)
        write_json(self.note, release.name)
        return Outcome(PROMOTED, Serving(release.name, release.directory))


def write_shift(path: Path) -> None:
    """The log: résumés, then receipts that are dated after them."""
    lines: list[str] = []
    last = 0.0
    for name, count in (("resume_screening", BEFORE), ("document_extraction", AFTER)):
        with gzip.open(EMBEDDED_TRAFFIC / f"{name}.jsonl.gz", "rt", encoding="utf-8") as log:
            rows = [json.loads(line) for line, _ in zip(log, range(count), strict=False)]
        later = max(last + 60 - rows[0]["timestamp"], 0.0)
        for row in rows:
            row["timestamp"] += later
            row["response"]["created"] += int(later)
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        last = rows[-1]["timestamp"]
    path.write_text("".join(lines), encoding="utf-8")


def recipe_of(folder: Path) -> LoadedRecipe:
    """Résumé screening's recipe with the log, followed by the loop."""
    settings = [*SETTINGS, f"traffic.path={folder / 'log.jsonl'}"]
    return load_recipe("resume_screening", settings)


def measure(adapter: Adapter) -> dict[str, Any]:
    """Acceptance lengths by window, and the rounds."""
    state, loaded = adapter.state, adapter.loaded.recipe
    releases = {each.name: each.directory for each in adapter.deployer.releases.all()}  # type: ignore[attr-defined]
    used = in_use(loaded, Serving(BASE, None))
    first = next(each.release for each in state.rounds if each.won)

    def sums(number: int, name: str) -> ReplaySums:
        directory = used.directory if name == BASE else releases[name]
        return replayed(adapter.window_run(number), directory, used.recipe)

    def length(found: ReplaySums) -> list[float | None]:
        estimate = compare(found, found, used.k)["base"]
        return [estimate.value, estimate.low, estimate.high]

    windows = []
    for window in state.usable:
        windows.append(
            {
                "until": window.n * WINDOW,
                "release": window.release,
                "base": length(sums(window.n, BASE)),
                "static": length(sums(window.n, str(first))),
                "adapted": length(sums(window.n, str(window.release))),
            }
        )
    # On windows of either kind that no round has trained on.
    last_resumes = [BEFORE // WINDOW]
    last_receipts = [max(state.windows)]
    forgetting = {}
    for name in releases:
        forgetting[name] = {
            "résumés": length(joined([sums(number, name) for number in last_resumes])),
            "receipts": length(joined([sums(number, name) for number in last_receipts])),
        }
    rounds = [
        {"event": entry.event, **{key: value for key, value in entry.facts.items()}}
        for entry in adapter.journal.entries
        if entry.event in ("round", "trained", "gated", "deployed")
    ]
    return {"windows": windows, "releases": forgetting, "rounds": rounds, "k": used.k}


def plot(found: dict[str, Any], path: Path) -> None:
    """Acceptance over requests, releases marked."""
    import altair as alt

    colours = {"base": "#8a8a8a", "static": "#c2410c", "adapted": "#1d4ed8"}
    rows = []
    for window in found["windows"]:
        # Before its release, the static speculator is trained on what it would be measured on.
        for name in colours if window["release"] != BASE else ("base", "adapted"):
            value, low, high = window[name]
            at = window["until"] - WINDOW / 2
            rows.append(
                {"requests": at, "speculator": name, "value": value, "low": low, "high": high}
            )
    releases, before = [], BASE
    for window in found["windows"]:
        if window["release"] != before:
            releases.append({"requests": window["until"] - WINDOW, "text": "release"})
            before = window["release"]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=alt.X("requests:Q", title="requests"),
        color=alt.Color(
            "speculator:N",
            scale=alt.Scale(domain=[*colours], range=[*colours.values()]),
            legend=alt.Legend(title=None, orient="top"),
        ),
    )
    scale = alt.Scale(zero=False)
    band = base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
    line = base.mark_line(point=True).encode(
        y=alt.Y("value:Q", title="acceptance length (tokens per step)", scale=scale)
    )

    def rules(marks: list[dict[str, Any]], colour: str, dash: list[int], y: int) -> alt.LayerChart:
        chart = alt.Chart(alt.Data(values=marks)).encode(x="requests:Q")
        text = chart.mark_text(align="left", dx=3, fontSize=10, color=colour)
        return chart.mark_rule(color=colour, strokeDash=dash) + text.encode(
            y=alt.value(y), text="text:N"
        )

    shift = rules([{"requests": BEFORE, "text": "receipts from here"}], "#444444", [4, 3], 24)
    marks = rules(releases, "#15803d", [], 8)
    chart = (band + line + shift + marks).properties(width=640, height=260)
    chart.configure_view(stroke=None).save(path, format="svg")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", action="store_true", help="figures of what is done, no work")
    parser.add_argument("--plot", type=Path, help="where the plot is written (SVG)")
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "log.jsonl").is_file():
        write_shift(folder / "log.jsonl")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    with Adapter.open(recipe_of(folder), folder, AtOnce(folder), console, parity=False) as adapter:
        if not args.table:
            adapter.run(once=True)
        found = measure(adapter)
    write_json(folder / "adaptation.json", found)
    if args.plot:
        plot(found, args.plot)
    json.dump(found, sys.stdout)
    print()


if __name__ == "__main__":
    main()
