"""Is the logged text the target's own? Asked of every captured sequence, because everything after rests on it.

Exact replay and the training loss take a logged response for a sample of the target. A wrong chat template, another model
behind the endpoint, a temperature that the log does not name or edited text break that in silence: the losses fall as
ever, and the acceptance that is predicted is not the one that is served. Capture has summed what the target says of each
logged token (evidence.py); here every part and slice of the traffic is judged (causes.py), sequences below
traffic.min_on_policy are set aside (quarantine.py), and two lines say it all.

    check_traffic(run / "traffic" / "sequences", run / "split", run / "features", min_on_policy=0.95)

Leaves on_policy.json and quarantine.json beside the store.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.on_policy.causes import Verdict, judge
from outrider.data.on_policy.evidence import Z_EDGES, Evidence
from outrider.data.on_policy.quarantine import write_quarantine
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.general_traffic import GENERAL
from outrider.data.split.slices import Slices, load_slices
from outrider.data.split.split import PARTS, ids_of

FILE = "on_policy.json"
MOST_ASIDE = 0.5
"""Share of the sequences above which setting them aside is no remedy and the run stops."""


def check_traffic(
    sequences_dir: Tables, split_dir: Path, features_dir: Path, min_on_policy: float | None
) -> dict[str, Any]:
    """Judges what was captured, says it in two lines, and stops the run where most of it is not the target's own; returns what a
    stage keeps of it."""
    parts = read_json(Path(split_dir) / "parts.json")
    table = load_sequences(sequences_dir, ids_of(parts))
    report = examine(
        FeatureStore.open(features_dir), table, parts, load_slices(split_dir), min_on_policy
    )
    console = Console(stderr=True)
    for line in two_lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    require(report)
    return {name: report["all"][name] for name in ("quarantined", "verdict")}


def examine(
    store: FeatureStore,
    table: Dataset,
    parts: Mapping[str, Any],
    slices: Slices,
    min_on_policy: float | None,
) -> dict[str, Any]:
    """Judges every row of the table; writes the report and the quarantine beside the store and returns the report."""
    evidence = Evidence.of(store, table)
    own_S = evidence.own_share()
    below_S = own_S < min_on_policy if min_on_policy is not None else np.zeros(len(evidence), bool)
    index = {sequence_id: row for row, sequence_id in enumerate(table["sequence_id"])}

    def rows(ids: list[str]) -> np.ndarray:
        return np.array([index[sequence_id] for sequence_id in ids if sequence_id in index], int)

    def described(rows_N: np.ndarray) -> dict[str, Any]:
        group = evidence.take(rows_N)
        return {
            **group.summary(),
            "quarantined": int(below_S[rows_N].sum()),
            "verdict": judge(group, evidence).as_dict(),
        }

    groups = {
        dimension: {name: rows_N for name, ids in names.items() if len(rows_N := rows(ids))}
        for dimension, names in slices.items()
    }
    everything = described(np.arange(len(evidence)))
    everything["verdict"] = _localised(evidence, judge(evidence), groups).as_dict()
    report = {
        "min_on_policy": min_on_policy,
        "z_edges": Z_EDGES,
        "all": everything,
        "parts": {
            part: described(rows(parts[part])) for part in (*PARTS, GENERAL) if part in parts
        },
        "slices": {
            dimension: {name: described(rows_N) for name, rows_N in names.items()}
            for dimension, names in groups.items()
        },
    }
    write_json(store.directory / FILE, report, private=True)
    ids = table["sequence_id"][:]
    write_quarantine(
        store.directory, {ids[row]: float(own_S[row]) for row in np.flatnonzero(below_S)}
    )
    return report


def require(report: Mapping[str, Any]) -> None:
    """Stops the run where most of the traffic is not the target's: what is left would not be the customer's."""
    everything = report["all"]
    if everything["quarantined"] <= MOST_ASIDE * everything["sequences"]:
        return
    raise OutriderError(
        f"{everything['quarantined']:,} of {everything['sequences']:,} captured sequences are not the target's own text (less than "
        f"{report['min_on_policy']:g} of their tokens are likely under it, traffic.min_on_policy): "
        f"{everything['verdict']['text']}. Check target.model, target.revision and the log; docs/traffic.md says what each cause "
        "looks like. To train on it all the same, lower traffic.min_on_policy (null: keep everything)"
    )


def two_lines(report: Mapping[str, Any]) -> list[str]:
    """The two lines for a person."""
    everything = report["all"]
    verdict, (low, high) = everything["verdict"], everything["expected_range"]
    answer = {True: "yes", False: "no", None: "too little to tell"}[verdict["own"]]
    if (
        verdict["own"] is False
        and everything["quarantined"] <= MOST_ASIDE * everything["sequences"]
    ):
        answer = "not all of it"
    aside = "none is set aside"
    if everything["quarantined"]:
        aside = f"{everything['quarantined']:,} sequences are set aside"
    limit = "off" if report["min_on_policy"] is None else f"{report['min_on_policy']:g}"
    why = "" if verdict["own"] else f"Likely cause: {verdict['text']}. "
    return [
        f"Is this the target's own text? {answer}: {everything['sequences']:,} sequences, {everything['tokens']:,} tokens of mean "
        f"log-probability {everything['sampled_mean_logprob']:.3f}, where its own samples have {low:.3f} to {high:.3f}; "
        f"{everything['below_1e4']:.2%} below 1e-4, z {everything['z']['pooled']:.1f}",
        f"{why}Of the sequences {aside} (traffic.min_on_policy {limit}; the lowest has {everything['own_share']['lowest']:.2f})",
    ]


def groups_of(report: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The rows of a table: everything, its parts, and the slices of each dimension that has more than one."""
    rows = [("all", report["all"]), *report["parts"].items()]
    for dimension, names in report["slices"].items():
        if len(names) > 1:
            rows += [(f"{dimension}: {name}", described) for name, described in names.items()]
    return rows


def _localised(
    evidence: Evidence, verdict: Verdict, groups: Mapping[str, Mapping[str, np.ndarray]]
) -> Verdict:
    """Where some slices of a dimension are the target's own and others are not, the cause of the others, with their names:
    of all dimensions the one that needs the fewest sequences to explain it."""
    if verdict.own is not False:
        return verdict
    explained = None
    for dimension, names in groups.items():
        own = {name: judge(evidence.take(rows_N), evidence).own for name, rows_N in names.items()}
        off = [name for name, is_own in own.items() if is_own is False]
        if off and True in own.values():
            rows_N = np.concatenate([names[name] for name in off])
            if explained is None or len(rows_N) < len(explained[0]):
                explained = rows_N, f"{dimension} {', '.join(off)}"
    if explained is None:
        return verdict
    rows_N, where = explained
    cause = judge(evidence.take(rows_N), evidence)
    if cause.own is not False:
        return verdict
    return Verdict(False, cause.cause, f"only in {where}: {cause.text}")
