"""Exact replay of windows, and the gate of a training round.

    acceptance, ratio = measure_window(window, serving_dir, base_dir, recipe, k)
    verdict = judge_round(
        round_run, windows=windows, older=older, serving_dir=serving_dir, recipe=recipe, k=k
    )
    verdict.ships, verdict.reason
    write_bundle(round_run, recipe, verdict, schedule)

The gate compares the round's speculator with the one in use on windows that arrived after the
training, excluding sessions and prompts that were trained on. Both are replayed on the same
responses. Its two checks are those of an evaluation (eval/gate.py), and a round ships only if both
pass: the interval of the acceptance-length ratio, over sessions, must lie above
`eval.gate.min_acceptance_ratio`, and on held-back sessions of older windows above
1 - `adapt.max_older_loss`, so a round that forgets earlier traffic does not ship.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from pydantic import BaseModel

from outrider.common.child_process import in_child
from outrider.common.fingerprint import value_digest
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.data.split.rounds import held_back_ids, select_unseen
from outrider.data.split.split import read_parts
from outrider.eval.config import SHIP
from outrider.eval.context import with_users
from outrider.eval.gate import check_over_sessions, conclude_checks
from outrider.eval.lookups import COLUMNS as TEXT_COLUMNS
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import ReplaySums, compare_replays
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.results.report import Check
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.adapt import usable_ids
from outrider.serving.bundle.bundle import export_bundle, speculation_profile
from outrider.serving.runner import runner_of
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.protocol import KPerBatchSize, Lookup


class GateVerdict(BaseModel):
    """The gate's decision about a round, and the evidence for it."""

    ships: bool
    reason: str
    checks: list[Check] = []
    """Conditions for shipping; empty without sequences to measure"""
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


def replay_window(
    window: RunDirectory, speculator_dir: Path, recipe: Recipe, ids: Sequence[str]
) -> ReplaySums:
    """Replays a speculator on sequences of a window; runs in a child process."""
    rows = with_users(load_sequences(window.sequences, list(ids)), recipe.traffic.users)
    speculator = Speculator.from_name(speculator_dir)
    runner = runner_of(speculator.drafter_kind, recipe.serving.engine)
    replayed_as = speculator.replay_argument(runner)
    if isinstance(replayed_as, Lookup):
        texts = map(LoggedText.of, rows.select_columns(TEXT_COLUMNS))
        return lookup_sums(replayed_as, texts)
    feature_store = FeatureStore.open(window.features)
    feature_store.verify(ids)
    return replay(
        speculator=speculator_dir,
        target_dir=recipe.target.training_directory(),
        feature_store=feature_store,
        rows=rows.select_columns(COLUMNS).to_list(),
        depth=recipe.speculator.depth,
        draft_sample_method=recipe.speculator.draft_sample_method,
        dtype=recipe.eval.replay_dtype,
    )


def measure_window(
    window: RunDirectory, serving_dir: Path, base_dir: Path | None, recipe: Recipe, k: int
) -> tuple[ClusteredEstimate, ClusteredEstimate | None]:
    """Measures acceptance length at k drafts, and its ratio to the base's."""
    ids = usable_ids(window)
    serving = in_child(replay_window, window, serving_dir, recipe, ids=ids)
    if base_dir is None:
        return compare_replays(serving, serving, k)["custom"], None
    base = in_child(replay_window, window, base_dir, recipe, ids=ids)
    estimates = compare_replays(base, serving, k)
    return estimates["custom"], estimates["ratio"]


def judge_round(
    trained: RunDirectory,
    *,
    windows: Sequence[RunDirectory],
    older: Sequence[RunDirectory],
    serving_dir: Path,
    recipe: Recipe,
    k: int,
) -> GateVerdict:
    """Decides whether the round `trained` replaces the speculator in use.

    `windows` arrived after the training; `older` are windows of earlier rounds.
    """
    measuring = _Measuring(trained.speculator, serving_dir, recipe)
    fresh = {window: usable_ids(window) for window in windows}
    base, custom = measuring.unseen_sums(fresh, load_sequences(trained.sequences))
    measured = GateVerdict(
        ships=False,
        reason="no sequence is left to measure: all were seen in training",
        windows=[window.root.name for window in windows],
        k=k,
        sequences=len(base.sequence_ids),
        sessions=len(set(base.sessions)),
    )
    if not base.sequence_ids:
        return measured
    estimates = compare_replays(base, custom, k)
    ratio_on_older = _ratio_on_older(measuring, trained, older, k)
    gate = recipe.eval.gate
    name = "acceptance length on traffic after the training, custom / base"
    checks = [check_over_sessions(name, estimates["ratio"], gate.min_acceptance_ratio)]
    not_measured = {}
    if ratio_on_older is None or ratio_on_older.low is None:
        # No reason against the round: the first ones have no older traffic at all.
        not_measured["older traffic"] = "too little of it to measure forgetting"
    else:
        name = "acceptance length on older traffic, custom / base"
        least = 1 - recipe.adapt.max_older_loss
        checks.append(check_over_sessions(name, ratio_on_older, least))
    verdict = conclude_checks(checks, not_measured)
    return measured.model_copy(
        update={
            **estimates,
            "ships": verdict.verdict == SHIP,
            "reason": verdict.reason,
            "checks": checks,
            "older": ratio_on_older,
            "cumulative": custom.cumulative(k),
            "cumulative_ci95": custom.cumulative_intervals(k),
        }
    )


@dataclass(frozen=True)
class _Measuring:
    """Replays the speculator in use and the round's on the same sequences."""

    speculator: Path
    """Directory of the round's speculator"""
    serving: Path
    recipe: Recipe

    def unseen_sums(
        self, ids_by_window: Mapping[RunDirectory, Sequence[str]], seen: Dataset
    ) -> tuple[ReplaySums, ReplaySums]:
        """Sums of both on the sequences of sessions and prompts that are not in `seen`."""
        table = load_sequences(
            [window.sequences for window in ids_by_window],
            [sequence_id for ids in ids_by_window.values() for sequence_id in ids],
        )
        split = self.recipe.split
        allowed = select_unseen(
            seen, table, split.session_gap_minutes, split.near_duplicate_similarity
        )
        serving, custom = (
            self._sums(directory, ids_by_window).select([*allowed.sessions], allowed.sessions)
            for directory in (self.serving, self.speculator)
        )
        return serving, custom

    def _sums(
        self, speculator: Path, ids_by_window: Mapping[RunDirectory, Sequence[str]]
    ) -> ReplaySums:
        return ReplaySums.join(
            [
                in_child(replay_window, window, speculator, self.recipe, ids=ids)
                for window, ids in ids_by_window.items()
            ]
        )


def _ratio_on_older(
    measuring: _Measuring, trained: RunDirectory, older: Sequence[RunDirectory], k: int
) -> ClusteredEstimate | None:
    """custom / base on held-back sessions of older windows; None without any."""
    share = measuring.recipe.split.validation_fraction
    held_ids = {
        window: held_back_ids(load_sequences(window.sequences, usable_ids(window)), share)
        for window in older
    }
    held_ids = {window: ids for window, ids in held_ids.items() if ids}
    if not held_ids:
        return None
    # Held-back sessions may be in the round's validation part, which no gradient sees.
    parts = read_parts(trained.split)
    seen = load_sequences(trained.sequences, parts["train"])
    base, custom = measuring.unseen_sums(held_ids, seen)
    return compare_replays(base, custom, k)["ratio"] if base.sequence_ids else None


def write_bundle(
    run: RunDirectory, recipe: Recipe, verdict: GateVerdict, schedule: KPerBatchSize | None
) -> None:
    """Writes the bundle of a round that ships, with the gate's evidence.

    It drafts by the `schedule` of the release in use, since the load has not changed.
    """
    assert verdict.base is not None and verdict.custom is not None and verdict.ratio is not None
    evidence = {
        "k_per_batch_size": None if schedule is None else [*map(list, schedule)],
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
        "tokens_per_s": {},  # the endpoint's canary measures speed
        "replay_vs_engine": None,
        "gate": verdict.model_dump(mode="json"),
    }
    speculator = Speculator.from_name(run.speculator)
    profile = speculation_profile(
        method=speculator.kind,
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
    drafting = Drafting(speculator, verdict.k, method, schedule)
    engine = recipe.serving.engine
    export_bundle(
        drafting=drafting,
        target=recipe.target,
        engine=engine,
        evidence=evidence,
        out_dir=run.bundle,
        other_formats=False,  # only the endpoint's replicas load it
        profile=profile,
    )
