"""On-policy check: tests whether captured sequences were sampled from the target.

Exact replay and the training loss treat a logged response as a sample from the target. A wrong chat
template, another model behind the endpoint, an unlogged temperature or edited text silently breaks
this assumption: losses fall as usual, but the predicted acceptance is wrong. From the scores that
capture has summed, this check judges every part and slice (evidence.py), quarantines sequences
that score below capture.min_on_policy, and reports the result in two lines.

    check_on_policy(run / "traffic/sequences", run / "split", run / "features", min_on_policy=0.95)

Writes on_policy.json and quarantine.json into the feature store.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np
from datasets import Dataset
from pydantic import BaseModel
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.fingerprint import file_digest
from outrider.common.json_forms import read_form
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.on_policy.evidence import (
    EvidenceSummary,
    OnPolicyEvidence,
    Rows,
    checked_rows,
    judge_checked,
)
from outrider.data.sequences import Tables, load_sequences
from outrider.data.split.slices import Slices, load_slices
from outrider.data.split.split import GENERAL, PARTS, ids_of, read_parts

FILE, QUARANTINE = "on_policy.json", "quarantine.json"
MOST_ASIDE = 0.5
"""Maximum share of quarantined sequences; the run stops above it."""


class VerdictFacts(TypedDict):
    """A `OnPolicyVerdict`, as written."""

    own: bool | None
    cause: str
    text: str


class Group(EvidenceSummary):
    """One row of the report: everything, a part or a slice."""

    not_checked: int
    masked: int
    """Sequences checked under their logged grammar."""
    unusable_grammars: int
    """Sequences whose logged grammar gave no mask."""
    quarantined: int
    verdict: VerdictFacts


class OnPolicyReport(TypedDict):
    """on_policy.json."""

    min_on_policy: float | None
    all: Group
    parts: dict[str, Group]
    slices: dict[str, dict[str, Group]]
    """By dimension and name."""


def check_on_policy(
    sequences_dir: Tables,
    split_dir: Path,
    features_dir: Path,
    min_on_policy: float | None,
    streamed: Collection[str] = (),
) -> dict[str, object]:
    """Checks the captured sequences and prints two lines; returns the stage's result.

    `streamed` lists the parts that are captured and checked during training.

    Raises:
        OutriderError: If most of the traffic is off-policy.
    """
    parts = {part: ids for part, ids in read_parts(split_dir).items() if part not in streamed}
    store = FeatureStore.open(features_dir)
    captured = set(store.sequence_ids)
    table = load_sequences(
        sequences_dir, [sequence_id for sequence_id in ids_of(parts) if sequence_id in captured]
    )
    report = judge_sequences(
        store, table, parts, load_slices(split_dir), min_on_policy=min_on_policy
    )
    console = Console(stderr=True)
    for line in report_lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    require_on_policy(report)
    everything = report["all"]
    return {"quarantined": everything["quarantined"], "verdict": everything["verdict"]}


def judge_sequences(
    store: FeatureStore,
    table: Dataset,
    parts: Mapping[str, list[str]],
    slices: Slices,
    *,
    min_on_policy: float | None,
) -> OnPolicyReport:
    """Judges all sequences; writes the report and quarantine; returns the report."""
    evidence = OnPolicyEvidence.of(store, table)
    own_S = evidence.own_share()
    checked_S = checked_rows(evidence, table)
    with_grammar_S = np.array([bool(grammar) for grammar in table["grammar"]], bool)
    limit = -np.inf if min_on_policy is None else min_on_policy
    below_S = checked_S & (own_S < limit)
    index = {sequence_id: row for row, sequence_id in enumerate(table["sequence_id"])}

    def rows(ids: list[str]) -> Rows:
        return np.array([index[sequence_id] for sequence_id in ids if sequence_id in index], int)

    def described(rows_N: Rows) -> Group:
        group = evidence.take(rows_N[checked_S[rows_N]])
        not_checked = len(rows_N) - len(group)
        verdict = judge_checked(group, not_checked)
        return {
            **group.summary(),
            "not_checked": not_checked,
            "masked": int((checked_S & with_grammar_S)[rows_N].sum()),
            "unusable_grammars": int((~checked_S & with_grammar_S)[rows_N].sum()),
            "quarantined": int(below_S[rows_N].sum()),
            "verdict": {"own": verdict.own, "cause": verdict.cause, "text": verdict.text},
        }

    of_slices: dict[str, dict[str, Group]] = {}
    for dimension, names in slices.items():
        rows_of_names = {name: rows(ids) for name, ids in names.items()}
        of_slices[dimension] = {
            name: described(rows_N) for name, rows_N in rows_of_names.items() if len(rows_N)
        }
    everything = described(np.arange(len(evidence)))
    report: OnPolicyReport = {
        "min_on_policy": min_on_policy,
        "all": {**everything, "verdict": _localised(everything["verdict"], of_slices)},
        "parts": {
            part: described(rows(parts[part])) for part in (*PARTS, GENERAL) if part in parts
        },
        "slices": of_slices,
    }
    write_json(store.directory / FILE, report, private=True)
    ids = table["sequence_id"][:]
    write_quarantine(
        store.directory,
        {ids[row]: float(own_S[row]) for row in np.flatnonzero(below_S)},
        not_captured=[sequence_id for sequence_id in ids_of(parts) if sequence_id not in index],
    )
    return report


def require_on_policy(report: OnPolicyReport) -> None:
    """Raises an `OutriderError` if most sequences are off-policy."""
    everything = report["all"]
    if not _is_mostly_off(everything):
        return
    raise OutriderError(
        f"{everything['quarantined']:,} of {everything['sequences']:,} captured sequences are "
        f"off-policy (fewer than {report['min_on_policy']:g} of their tokens are likely under the "
        f"target, capture.min_on_policy): {everything['verdict']['text']}. Check target.model, "
        "target.revision and the log; docs/explanation/traffic.md describes the causes. To train "
        "on it anyway, lower capture.min_on_policy (null: keep everything)"
    )


def _is_mostly_off(everything: Group) -> bool:
    return everything["quarantined"] > MOST_ASIDE * everything["sequences"]


def report_lines(report: OnPolicyReport) -> list[str]:
    """Formats the result as two lines for the terminal."""
    everything = report["all"]
    verdict = everything["verdict"]
    not_checked = f"{everything['not_checked']:,}"
    aside = "replayed and trained on with hard labels (the logged tokens)"
    if verdict["cause"] == "not_checked":
        return [
            f"On-policy: not checked. All {not_checked} sequences were shaped by more than"
            " temperature, top_p and top_k",
            f"They are {aside}{_unusable(everything)}",
        ]
    low, high = everything["expected_range"]
    answer = {True: "yes", False: "no", None: "too little text"}[verdict["own"]]
    if verdict["own"] is False and not _is_mostly_off(everything):
        answer = "partly"
    quarantined = f"{everything['quarantined']:,}" if everything["quarantined"] else "none"
    limit = "off" if report["min_on_policy"] is None else f"{report['min_on_policy']:g}"
    why = "" if verdict["own"] else f"Likely cause: {verdict['text']}. "
    unchecked = ""
    if everything["masked"]:
        unchecked += f". Checked under their logged grammar: {everything['masked']:,}"
    if everything["not_checked"]:
        unchecked += f". Not checked: {not_checked}, {aside}{_unusable(everything)}"
    return [
        f"On-policy: {answer}. {everything['sequences']:,} sequences, {everything['tokens']:,} "
        f"tokens, mean log-probability {everything['sampled_mean_logprob']:.3f} (the target's "
        f"samples: {low:.3f} to {high:.3f}); {everything['below_1e4']:.2%} below 1e-4, "
        f"z {everything['z']:.1f}",
        f"{why}Sequences quarantined: {quarantined} (capture.min_on_policy {limit}; the lowest has "
        f"{everything['lowest_own_share']:.2f}){unchecked}",
    ]


def _unusable(everything: Group) -> str:
    """Describes logged grammars without a mask, and what most often causes them."""
    count = everything["unusable_grammars"]
    if not count:
        return ""
    return (
        f"; {count:,} have a grammar that vLLM does not compile or their tokens do not follow (if"
        " the endpoint has a reasoning parser, give its command with --from-serve-command)"
    )


def groups_of(report: OnPolicyReport) -> list[tuple[str, Group]]:
    """Returns a table's rows: overall, per part, and per slice (if several)."""
    rows = [("all", report["all"]), *report["parts"].items()]
    for dimension, names in report["slices"].items():
        if len(names) > 1:
            rows += [(f"{dimension}: {name}", described) for name, described in names.items()]
    return rows


def _localised(verdict: VerdictFacts, slices: dict[str, dict[str, Group]]) -> VerdictFacts:
    """Names the off-policy slices if others in the same dimension are on-policy.

    The cause is taken from the largest off-policy slice. If several dimensions qualify, the one
    with the fewest off-policy sequences is used.
    """
    confined = []
    for dimension, names in slices.items():
        off = {name: one for name, one in names.items() if one["verdict"]["own"] is False}
        if off and any(one["verdict"]["own"] for one in names.values()):
            confined.append((sum(one["sequences"] for one in off.values()), dimension, off))
    if verdict["own"] is not False or not confined:
        return verdict
    _, dimension, off = min(confined, key=lambda one: one[0])
    cause = max(off.values(), key=lambda one: one["sequences"])["verdict"]
    return {**cause, "text": f"only in {dimension} {', '.join(off)}: {cause['text']}"}


def write_quarantine(
    features_dir: Path, scores: Mapping[str, float], not_captured: Sequence[str] = ()
) -> None:
    """Publishes the quarantined ids and scores, readable only by the file's owner.

    `not_captured` lists the sequences that were too long for the engine.
    """
    listed = {sequence_id: round(score, 4) for sequence_id, score in scores.items()}
    manifest = file_digest(Path(features_dir) / MANIFEST)
    content: dict[str, object] = {"manifest_sha256": manifest, "sequences": listed}
    if not_captured:
        content["not_captured"] = list(not_captured)
    write_json(Path(features_dir) / QUARANTINE, content, private=True)


class Quarantine(BaseModel):
    """The sequences that are not used."""

    sequences: dict[str, float]
    """Scores of the off-policy sequences by id."""
    not_captured: list[str] = []


def read_quarantine(features_dir: Path) -> Quarantine:
    """Reads the capture's `QUARANTINE`."""
    path = Path(features_dir) / QUARANTINE
    return read_form(Quarantine, path, f"delete {features_dir} and rerun the command")


def load_parts(split_dir: Path, features_dir: Path) -> dict[str, list[str]]:
    """Reads the parts without sequences that are quarantined or were not captured.

    Raises:
        OutriderError: If a part becomes empty.
    """
    parts = read_parts(split_dir)
    quarantine = read_quarantine(features_dir)
    missing = set(quarantine.not_captured)
    off = set(quarantine.sequences)
    for name, ids in parts.items():
        on_policy_ids = [sequence_id for sequence_id in ids if sequence_id not in missing | off]
        if not on_policy_ids:
            raise OutriderError(
                f"{Path(features_dir) / QUARANTINE}: all {len(ids)} sequences of the {name}"
                " part are quarantined as off-policy or too long; on_policy.json next to it has "
                "the causes. Correct the log, lower capture.min_on_policy (null: keep all), or "
                "raise serving.engine.max_model_len"
            )
        parts[name] = on_policy_ids
    return parts
