"""Counts a run's tokens and estimates each stage's duration at assumed rates.

    rates = rates_of(recipe, target_config, card_named("H100"))
    volume = traffic_volume(run, recipe)
    seconds = stage_seconds(volume, recipe, target_config, checkpoint_bytes, rates)
    seconds["capture"]          # {"engine start": 420.0, "prefill": 1093.3}

Durations include every engine start, timed block, verified response and checkpoint, and assume
that responses reach their maximum length and that `until_decided` needs all its repeats.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.gpu_cards import Card, card_named
from outrider.data.config import further_answers
from outrider.data.ingest.traffic_facts import pluralize
from outrider.eval.config import LOOKUP_NUMBERS, STEP_ROUNDS, STEP_TOKENS, step_requests
from outrider.pipeline.plan.kind_choice import choice_of_kind
from outrider.pipeline.plan.target_size import target_size
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import path_list, response_p90
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.base import planned_config, starts_warm
from outrider.speculators.kinds import lookup_names, trainable_kind
from outrider.speculators.size import drafter_size

LOG_BYTES_PER_TOKEN = 6
"""Approximate bytes of JSON per prompt or completion token: text, field names, some token ids."""

COMPRESSION_RATIO = 6
"""Approximate uncompressed bytes of a log per compressed byte."""


class Volume(NamedTuple):
    """Token counts of the log and of each part of the split."""

    log: int
    train: int
    validation: int
    heldout: int
    counted: bool
    """Whether split or ingest counted the tokens; if not, they are estimated from log sizes."""
    response_p90: int | None = None
    """90th percentile of the responses' tokens; None before ingest."""
    further: int = 0
    """Tokens of further answers to training prompts, with the prompts (`capture.answers_up_to`)."""
    sampled: int = 0
    """Tokens of the further answers alone."""

    @property
    def trained_tokens(self) -> int:
        """Tokens of an epoch."""
        return self.train + self.further

    @property
    def captured_tokens(self) -> int:
        """Tokens whose states are stored."""
        return self.trained_tokens + self.validation + self.heldout


def traffic_volume(run: RunDirectory, recipe: Recipe) -> Volume:
    """Returns counts from split or ingest, else log-size estimates; 0 if unknown."""
    ingested = run.result_of("ingest")
    log = ingested.get("prompt_tokens", 0) + ingested.get("completion_tokens", 0)
    parts = run.result_of("split")
    if parts:
        train, validation, heldout = (
            parts[name]["tokens"] for name in ("train", "validation", "heldout")
        )
        volume = Volume(
            log=log or train + validation + heldout,
            train=train,
            validation=validation,
            heldout=heldout,
            counted=True,
            response_p90=response_p90(run),
        )
        of_train = parts["train"]
        share = of_train["completion_tokens"] / max(train, 1)
        return with_further_answers(volume, recipe, of_train["sequences"], share)
    if ingested:
        exchanges = ingested["exchanges"]
        volume = split_volume(recipe, log, exchanges)
        volume = volume._replace(response_p90=response_p90(run))
        sequences = round(exchanges * volume.train / max(log, 1))
        share = ingested["completion_tokens"] / max(log, 1)
        return with_further_answers(volume, recipe, sequences, share)
    size = _log_bytes(path_list(recipe.traffic.path))
    return split_volume(recipe, size // LOG_BYTES_PER_TOKEN, None)


def _log_bytes(paths: Sequence[str]) -> int:
    """Approximate uncompressed size of local logs."""
    size = 0
    for path in map(Path, paths):
        for file in [path, *path.rglob("*")]:
            if file.is_file():
                ratio = COMPRESSION_RATIO if file.suffix in (".gz", ".zst") else 1
                size += ratio * file.stat().st_size
    return size


def split_volume(recipe: Recipe, tokens: int, sequences: int | None) -> Volume:
    """Applies the split's fractions and limits to a log of `tokens` tokens.

    Limits count sequences, so they are ignored if the number of sequences is unknown.
    """
    split = recipe.split
    shares = (
        (1 - split.validation_fraction - split.heldout_fraction, split.max_train_sequences),
        (split.validation_fraction, split.max_validation_sequences),
        (split.heldout_fraction, split.max_heldout_sequences),
    )
    part_tokens = []
    for share, limit in shares:
        if sequences and limit:
            share = min(share, limit / sequences)
        part_tokens.append(int(tokens * share))
    train, validation, heldout = part_tokens
    is_counted = sequences is not None
    return Volume(
        log=tokens, train=train, validation=validation, heldout=heldout, counted=is_counted
    )


def with_further_answers(
    volume: Volume, recipe: Recipe, sequences: int, completion_share: float
) -> Volume:
    """Adds the answers expected for a training part of `sequences`, each as long as a logged one.

    `completion_share` is that of a sequence's tokens.
    """
    answers = further_answers(sequences, recipe.answers_up_to)
    further = answers * volume.train / max(sequences, 1)
    return volume._replace(further=int(further), sampled=int(further * completion_share))


@dataclasses.dataclass(frozen=True)
class Rates:
    """Speeds of one target on one machine."""

    source: str
    engine_start_s: float
    capture_tokens_per_s: float
    training_tokens_per_s: float
    """Total over all processes."""
    replay_tokens_per_s: float
    """Exact replay of one drafter: on one GPU, or on all of a cluster."""
    one_request_tokens_per_s: float
    """Decoding at concurrency 1, averaged over the variants none, base and custom."""
    eight_requests_tokens_per_s: float
    disk_bytes_per_s: float = 2e9
    """Checkpoint reads and writes of all processes together; assumes one NVMe drive."""
    ingest_tokens_per_s: float = 200_000
    """On one core, from benchmarks/results/data.md."""

    def decoded_per_s(self, concurrency: int) -> float:
        """Returns total tokens/s, from a power law through concurrencies 1 and 8."""
        power = math.log(self.eight_requests_tokens_per_s / self.one_request_tokens_per_s, 8)
        return self.one_request_tokens_per_s * concurrency**power


R1_ON_8_H200 = Rates(
    source="R1 on 8 x H200, assumed",
    # Loading 671 GB at 2 GB/s, plus 90 s for compilation and CUDA graphs.
    engine_start_s=420,
    # With tensor parallelism 8, vLLM 0.11 prefills long prompts at 15,800 tokens/s:
    # docs.gpustack.ai/latest/performance-lab/deepseek-r1/h200. Outrider's rate was not measured.
    capture_tokens_per_s=15_000,
    # 6% of the bf16 peak (25.4 GFLOP per token at depth 3); not measured.
    training_tokens_per_s=20_000,
    # Without a backward pass, a third of a training step's FLOPs.
    replay_tokens_per_s=60_000,
    # SGLang on 8 x H200 serves one request at 60 tokens/s (sglang#3956, March 2025). vLLM 0.32 is
    # assumed to be faster, with and without MTP, and to reach 2,600 tokens/s at 64 requests.
    one_request_tokens_per_s=85,
    eight_requests_tokens_per_s=470,
)
"""With exact replay on all GPUs, as on a cluster."""

ASSUMED_CARD = "H200"
"""The card of a plan where no GPU is found or named."""

NANO_R1_ON_2_CORES = Rates(
    source="nano R1 on 2 cores",
    engine_start_s=25,
    capture_tokens_per_s=5500,
    training_tokens_per_s=4000,
    replay_tokens_per_s=6000,
    one_request_tokens_per_s=130,
    eight_requests_tokens_per_s=300,
)


def rates_of(
    recipe: Recipe, target_config: Mapping[str, Any], card: Card | None = None
) -> Rates | None:
    """Returns a known target's rates, else estimates from bytes, FLOPs and the card's data sheet.

    The estimates are not measured. They assume that decoding reaches 0.6 of the memory bandwidth,
    prefill 0.4 of the peak FLOP/s, and head training 0.1 of the peak. Without a card,
    `ASSUMED_CARD` is assumed.
    """
    if recipe.target.model in EMBEDDED_TARGETS:
        return NANO_R1_ON_2_CORES
    assumed = card_named(ASSUMED_CARD)
    assert assumed is not None
    if target_config.get("hidden_size") == 7168 and "kv_lora_rank" in target_config:
        return _scaled(R1_ON_8_H200, assumed, card or assumed, _replay_share(recipe))
    if "architectures" not in target_config:
        return None
    card = card or assumed
    target = target_size(target_config, recipe.serving.engine.extra_arguments.get("quantization"))
    gpus = recipe.serving.engine.gpus
    capture = 0.4 * card.flops * gpus / (2 * target.used)
    training = capture  # of a lookup, which nothing trains and whose replay takes no GPU
    if recipe.speculator.kinds:
        speculator = recipe.of_kinds(recipe.speculator.kinds[:1]).speculator
        kind = trainable_kind(speculator.only_kind)
        size = drafter_size(kind, planned_config(speculator, target_config), target_config)
        flops = size.step_flops(speculator.depth, 1)
        training = 0.1 * card.flops * recipe.training.processes / flops
    read_bytes = target.weight_bytes * target.used / target.parameters
    one_request = 0.6 * card.bytes_per_s * gpus / read_bytes
    return Rates(
        source=f"{gpus} x {card.name} at assumed shares of its data sheet",
        engine_start_s=90 + target.weight_bytes / 2e9,
        capture_tokens_per_s=capture,
        training_tokens_per_s=training,
        replay_tokens_per_s=3 * training / _replay_share(recipe),
        one_request_tokens_per_s=one_request,
        eight_requests_tokens_per_s=6 * one_request,
    )


def _replay_share(recipe: Recipe) -> int:
    """Training's processes per process of exact replay, which is one without a cluster."""
    return recipe.training.processes if recipe.cluster.address is None else 1


def _scaled(rates: Rates, measured: Card, card: Card, replay_share: int) -> Rates:
    """Rates on as many of another card: decoding by bandwidth, the rest by the bf16 peak."""
    compute = card.flops / measured.flops
    bandwidth = card.bytes_per_s / measured.bytes_per_s
    same = card == measured
    return dataclasses.replace(
        rates,
        source=rates.source if same else f"{rates.source}, scaled to {card.name}",
        capture_tokens_per_s=compute * rates.capture_tokens_per_s,
        training_tokens_per_s=compute * rates.training_tokens_per_s,
        replay_tokens_per_s=compute * rates.replay_tokens_per_s / replay_share,
        one_request_tokens_per_s=bandwidth * rates.one_request_tokens_per_s,
        eight_requests_tokens_per_s=bandwidth * rates.eight_requests_tokens_per_s,
    )


def stage_seconds(
    volume: Volume,
    recipe: Recipe,
    target_config: Mapping[str, Any],
    checkpoint_bytes: Mapping[str, int],
    rates: Rates,
    *,
    speculator_bytes: int = 0,
) -> dict[str, dict[str, float]]:
    """Returns each stage's seconds by part.

    `checkpoint_bytes` maps each kind to the size of its training checkpoint; `speculator_bytes` are
    what a swap loads.
    """
    candidates = len(recipe.speculator.candidates)
    captured = volume.captured_tokens
    # The training part is captured while it trains, or not at all.
    if recipe.training.streams or not recipe.speculator.kinds:
        captured -= volume.train
    reading = volume.log / rates.ingest_tokens_per_s
    stages: dict[str, dict[str, float]] = {
        "ingest": {"reading and tokenizing": reading},
        "split": {"near duplicates": reading / 2},
        "capture": {
            "engine start": rates.engine_start_s,
            "prefill": captured / _capture_rate(recipe, rates),
        },
    }
    if volume.sampled:
        decoded_per_s = rates.decoded_per_s(recipe.serving.engine.seats)
        stages["capture"]["further answers"] = volume.sampled / decoded_per_s
    for kind, size in checkpoint_bytes.items():
        stage = f"train_{kind}" if candidates > 1 else "train"
        one = recipe.of_kinds([kind])
        warm = starts_warm(one.speculator, target_config)
        stages[stage] = training_seconds(one, volume, rates, warm=warm, checkpoint_bytes=size)
    stages["evaluate"] = evaluation_seconds(recipe, volume, rates)
    if seconds := count_swaps(recipe) * speculator_bytes / SWAPPED_BYTES_PER_S:
        stages["evaluate"][f"{count_swaps(recipe)} swaps"] = seconds
    is_verified = recipe.export.tolerance is not None
    stages["export"] = {"engine start": rates.engine_start_s if is_verified else 0.0}
    if candidates > 1:
        stages["choose_kind"] = choice_seconds(recipe, target_config, volume, rates)
    return stages


def choice_seconds(
    recipe: Recipe, target_config: Mapping[str, Any], volume: Volume, rates: Rates
) -> dict[str, float]:
    """Returns the seconds of choosing among the recipe's kinds by part."""
    choice = choice_of_kind(recipe, target_config)
    replayed = choice.replays * volume.validation
    return {
        pluralize(choice.starts, "engine start"): choice.starts * rates.engine_start_s,
        "exact replay": replayed / rates.replay_tokens_per_s,
        "step timing": choice.turns * _step_seconds(rates, recipe.eval.main),
    }


def _capture_rate(recipe: Recipe, rates: Rates) -> float:
    """Tokens/s of all replicas of the capture together."""
    # Replicas of a private cluster share this machine, so adding more does not raise the rate.
    if recipe.cluster.address in (None, "local"):
        return rates.capture_tokens_per_s
    return rates.capture_tokens_per_s * recipe.cluster.capture_replicas


def training_seconds(
    recipe: Recipe, volume: Volume, rates: Rates, *, warm: bool, checkpoint_bytes: int
) -> dict[str, float]:
    """Returns the seconds of training the recipe's only kind by part."""
    settings = recipe.training.for_start(warm)
    tokens = volume.trained_tokens * settings.epochs
    steps = max(tokens // (settings.rows_per_step * settings.row_tokens), 1)
    evaluations = 2 + steps // settings.evaluate_every
    checkpoints = 1 + steps // settings.checkpoint_every
    training = tokens / rates.training_tokens_per_s
    if recipe.training.streams:
        # Streamed features are captured in every epoch; the slower of the two decides.
        training = max(training, tokens / _capture_rate(recipe, rates))
    # Validation has no backward pass, so it needs a third of a step's FLOPs.
    validation = volume.validation / (3 * rates.training_tokens_per_s)
    parts = {
        "engine start for parity": rates.engine_start_s if warm else 0.0,
        pluralize(settings.epochs, "epoch"): training,
        pluralize(evaluations, "evaluation"): evaluations * validation,
        pluralize(checkpoints, "checkpoint"): checkpoints
        * checkpoint_bytes
        / rates.disk_bytes_per_s,
    }
    return {part: seconds for part, seconds in parts.items() if seconds}


def assumed_response_tokens(recipe: Recipe, volume: Volume) -> int | None:
    """Length of timed responses that hours assume before the log is read; None if it is known."""
    if volume.response_p90 is not None or "max_tokens" in recipe.eval.model_fields_set:
        return None
    return recipe.eval.timed_like(None, recipe.serving.engine.max_model_len).max_tokens


def evaluation_seconds(recipe: Recipe, volume: Volume, rates: Rates) -> dict[str, float]:
    """Returns the seconds of one evaluation by part."""
    measured = recipe.eval.timed_like(volume.response_p90, recipe.serving.engine.max_model_len)
    modes = len(measured.engine_modes)
    repeats = measured.repeats
    sizes = measured.concurrency
    variants = _variants(recipe)
    blocks = modes * len(sizes) * repeats * variants
    timed = 0.0
    for size in sizes:
        block_tokens = measured.block_requests(size) * measured.max_tokens
        timed += block_tokens / rates.decoded_per_s(size)
    starts = engine_starts(recipe)
    replayed = 2 * (volume.validation + volume.heldout)
    workloads = len(measured.rates) * max(len(measured.scenarios), 1)
    parts = {
        f"{starts} engine starts": starts * rates.engine_start_s,
        "exact replay": replayed / rates.replay_tokens_per_s,
        "step timing": modes * _step_timing_seconds(recipe, rates),
        f"{blocks} timed blocks": modes * repeats * variants * timed,
        f"verification of {measured.verification_requests} prompts": modes
        * _verification_seconds(recipe, rates),
        # Each rate and scenario is measured for the variants none, base and custom.
        "open loop": modes * workloads * 3 * measured.rate_seconds,
        "capacity": 60 * measured.capacity_minutes,
    }
    return {part: seconds for part, seconds in parts.items() if seconds}


def _variants(recipe: Recipe) -> int:
    """Variants of a timed block: none, base, custom and, if it is known, base at today's K."""
    return 3 if recipe.eval.current_k is None else 4


def _step_timing_seconds(recipe: Recipe, rates: Rates) -> float:
    """Seconds of timing steps of every K in one engine mode; only lookup's if K is set by hand."""
    by_size = {size: _step_seconds(rates, size) for size in recipe.eval.concurrency}
    # Lookup is timed at the main concurrency only.
    seconds = len(LOOKUP_NUMBERS) * by_size[recipe.eval.main]
    if recipe.eval.k == "auto":
        seconds += recipe.speculator.depth * sum(by_size.values())
    return seconds


def _step_seconds(rates: Rates, size: int) -> float:
    """Seconds of timing steps with one number of drafts at one batch size."""
    return STEP_ROUNDS * step_requests(size) * STEP_TOKENS / rates.decoded_per_s(size)


def _verification_seconds(recipe: Recipe, rates: Rates) -> float:
    """Seconds of comparing output with and without speculation in one engine mode."""
    seats = recipe.serving.engine.seats
    tokens = recipe.eval.verification_requests * recipe.eval.verification_max_tokens
    # Greedy and sampled responses of three variants, and a greedy control at half concurrency.
    responses = 6 * tokens / rates.decoded_per_s(seats)
    return responses + tokens / rates.decoded_per_s(max(seats // 2, 1))


def engine_starts(recipe: Recipe) -> int:
    """Returns the most engine starts of an evaluation.

    In each mode, two servers that run side by side start once each, and again before each of at
    most `eval.starts` repeats; a lookup that is not the base has one more. If one server runs at a
    time, step timing starts one and the lookup's, verification and the first repeat each start
    both, and each further repeat starts the one that is not running, or both; the lookup's starts
    in repeats that start all. If engines cannot change drafters, step timing starts one for each
    speculator and K, verification three, and each repeat all variants.
    """
    measured = recipe.eval
    again = min(measured.starts, measured.repeats) - 1
    times_steps = measured.k == "auto"
    has_lookup = recipe.speculator.base not in lookup_names()
    if not recipe.serving.engine.changes_drafters:
        # Side by side, those of the verification stay up for the first repeat.
        starts = 0 if measured.side_by_side else 3
        starts += (_variants(recipe) + has_lookup) * measured.repeats
        starts += has_lookup * len(LOOKUP_NUMBERS)
        if times_steps:
            starts += 2 * recipe.speculator.depth
    elif measured.side_by_side:
        starts = (2 + has_lookup) * (1 + again)
    else:
        starts = 3 + measured.repeats + again
        starts += has_lookup * (2 + again)
        if times_steps:
            starts += 1
    return len(measured.engine_modes) * starts


SWAPPED_BYTES_PER_S = 1e9
"""Assumed speed of loading weights into a running engine."""


def count_swaps(recipe: Recipe) -> int:
    """Returns the most swaps of weights in an evaluation; 0 if base and custom have two engines.

    In each mode, verification alternates three times, and base and custom swap at most twice in
    each block. At concurrency 1, they alternate within a block: in at least two rounds, and beyond
    those swaps take at most a tenth of the time (`SHARE_OF_SWAPS`).
    """
    measured = recipe.eval
    base_is_lookup = recipe.speculator.base in lookup_names()
    if base_is_lookup or not recipe.serving.engine.changes_drafters or not recipe.speculator.kinds:
        return 0
    blocks = len(measured.concurrency) + (1 in measured.concurrency)
    return len(measured.engine_modes) * (3 + 2 * measured.repeats * blocks)
