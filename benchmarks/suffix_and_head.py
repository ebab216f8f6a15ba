"""Would suffix lookup and a head together draft better than either alone?

    outrider train smollm2/candidate_profiles speculator.kind=eagle3 \\
        --stages ingest,split,capture,train
    python -m benchmarks.suffix_and_head runs/candidate_profiles build/smollm2 --k 3 --lookup-k 8

Exact replay of the held-out responses, tokens per step, by the report's own functions
(eval/replay/both_together.py): the rule is fitted on the validation responses, and suffix lookup
searches those of the training part. The first columns have as many drafts of both; the last one
has --k of the head and --lookup-k of the lookup. `fewest steps` has the best drafter at each step,
which a server cannot know. With --step-ms HEAD LOOKUP PASS (milliseconds) the rule is that with the
most tokens/s, which are printed relative to the head's; else all steps take the same time.

vLLM cannot do this: it runs one method per server.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.both_together import EQUAL
from outrider.eval.lookups import responses_of
from outrider.eval.replay.both_together import (
    Anchors,
    StepTime,
    anchors_of,
    combine_drafters,
    fewest_steps,
    fit_rule,
)
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.lookups import LoggedText, best_settings, lookup_sums
from outrider.eval.replay.replay import logged_texts, replay
from outrider.eval.replay.sums import ReplaySums
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.speculators.kinds import weightless_kind
from outrider.speculators.kinds.protocol import Lookup


def replayed_head(
    run: RunDirectory, speculator: Path, target: Path, k: int
) -> tuple[dict[str, ReplaySums], dict[str, list[LoggedText]]]:
    """A head's sums by anchor on the validation and held-out parts, and the replayed texts."""
    store = FeatureStore.open(run.features)
    parts = parts_in_use(run)
    sums: dict[str, ReplaySums] = {}
    texts: dict[str, list[LoggedText]] = {}
    for part in ("validation", "heldout"):
        rows = load_sequences(run.sequences, parts[part]).select_columns(COLUMNS).to_list()
        sums[part] = replay(
            speculator=speculator,
            target_dir=target,
            feature_store=store,
            rows=rows,
            depth=k,
            by_anchor=True,
        )
        replayed = set(sums[part].sequence_ids)
        kept = [row for row in rows if row["sequence_id"] in replayed]
        texts[part] = list(logged_texts(store, kept))
    return sums, texts


def prepared_lookup(
    name: str, run: RunDirectory, validation: list[LoggedText], scratch: Path
) -> Lookup:
    """A lookup with the training part's responses, and the settings that suit the validation part.

    `scratch` is an empty folder for the history.
    """
    kind = weightless_kind(name)
    assert kind is not None
    train = load_sequences(run.sequences, parts_in_use(run)["train"])
    directory = kind.prepare(responses_of(train), scratch, max_gb=1.0, shared=True)
    lookup = Lookup(name, history=kind.history(directory))
    return dataclasses.replace(lookup, settings=best_settings(lookup, validation))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--lookup-k", type=int, default=8)
    parser.add_argument("--step-ms", type=float, nargs=3, metavar=("HEAD", "LOOKUP", "PASS"))
    args = parser.parse_args()
    run = RunDirectory(args.run.resolve())
    head, texts = replayed_head(run, run.speculator, args.target, args.k)
    with tempfile.TemporaryDirectory() as scratch:
        lookup = prepared_lookup("suffix", run, texts["validation"], Path(scratch))
        print("suffix lookup:", lookup.settings)
        alone = lookup_sums(lookup, texts["heldout"]).acceptance_length()
        columns = [(k, k) for k in range(1, args.k + 1)] + [(args.k, args.lookup_k)]
        print("drafts of head / lookup ", *(f"{k:2}/{lookup_k:2}" for k, lookup_k in columns))
        lengths = head["heldout"].acceptance_length()
        print("head                    ", *(f"{lengths[k - 1]:.3f}" for k, _ in columns))
        print("suffix lookup           ", *(f"{alone[number - 1]:.3f}" for _, number in columns))
        time = EQUAL
        if args.step_ms:
            time = StepTime(*args.step_ms)
        rows_of: dict[str, list[str]] = {}
        for k, lookup_k in columns:
            anchors = {
                part: anchors_of(head[part], k, texts=rows, lookup=lookup, lookup_k=lookup_k)
                for part, rows in texts.items()
            }
            for name, value in figures(anchors, time, k, head["heldout"]).items():
                rows_of.setdefault(name, []).append(f"{value:.3f}")
    for name, values in rows_of.items():
        print(f"{name:24}", *values)


def figures(
    anchors: dict[str, Anchors], time: StepTime, k: int, head: ReplaySums
) -> dict[str, float]:
    """Held-out tokens per step of both together, and what else is printed in a column."""
    rule = fit_rule(anchors["validation"], time)
    combined = combine_drafters(anchors["heldout"], rule)
    tokens = anchors["heldout"].anchors_R.sum()
    steps = combined.steps_R.sum()
    took = time.of_steps(combined.steps_R, combined.lookup_steps_R).sum()
    return {
        "both": tokens / steps,
        "fewest steps": tokens / fewest_steps(anchors["heldout"]),
        "steps of the lookup": combined.lookup_steps_R.sum() / steps,
        "handicap": rule.handicap,
        "tokens/s over head": time.head_ms * head.steps_RK[:, k - 1].sum() / took,
    }


if __name__ == "__main__":
    main()
