"""Which rotary base should a new EAGLE-3 head have, 10,000 or the target's?

    python -m benchmarks.rope_base build/smollm2 CORPUS build/rope
    python -m benchmarks.rope_base build/smollm2 CORPUS build/fit --learning-rate 1e-9 --epochs 1

Rows are texts of 2,304 to 8,000 tokens: facts about invented candidates, worked problems or
dialogues, one after another. The target's states come from transformers; the trainer and exact
replay are the product's. The last tokens of a training row are its response; the response of a
held-out row begins at token 2,048, so that replay's regions of 2,048 tokens and beyond are
positions up to 4,096 and beyond. Heads differ only in `rope_theta`; a learning rate of 1e-9 leaves
the closed-form start as it is. An interrupted run resumes.
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from outrider.common.files import read_json
from outrider.data.features.feature_store import MANIFEST, FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import ReplaySums, compare_replays
from outrider.eval.results.parts import interval
from outrider.speculators.base import stored_features
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates, layer_index
from outrider.speculators.head_config import HeadConfig
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import launch_training
from outrider.training.distributed.spec import SequenceSampling, TrainingSpec
from tools.nano_r1.conversations import corpus_rows
from tools.smollm2 import facts

DEPTH = 3
TRAIN_TOKENS = 2304, 7000
HELDOUT_TOKENS = 4600, 8000
HELDOUT_START = 2048
RESPONSE = 1024
"""Tokens of a training row's response."""
SAMPLING = SequenceSampling(temperature=1.0, top_p=1.0, top_k=0)
"""The texts are not the target's; at temperature 1, its distribution is closest to theirs."""


@dataclass(frozen=True)
class Row:
    """One text and where its response starts."""

    name: str
    token_ids: list[int]
    start: int


def texts(corpus: Path, rng: random.Random) -> dict[str, Iterator[str]]:
    """Endless or shuffled documents of three kinds."""
    problems = list(corpus_rows(corpus, "gsm8k_train.jsonl.gz"))
    dialogues = list(corpus_rows(corpus, "taskmaster4_dialogues.jsonl.gz"))
    rng.shuffle(problems)
    rng.shuffle(dialogues)
    return {
        "candidates": (facts(rng) for _ in itertools.count()),
        "problems": (f"{row['question']}\n{row['answer']}" for row in problems),
        "dialogues": (
            "\n".join(f"{turn['speaker']}: {turn['text']}" for turn in row["turns"])
            for row in dialogues
        ),
    }


def rows_of(target: Path, corpus: Path, counts: dict[str, int]) -> list[Row]:
    """Rows of all parts with log-uniform lengths, kinds in turn; no document occurs twice."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    rng = random.Random("rope base")
    sources = texts(corpus, rng)
    kinds = itertools.cycle(sources)
    rows = []
    for part, count in counts.items():
        bounds = HELDOUT_TOKENS if part == "heldout" else TRAIN_TOKENS
        for index in range(count):
            length = round(math.exp(rng.uniform(*map(math.log, bounds))))
            documents = sources[next(kinds)]
            token_ids: list[int] = []
            while len(token_ids) < length:
                token_ids += tokenizer(f"{next(documents)}\n\n").input_ids
            start = HELDOUT_START if part == "heldout" else length - RESPONSE
            rows.append(Row(f"{part}-{index:03d}", token_ids[:length], start))
    return rows


@functools.cache
def load_target(target: Path) -> PreTrainedModel:
    """The target in bf16, once per process."""
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()


@torch.inference_mode()
def states_of(target: Path, spec: FeatureSpec, row: Row) -> SequenceStates:
    """The target's states of a row, as capture stores them."""
    model = load_target(target)
    token_ids = torch.tensor(row.token_ids)
    out = model.model(token_ids[None], output_hidden_states=True, use_cache=False)
    streams = {FINAL_NORM: out.last_hidden_state[0]}
    for name in spec.names:
        if name != FINAL_NORM:
            streams[name] = out.hidden_states[layer_index(name)][0]
    return SequenceStates(token_ids=token_ids, completion_start=row.start, streams=streams)


def write_states(
    target: Path, rows: Sequence[Row], directory: Path, processes: int
) -> FeatureStore:
    """Writes the states of all rows, unless they are there."""
    if not (directory / MANIFEST).exists():
        spec = stored_features(speculator(None), read_json(target / "config.json"))
        source = {"rows": [[row.name, len(row.token_ids), row.start] for row in rows]}
        with (
            FeatureWriter(directory, spec, source, shard_megabytes=16) as writer,
            ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
        ):
            rows = [row for row in rows if row.name not in writer.done]
            captured = pool.map(functools.partial(states_of, target, spec), rows)
            for row, states in zip(rows, captured, strict=True):
                writer.write(row.name, states)
                print(f"states of {row.name}: {len(row.token_ids)} tokens", flush=True)
    return FeatureStore.open(directory)


def speculator(theta: float | None) -> SpeculatorConfig:
    """A new EAGLE-3 head with this rotary base; None: the default."""
    head = HeadConfig(draft_vocabulary=4096)
    if theta is not None:
        head = head.model_copy(update={"rope_theta": theta})
    return SpeculatorConfig(kind="eagle3", base="ngram", depth=DEPTH, head=head)


def train_head(
    *,
    target: Path,
    store: Path,
    names: Sequence[str],
    out: Path,
    theta: float,
    training: TrainingConfig,
) -> Path:
    """Trains a head on the training rows, unless it is there."""
    head = out / "speculator"
    if not head.exists():
        spec = TrainingSpec(
            target_dir=target,
            features_dir=store,
            sampling=dict.fromkeys(names, SAMPLING),
            train=[name for name in names if name.startswith("train")],
            validation=[name for name in names if name.startswith("validation")],
            speculator=speculator(theta),
            training=training,
            out_dir=out / "training",
            publish_dir=head,
            log_dir=out,
        )
        result = launch_training(spec)
        print(f"theta {theta:g}, seed {training.seed}: {json.dumps(result)}", flush=True)
    return head


def by_position(sums: ReplaySums) -> dict[str, ReplaySums]:
    """Sums over all positions, up to token 4,096 of a row, and beyond it."""
    ranges = [g for g, (dimension, _) in enumerate(sums.regions) if dimension.startswith("posit")]
    near = ranges[:-1]
    before = replace(
        sums,
        tokens_R=sums.region_tokens_RG[:, near].sum(1),
        steps_RK=sums.region_steps_RGK[:, near].sum(1),
    )
    return {"all": sums, "2,048 to 4,096": before, "beyond 4,096": sums.region(ranges[-1])}


def compare_heads(heads: dict[float, Path], target: Path, store: FeatureStore) -> None:
    """Prints acceptance lengths on the held-out rows, paired with those of the first head."""
    names = [name for name in store.sequence_ids if name.startswith("heldout")]
    sampling = {key: getattr(SAMPLING, key) for key in ("temperature", "top_p", "top_k")}
    rows = [{"sequence_id": name, "session": name, "user": "", **sampling} for name in names]
    sums = {}
    for theta, head in heads.items():
        sums[theta] = by_position(replay(head, target, store, rows, depth=DEPTH, by_region=True))
    first, *others = sums
    for theta, (position, base) in itertools.product(others, sums[first].items()):
        for k in range(1, DEPTH + 1):
            lengths = compare_replays(base, sums[theta][position], k)
            first_length, length, ratio = (
                interval(lengths[name], 4) for name in ("base", "custom", "ratio")
            )
            print(
                f"{position}, K = {k}: theta {first:g} {first_length}, theta {theta:g} {length},"
                f" ratio {ratio}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--theta", type=float, nargs="+", default=[1e4, 1e5])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=int, nargs=3, default=[12, 1, 8], metavar="N")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=3.3e-4)
    args = parser.parse_args()
    counts = dict(zip(("train", "validation", "heldout"), args.rows, strict=True))
    rows = rows_of(args.target, args.corpus, counts)
    print(f"{sum(len(row.token_ids) for row in rows)} tokens", flush=True)
    store = write_states(args.target, rows, args.out / "states", args.processes)
    for seed in args.seeds:
        heads = {}
        for theta in args.theta:
            training = TrainingConfig(
                scratch_epochs=args.epochs,
                learning_rate=args.learning_rate,
                row_tokens=8192,
                rows_per_step=1,
                evaluate_every=1000,
                checkpoint_every=1000,
                seed=seed,
            )
            heads[theta] = train_head(
                target=args.target,
                store=args.out / "states",
                names=store.sequence_ids,
                out=args.out / f"theta-{theta:g}-seed-{seed}",
                theta=theta,
                training=training,
            )
        compare_heads(heads, args.target, store)


if __name__ == "__main__":
    main()
