"""Exact replays of an evaluation: cached sums and figures derived from them.

    replays = replay_parts(context)               # before servers start
    replay_figures(replays["heldout"], choice).ratio

A replay covers every k at once, so it needs no choice of k and no server.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset
from rich import box
from rich.table import Table

from outrider.common.child_process import in_child
from outrider.common.cluster.session import open_cluster
from outrider.common.cluster.tasks import has_gpus, run_tasks, slots
from outrider.data.features.feature_store import FeatureStore
from outrider.data.on_policy.evidence import OnPolicyEvidence, checked_rows, judge_checked
from outrider.eval.config import SEED
from outrider.eval.context import EvaluationContext
from outrider.eval.replay.replay import CEILING, replay
from outrider.eval.replay.sums import ReplaySums, compare_replays, has_steps, length_at
from outrider.eval.results.parts import DRAFTERS, interval
from outrider.eval.results.sections import KChoice, OnPolicy, Replay
from outrider.eval.stats.clusters import users_unknown
from outrider.eval.stats.power import power_in_words, spread_of
from outrider.speculators.kinds.protocol import Lookup

Replays = Mapping[str, ReplaySums]
"""Sums of each drafter, of each lookup and, for held-out and general traffic, of `ceiling`."""

COLUMNS = ["sequence_id", "session", "user", "tenant", "temperature", "top_p", "top_k"]
"""Columns that replay reads from the sequence table."""


def replay_parts(context: EvaluationContext) -> dict[str, Replays]:
    """Replays base, custom, lookups and the ceiling on every part; prints the first result.

    Empty if exact replay is not measured. Must run before servers start: a replay uses 90 % of a
    GPU's memory, needs its cluster node to itself, and is ten times slower on a CPU while servers
    start.
    """
    replays: dict[str, Replays] = {}
    if context.no_replay:
        return replays
    for part in ("heldout", "validation", "general"):
        if context.data.parts.get(part):
            # The validation part only serves to choose K, which does not need the ceiling.
            replays[part] = {
                name: replay_drafter(context, part, name)
                for name in (*DRAFTERS, *context.lookups, CEILING)
                if name != CEILING or part != "validation"
            }
        if part == "heldout":
            print_first_result(context, replays[part])
    return replays


def replay_drafter(context: EvaluationContext, part: str, name: str) -> ReplaySums:
    """Cached sums of base, custom, a lookup or the ceiling on a part.

    At most `eval.replay_sequences` held-out or general sequences are replayed, in a child process
    or as tasks on the cluster; kinds without weights need no device and run in this process.
    """
    replayed: dict[str, Path | str | Lookup] = {CEILING: CEILING}
    for variant, speculator in context.variants.items():
        replayed[variant] = speculator.replay_argument(context.runner(speculator))
    ids = context.data.parts.get(part, [])
    most = context.settings.replay_sequences
    if part != "validation" and most is not None and most < len(ids):
        ids = sorted(random.Random(SEED).sample(ids, most), key=ids.index)

    def work() -> dict[str, Any]:
        begin = time.monotonic()
        context.say(f"exact replay, {part}, {name}: {len(ids)} sequences")
        context.feature_store.verify(ids)
        rows = context.data.rows(ids).select_columns(COLUMNS).to_list()
        shared: dict[str, Any] = {
            "speculator": replayed[name],
            "target_dir": context.target.directory(),
            "feature_store": context.feature_store,
            "depth": context.depth,
            "draft_sample_method": context.draft_sample_method,
            "dtype": context.settings.replay_dtype,
            "by_region": part == "heldout",
            "timed_tokens": context.settings.max_tokens,
            # For eval/both_together.py.
            "by_anchor": name == "custom" and part != "general",
        }
        if isinstance(replayed[name], Lookup):
            sums = replay(rows=rows, **shared)
        elif context.cluster.address is None:
            sums = in_child(replay, rows=rows, **shared)
        else:
            with open_cluster(context.cluster):
                sums = cluster_replay(shared, rows)
        seconds = time.monotonic() - begin
        context.say(f"exact replay, {part}, {name}: {len(ids)} sequences in {seconds:.0f} s")
        return {"sums": sums.as_dict(), "seconds": seconds}

    return ReplaySums.from_dict(context.cached_result(f"replay_{part}_{name}").run(work)["sums"])


def cluster_replay(
    shared: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], cpus: float = 1.0
) -> ReplaySums:
    """Runs `replay` on all rows as parallel tasks on the cluster.

    A task gets one GPU if the cluster has any, else `cpus` cores. It loads the speculator and reads
    states from the feature store, so the run directory, target and speculator must be at the same
    paths on all nodes. A session must be open (common/cluster/session.py).
    """
    gpus = 1.0 if has_gpus() else 0.0
    store = shared["feature_store"]
    with_steps = [
        row
        for row in rows
        if has_steps(store.length(row["sequence_id"]), store.completion_start(row["sequence_id"]))
    ]
    if not with_steps:
        return replay(rows=with_steps, **shared)  # raises, because there is nothing to replay
    # One task per slot, since each task loads the speculator and the target's embedding and head.
    size = math.ceil(len(with_steps) / slots(cpus, gpus))
    shards = [with_steps[start : start + size] for start in range(0, len(with_steps), size)]
    return ReplaySums.join(
        run_tasks(
            function=_replay_shard,
            items=shards,
            shared=shared,
            what="exact replay",
            cpus=cpus,
            gpus=gpus,
        )
    )


def _replay_shard(shared: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> ReplaySums:
    return replay(rows=rows, **shared)


def print_first_result(context: EvaluationContext, heldout: Replays) -> None:
    """Prints the acceptance length of all drafters for every k, and the expected power."""
    base = heldout["base"]
    table = Table(
        title=f"First result, acceptance length by exact replay: {len(base.sequence_ids):,} "
        f"held-out responses from {len(set(base.sessions)):,} sessions, 95 % intervals",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    drafters = (*context.lookups, *DRAFTERS, CEILING)
    for column in ("k", *drafters, "custom / base"):
        table.add_column(column, justify="right", no_wrap=True)
    for k in range(1, context.depth + 1):
        ratio = compare_replays(base, heldout["custom"], k)["ratio"]
        cells = (f"{heldout[name].acceptance_length()[k - 1]:.3f}" for name in drafters)
        label = f"{k} (eval.k)" if k == context.settings.k else str(k)
        table.add_row(label, *cells, interval(ratio, 3))
    context.console.print(table)
    ratio = compare_replays(base, heldout["custom"], context.depth)["ratio"]
    sessions = len({*base.sessions})
    context.say(
        power_in_words(
            sessions=sessions,
            settings=context.settings,
            spread=spread_of(ratio, sessions),
            unknown_users=users_unknown(base.users),
        )
    )


def replay_figures(replays: Replays, choice: KChoice) -> Replay:
    """Acceptance lengths at one k, but of lookups, and by position, at their own."""
    # A lookup may draft more tokens than the other was replayed for.
    k = min(choice.k.custom, *(replays[name].depth for name in (*DRAFTERS, CEILING)))
    own_k = dict.fromkeys(replays, k)
    own_k |= {name: choice.k.of(name) for name in DRAFTERS}
    own_k |= {name: lookup.k for name, lookup in choice.lookups.items()}
    return Replay(
        k=k,
        **compare_replays(replays["base"], replays["custom"], k),
        lookups={name: length_at(replays[name], own_k[name]) for name in choice.lookups},
        ceiling=length_at(replays[CEILING], k),
        by_k={name: sums.acceptance_length() for name, sums in replays.items()},
        cumulative={name: sums.cumulative(own_k[name]) for name, sums in replays.items()},
        cumulative_ci95=replays["custom"].cumulative_intervals(choice.k.custom),
    )


def on_policy(store: FeatureStore, heldout: Dataset) -> OnPolicy | None:
    """Whether these rows are on-policy; None if capture kept no evidence.

    Capture sets individual off-policy sequences aside. The rest can still be off-policy as a whole,
    for example if every prompt was rendered with another template. Replay and the verification pass
    then both measure prompts that the endpoint never reads.
    """
    if not store.score_columns:
        return None
    everything = OnPolicyEvidence.of(store, heldout)
    checked_S = checked_rows(everything, heldout)
    evidence = everything.take(checked_S)
    not_checked = int((~checked_S).sum())
    verdict = judge_checked(evidence, not_checked)
    return OnPolicy(
        cause=verdict.cause,
        text=verdict.text,
        sequences=len(evidence),
        not_checked=not_checked,
    )
