"""Served speed of every kind of drafter of a run, each at its own best K, in one measurement.

    train-speculator --recipe resume_screening.yaml name=kinds speculator.kind=auto \
        eval.concurrency=[1,4,8] --stages ingest,split,capture,train,choose_kind
    python -m benchmarks.kinds runs/kinds --modes compiled eager --repeats 4

The servers of none, base and all kinds are up at once and answer the same held-out prompts in turn,
in an order that rotates, at the customer's sampling. K is that of the forecast at each concurrency
(exact replay of the validation part, steps timed by choose_kind). Base has the steps of the kind
that can take turns with it in one engine. Ratios have Student's intervals over blocks.
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.eval.bench.closed_loop import run_block, warm_up
from outrider.eval.bench.kind_steps import KindSteps
from outrider.eval.bench.measurement_cache import Steps
from outrider.eval.bench.metrics import paired, pooled
from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.server_pool import PLAIN, Fleet
from outrider.eval.context import EvaluationContext
from outrider.eval.prediction.kind_forecast import Candidate, forecast
from outrider.eval.replay.heldout_replay import replay_drafter
from outrider.eval.report.formatting import interval
from outrider.eval.results.kinds import KindChoice
from outrider.eval.results.parts import Drafter, Estimate
from outrider.eval.stats.speed_ratio import block_noise, speed_ratio
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.evaluate import context_of_kind
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator

BASE: Drafter = "base"
HEAD = (
    "engine",
    "concurrency",
    "drafter",
    "K",
    "acceptance length",
    "tokens/s",
    "over none",
    "over {}",
)

Record = dict[str, Any]


def numbers_of_drafts(
    contexts: Mapping[str, EvaluationContext], run: RunDirectory, sharing: str
) -> dict[str, dict[int, int]]:
    """K of base and of every kind by concurrency, from exact replay and the timed steps.

    Base has the steps of the kind that is `sharing` its engine.
    """
    first = next(iter(contexts.values()))
    chosen = KindChoice.model_validate(read_json(run.kind_choice))
    digests = {kind: each.cache.digest for kind, each in contexts.items()}
    steps = Steps(run.evaluation / "steps", digests).get("kind_steps")
    timed = KindSteps.model_validate(steps)

    def best(drafter: Drafter, kinds: Iterable[str]) -> dict[str, dict[int, int]]:
        candidates = {
            kind: Candidate(
                kind, replay_drafter(contexts[kind], "validation", drafter), chosen.of(kind).facts
            )
            for kind in kinds
        }
        found = forecast(timed, candidates, first.settings, 0.0, by_batch_size=True)
        return {
            each.kind: {int(size): k for size, k in each.k_by_concurrency.items()}
            for each in found.kinds
        }

    return {BASE: best("base", (sharing,))[sharing]} | best("custom", contexts)


def measure(
    context: EvaluationContext,
    fleet: Fleet,
    load: LoadGenerator,
    k: Mapping[str, Mapping[int, int]],
    repeats: int,
    per_seat: int,
) -> list[Record]:
    """Blocks of every variant, by repeat and concurrency."""
    heldout = context.data.rows(context.data.parts["heldout"])
    sampling, settings = customers_sampling(heldout), context.settings
    texts = [prompt.text for prompt in evaluation_prompts(heldout, settings, context.serving)[1]]
    supply, blocks = itertools.cycle(texts), []
    order = [*fleet.variants]
    for repeat, size in itertools.product(range(repeats), settings.concurrency):
        fleet.draft({name: by_size[size] for name, by_size in k.items()})
        chosen = list(itertools.islice(supply, size * per_seat if size > 1 else 2 * per_seat))
        first = (repeat + size) % len(order)
        for variant in order[first:] + order[:first]:
            warm_up(fleet, variant, load, texts, sampling, settings, context.say)
            url = fleet.server(variant).url
            record = run_block(url, load, chosen, size, sampling, settings.max_tokens)
            blocks.append({"repeat": repeat, "concurrency": size, "variant": variant, **record})
            context.say(
                f"repeat {repeat + 1}, concurrency {size}, {variant}:"
                f" {record['output_tokens'] / record['seconds']:.0f} tokens/s"
            )
    return blocks


def rows(
    mode: str, blocks: Sequence[Record], k: Mapping[str, Mapping[int, int]], rival: str
) -> list[list[str]]:
    """Rows of the table: one per concurrency and variant."""
    sizes = sorted({block["concurrency"] for block in blocks})
    variants = list(dict.fromkeys(block["variant"] for block in blocks))
    variants.sort(key=[PLAIN, BASE, *(name for name in k if name != BASE)].index)
    table = []
    for size, variant in itertools.product(sizes, variants):
        own = [b for b in blocks if (b["concurrency"], b["variant"]) == (size, variant)]
        accepted = sum(block["counters"]["accepted_tokens"] for block in own)
        drafts = sum(block["counters"]["drafts"] for block in own)
        table.append(
            [
                mode,
                str(size),
                variant,
                str(k[variant][size]) if variant in k else "",
                f"{1 + accepted / drafts:.2f}" if drafts else "1",
                f"{pooled(own).tokens_per_s:.0f}",
                *(over(blocks, size, variant, other) for other in (PLAIN, rival)),
            ]
        )
    return table


def over(blocks: Sequence[Record], size: int, variant: str, other: str) -> str:
    """Ratio of tokens/s with its interval; the noise of a block is that of all concurrencies."""
    if variant == other:
        return ""
    sizes = sorted({block["concurrency"] for block in blocks})
    noise = block_noise(paired(blocks, each, variant, other) for each in sizes)
    found = speed_ratio(paired(blocks, size, variant, other), noise, samples=2000, seed=0)
    return interval(Estimate.of(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run of several kinds")
    parser.add_argument("--modes", nargs="+", default=["compiled"])
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--per-seat", type=int, default=2, help="requests of a block and seat")
    parser.add_argument(
        "--also", type=Path, nargs="*", default=[], help="speculators of other runs, at their depth"
    )
    parser.add_argument("--rival", default="mtp", help="the variant that others are divided by")
    args = parser.parse_args()
    recipe = load_recipe(str(args.run / "recipe.resolved.yaml")).recipe
    run = RunDirectory.of(recipe, args.run.parent)
    contexts = {kind: context_of_kind(run, recipe, kind) for kind in recipe.speculator.kinds}
    first = next(iter(contexts.values()))
    speculators = {kind: each.speculators["custom"] for kind, each in contexts.items()}
    base = first.speculators[BASE]
    (sharing,) = (kind for kind, each in speculators.items() if each.exchanges_with(base))
    k = numbers_of_drafts(contexts, run, sharing)
    for each in map(Speculator.named, args.also):
        speculators[each.kind] = each
        k[each.kind] = dict.fromkeys(first.settings.concurrency, first.depth)
    print(json.dumps({"K by concurrency": k}), flush=True)
    # A fleet lets base share the engine of the last speculator that it can be exchanged with.
    last = {sharing: speculators.pop(sharing)}
    speculators = {BASE: base} | speculators | last
    out = run.root / "kinds_served"
    table = []
    for mode in args.modes:
        serving = first.serving.with_engine(mode=mode)
        logs = out / "logs"
        fleet = Fleet(first.target, serving, speculators, None, logs, True, first.depth)
        with LoadGenerator(first.target, logs / "load.log") as load:
            try:
                fleet.start_in_background()
                blocks = measure(first, fleet, load, k, args.repeats, args.per_seat)
            finally:
                fleet.stop()
        write_json(out / f"blocks_{mode}.json", blocks)
        table += rows(mode, blocks, k, args.rival)
    head = [each.format(args.rival) for each in HEAD]
    for row in (head, ["---"] * len(head), *table):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
