"""Exact replay of windows, and the gate of a training round.

    acceptance, ratio = watched(window, serving_dir, base_dir, recipe, k)
    verdict = judge(round_run, windows, older, serving_dir, recipe, k)        # ships, or why not
    write_bundle(round_run, recipe, verdict)

The gate compares the round's speculator with the one in use on windows that arrived after the
training, excluding sessions and prompts that were trained on. Both are replayed on the same
responses. The interval of their acceptance-length ratio, over sessions, must lie above 1, and on
held-back sessions of older windows above LEAST_OLDER, so a round that forgets earlier traffic does
not ship.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from pydantic import BaseModel

from outrider.common.child_process import in_child
from outrider.common.files import read_json
from outrider.common.fingerprint import value_digest
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.data.split.rounds import held_back, unseen
from outrider.eval.config import SHIP
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.replay import ReplaySums, compare, replay
from outrider.eval.results.parts import ClusteredEstimate
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.adapt import usable_ids
from outrider.serving.bundle.bundle import export_bundle, speculation_profile
from outrider.serving.speculator import Drafting, Speculator

LEAST_OLDER = 0.97
"""Minimum acceptance length on older traffic, relative to that of the speculator in use."""


class GateVerdict(BaseModel):
    """The gate's decision about a round, and the evidence for it."""

    ships: bool
    reason: str
    windows: list[str]
    """Names of the windows that were measured"""
    k: int
    sequences: int
    sessions: int
    base: ClusteredEstimate | None = None
    """Acceptance length of the speculator in use; None without sequences to measure"""
    custom: ClusteredEstimate | None = None
    """Acceptance length of the round's speculator"""
    ratio: ClusteredEstimate | None = None
    """custom / base"""
    older: ClusteredEstimate | None = None
    """custom / base on held-back sessions of earlier rounds' windows; None if there are none"""
    cumulative: list[float] = []
    """Share of steps that accept custom's drafts up to each position"""
    cumulative_ci95: list[tuple[float, float] | None] = []
    """95 % intervals of these shares"""


def replayed(
    window: RunDirectory, speculator_dir: Path, recipe: Recipe, ids: Sequence[str]
) -> ReplaySums:
    """Replays a speculator on sequences of a window; runs in a child process."""
    return replay(
        speculator=speculator_dir,
        target_dir=recipe.target.training_directory(),
        feature_store=FeatureStore.open(window.features),
        rows=load_sequences(window.sequences, list(ids)).select_columns(COLUMNS).to_list(),
        depth=recipe.speculator.depth,
        draft_sample_method=recipe.speculator.draft_sample_method,
        dtype=recipe.eval.replay_dtype,
    )


def watched(
    window: RunDirectory, serving_dir: Path, base_dir: Path | None, recipe: Recipe, k: int
) -> tuple[ClusteredEstimate, ClusteredEstimate | None]:
    """Measures acceptance length at k drafts, and its ratio to the base's."""
    ids = usable_ids(window)
    sums = in_child(replayed, window, serving_dir, recipe, ids)
    if base_dir is None:
        return compare(sums, sums, k)["custom"], None
    found = compare(in_child(replayed, window, base_dir, recipe, ids), sums, k)
    return found["custom"], found["ratio"]


def judge(
    trained: RunDirectory,
    windows: Sequence[RunDirectory],
    older: Sequence[RunDirectory],
    serving_dir: Path,
    recipe: Recipe,
    k: int,
) -> GateVerdict:
    """Decides whether the round `trained` replaces the speculator in use.

    `windows` arrived after the training; `older` are windows of earlier rounds.
    """

    def measured(of: Mapping[RunDirectory, Sequence[str]], seen: Dataset) -> list[ReplaySums]:
        """Replay sums of the old and the new speculator, on unseen sequences."""
        table = load_sequences(
            [window.sequences for window in of], [name for ids in of.values() for name in ids]
        )
        allowed = unseen(
            seen, table, recipe.split.session_gap_minutes, recipe.split.near_duplicate_similarity
        )
        return [
            ReplaySums.joined(
                [in_child(replayed, window, directory, recipe, ids) for window, ids in of.items()]
            ).selected([*allowed.sessions], allowed.sessions)
            for directory in (serving_dir, trained.speculator)
        ]

    fresh = {window: usable_ids(window) for window in windows}
    base, custom = measured(fresh, load_sequences(trained.sequences))
    facts: dict[str, Any] = {
        "windows": [window.root.name for window in windows],
        "k": k,
        "sequences": len(base.sequence_ids),
        "sessions": len(set(base.sessions)),
    }
    if not base.sequence_ids:
        reason = "no sequence is left to measure: all were seen in training"
        return GateVerdict(ships=False, reason=reason, **facts)
    found = compare(base, custom, k)
    facts |= {"cumulative": custom.cumulative(k), "cumulative_ci95": custom.cumulative_intervals(k)}
    share = recipe.split.validation_fraction
    held = {
        window: ids
        for window in older
        if (ids := held_back(load_sequences(window.sequences, usable_ids(window)), share))
    }
    if held:
        parts = read_json(trained.split / "parts.json")
        base, custom = measured(held, load_sequences(trained.sequences, parts["train"]))
        if base.sequence_ids:
            facts["older"] = compare(base, custom, k)["ratio"]
    ships, reason = _verdict(found["ratio"], facts.get("older"), facts["sessions"])
    return GateVerdict(ships=ships, reason=reason, **facts, **found)


def _verdict(
    ratio: ClusteredEstimate, older: ClusteredEstimate | None, sessions: int
) -> tuple[bool, str]:
    if ratio.low is None or ratio.high is None:
        return False, f"{sessions} sessions are too few for an interval"
    text = f"acceptance length x {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
    if ratio.low <= 1:
        return False, f"{text}, not above 1"
    if older is None or older.low is None or older.high is None:
        return True, f"{text}, above 1; too little older traffic to measure forgetting"
    on_older = f"x {older.value:.3f} [{older.low:.3f}, {older.high:.3f}] on older traffic"
    if older.low > LEAST_OLDER:
        return True, f"{text}, above 1; {on_older}, above {LEAST_OLDER}"
    return False, f"{text}, but {on_older}, not above {LEAST_OLDER}"


def write_bundle(run: RunDirectory, recipe: Recipe, verdict: GateVerdict) -> None:
    """Writes the bundle of a round that ships, with the gate's evidence."""
    assert verdict.base is not None and verdict.custom is not None and verdict.ratio is not None
    evidence = {
        "k_per_batch_size": None,
        "recipe": recipe.name,
        "recipe_sha256": value_digest(recipe.model_dump(mode="json")),
        "verdict": SHIP,
        "reason": verdict.reason,
        "k": {"base": verdict.k, "custom": verdict.k},
        "acceptance_length": {
            "base": verdict.base.value,
            "custom": verdict.custom.value,
            "custom_ci95": [verdict.custom.low, verdict.custom.high],
            "ratio": verdict.ratio.value,
            "ratio_ci95": [verdict.ratio.low, verdict.ratio.high],
        },
        "tokens_per_s": {},
        "replay_vs_engine": None,
        "gate": verdict.model_dump(mode="json"),
    }
    profile = speculation_profile(
        method=recipe.speculator.only_kind,
        target=recipe.target,
        marginal=verdict.cumulative,
        intervals=verdict.cumulative_ci95,
        lengths={verdict.k: verdict.custom.value},
        depth=recipe.speculator.depth,
        conditions={
            "source": "exact replay of traffic after the training",
            "responses": verdict.custom.observations,
            "over": verdict.custom.over,
            "draft_sample_method": recipe.speculator.draft_sample_method,
        },
    )
    method = recipe.speculator.draft_sample_method
    drafting = Drafting(Speculator.named(run.speculator), verdict.k, method)
    engine = recipe.serving.engine
    export_bundle(
        drafting=drafting,
        target=recipe.target,
        engine=engine,
        evidence=evidence,
        out_dir=run.bundle,
        other_formats=False,
        profile=profile,
    )
