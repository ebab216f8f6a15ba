"""Runs every attack that has a test, and prints how many held.

    python -m tests.security_table                 # all, the slow ones too: minutes
    python -m tests.security_table --fast          # those of `make test`
    python -m tests.security_table --fast -k oci   # words that are not ours are pytest's

A test is an attack if it is marked with the row of the table that it belongs to:

    @pytest.mark.attack("bundles")

Each of its cases is one attack. It holds if the test passes. A case that is known to fail is marked
`xfail(strict=True)` with the reason: it counts as left. The table has the figures of the first
review next to it, made at f6628eab with scripts that are not in this repository.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

ROWS = {
    "bundles": ("bundles: names, sizes, links, manifests, OCI layers, addresses", 82, 70),
    "serve": ("a bundle's serve arguments and variables", 82, 65),
    "speculators": ("speculator files: safetensors headers, config.json", 17, 17),
    "recipes": ("recipes: YAML, names, paths, values", 46, 39),
    "logs": ("hostile logs (folders)", 19, 13),
    "targets": ("target: `auto_map` tokenizer, Jinja escape", 2, 2),
    "report": ("report: text fields poisoned", 3, 1),
    "paths": ("router: paths to admin, metrics, other routes", 46, 46),
    "requests": ("router: smuggling, odd requests, x-envoy headers", 22, 22),
    "slow": ("router: slow headers, slow bodies", 2, 0),
    "replicas": ("replicas with odd answers", 8, 4),
    "secrets": ("secrets in command lines", 37, 19),
    "personal": ("personal data, surrogate mode: documented kinds", 36, 24),
    "not_promised": ("the same: not promised (names, addresses, ids)", 23, 1),
    "fields": (
        "personal data in session, user, tenant, route, tool call, tool schema, response,"
        " broken row, file name",
        16,
        13,
    ),
    "kills": ("kill -9 at random moments (ingest, split), then resume", 12, 9),
    "faults": (
        "SIGINT twice, SIGTERM twice, disk full, stale lock, copied run, linked run, two runs at"
        " once, unwritable place",
        8,
        8,
    ),
    "runs": ("damaged run folder", 9, 3),
}
"""What was attacked, and how many attacks the first review tried and how many of them held."""


class Counts:
    """A pytest plugin: outcomes of the marked tests by row."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.outcomes: dict[str, str] = {}
        self.left: dict[str, str] = {}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leaves the marked tests, and remembers their rows."""
        marked = []
        others = []
        for item in items:
            mark = item.get_closest_marker("attack")
            if mark is None:
                others.append(item)
                continue
            (self.rows[item.nodeid],) = mark.args
            marked.append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = marked

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remembers an outcome; a failure in setup or teardown counts too."""
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "left"
            self.left[report.nodeid] = report.wasxfail
        if report.when == "call" or outcome != "passed":
            self.outcomes[report.nodeid] = outcome

    def table(self) -> list[str]:
        """Lines of Markdown."""
        counts = Counter((self.rows[name], outcome) for name, outcome in self.outcomes.items())
        lines = [
            "| subject | tried | held | left | first review: tried | held |",
            "|---|---|---|---|---|---|",
        ]
        for row, (subject, tried, held) in ROWS.items():
            passed = counts[row, "passed"]
            left = counts[row, "left"] + counts[row, "failed"]
            lines.append(f"| {subject} | {passed + left} | {passed} | {left} | {tried} | {held} |")
        skipped = sum(outcome == "skipped" for outcome in self.outcomes.values())
        return [*lines, *([f"\n{skipped} attacks need what this machine lacks."] * bool(skipped))]


def main() -> None:
    """Prints the table, and what is left."""
    words = sys.argv[1:]
    markers = "attack"
    if "--fast" in words:
        words.remove("--fast")
        markers = "attack and not slow"
    counts = Counts()
    arguments = ["-m", markers, "-q", "--no-header", "--tb=short", "--durations=0", *words]
    status = pytest.main([*arguments, str(ROOT / "tests")], plugins=[counts])
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    revision = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    print(f"\nRevision {revision}, python -m tests.security_table {' '.join(sys.argv[1:])}\n")
    print("\n".join(counts.table()))
    print("\nLeft:\n")
    for name, reason in sorted(counts.left.items()):
        print(f"- {name.removeprefix('tests/')}: {reason}")
    sys.exit(status)


if __name__ == "__main__":
    main()
