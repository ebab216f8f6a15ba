"""Estimates a run's cost from config.json alone: parameters, memory, disk, hours.

    price(run, recipe, gpu_bytes=None)      # one JSON object; plan.py prints it

With several kinds, parameters and memory are given for each (`kinds`), and the states on disk are
the union of what they read. The memory estimate (training/memory.py) assumes one sequence that
fills a row. It is compared with `--gpu-memory`, if given, or with this machine's GPUs. Without
GPUs, it is compared with main memory and, if that is too small, with an assumed GPU.
"""

import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from outrider.common.errors import OutriderError
from outrider.common.gpu_cards import CARDS, Card, card_named
from outrider.data.config import bytes_per_token
from outrider.eval.report.formatting import bytes_text, duration
from outrider.pipeline.plan.hours import (
    ASSUMED_CARD,
    assumed_response_tokens,
    rates_of,
    stage_seconds,
    traffic_volume,
)
from outrider.pipeline.plan.target_size import FP8_BYTES, target_size
from outrider.pipeline.preflight import has_weights, local_target
from outrider.pipeline.provenance import gpus
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import evaluation_settings
from outrider.speculators.base import planned_config, starts_warm, stored_features
from outrider.speculators.checkpoints.layout import CONFIG_FILES, read_target_config
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.size import drafter_size
from outrider.training.memory import MemoryPlan

ASSUMED_GPU = next(card.bytes for card in CARDS if card.name == ASSUMED_CARD)
"""Bytes of an H200 (sold as 141 GB), assumed if no GPU is known."""

USABLE = 0.95
"""Usable share of a device's memory; fragmentation and other processes take the rest."""

MOST_PROCESSES = 64
"""Largest number of processes tried in the search for a layout."""


class Memory(NamedTuple):
    """Memory for training: one GPU's, or main memory `shared` by all processes."""

    bytes: int
    source: str
    shared: bool = False

    def missing(self, plan: MemoryPlan) -> int:
        """Returns the plan's bytes beyond the usable share; negative if it fits."""
        needed = plan.host_bytes(plan.processes) if self.shared else plan.peak()[1]
        return needed - int(USABLE * self.bytes)


def price(
    run: RunDirectory,
    recipe: Recipe,
    gpu_bytes: int | None = None,
    sequence: tuple[int, int] | None = None,
    card: Card | None = None,
) -> dict[str, Any]:
    """Returns the whole estimate as one JSON object.

    `gpu_bytes` is the value of `--gpu-memory`, `card` that of `--gpu`; `sequence` is passed to
    `MemoryPlan`.
    """
    target = local_target(recipe)
    config, source = target_config(recipe, target)
    if config is None:
        return {
            "target": {"model": recipe.target.model, "config": None, "weights_here": False},
            "missing": source,
        }
    volume = traffic_volume(run, recipe)
    devices = memories(gpu_bytes, card)
    no_hours = None
    if card is None:
        card, no_hours = card_here(gpu_bytes)
    rates = rates_of(recipe, config, card) if no_hours is None else None
    is_here = target is not None and has_weights(target)
    about = {"model": recipe.target.model, "config": str(source), "weights_here": is_here}
    kinds = {
        name: _of_kind(
            recipe=recipe.of_kinds([name]),
            config=config,
            source=source,
            devices=devices,
            sequence=sequence,
        )
        for name in recipe.speculator.kinds
    }
    checkpoints = {name: kind["checkpoint_bytes"] for name, kind in kinds.items()}
    speculator_bytes = max((kind["speculator_bytes"] for kind in kinds.values()), default=0)
    stages = {}
    if rates is not None:
        stages = stage_seconds(
            volume,
            recipe,
            target_config=config,
            checkpoint_bytes=checkpoints,
            rates=rates,
            speculator_bytes=speculator_bytes,
        )
    of_target: dict[str, Any] = about | _of_target(recipe, config, devices[0], speculator_bytes)
    cost: dict[str, Any] = {
        "target": of_target | _load(run, recipe),
        "traffic": volume._asdict(),
        "assumed_response_tokens": assumed_response_tokens(recipe, volume),
        "answers_up_to": 0 if volume.counted else recipe.answers_up_to,
        "features": features_cost(volume.captured_tokens, recipe, config),
        "rates": None if rates is None else dataclasses.asdict(rates),
        "no_hours": no_hours,
        "stages": stages,
        "download": None if is_here else _download(recipe, of_target["weight_bytes"]),
    }
    parts = run.result_of("split")
    if parts:
        cost["power"] = expected_power(recipe, parts, run.result_of("ingest"))
    # One kind's keys are not nested: most recipes train one.
    if len(kinds) == 1:
        return cost | kinds[recipe.speculator.only_kind]
    return cost | {"kinds": kinds}


def expected_power(recipe: Recipe, parts: Mapping[str, Any], log: Mapping[str, Any]) -> str:
    """How often an evaluation of a log split into `parts` shows a gain of 10 %."""
    from outrider.eval.stats.power import power_in_words

    # Summaries written before users were counted do not have them.
    users = log.get("users", {"distinct": 2})["distinct"]
    return power_in_words(
        sessions=parts["heldout"]["sessions"],
        settings=recipe.eval,
        unknown_users=recipe.traffic.users == "unknown" and users < 2,
    )


def card_here(gpu_bytes: int | None = None) -> tuple[Card | None, str | None]:
    """The data sheet of this machine's GPUs, if known, and why no hours can be estimated."""
    fix = f"--gpu NAME takes {', '.join(card.name for card in CARDS)}"
    if gpu_bytes is not None:
        return None, f"--gpu-memory names no card; {fix}"
    found = gpus()
    if not found:
        return None, None
    card = card_named(found[0].name)
    return card, None if card else f"no data sheet of {found[0].name}; {fix}"


def _download(recipe: Recipe, weight_bytes: int) -> dict[str, Any]:
    """Size and seconds of the target's download."""
    speed = recipe.plan.download_gb_per_s
    text = (
        f"{bytes_text(weight_bytes)} to download at {speed:g} GB/s (plan.download_gb_per_s):"
        f" {duration(weight_bytes / (1e9 * speed))}"
    )
    return {"bytes": weight_bytes, "seconds": weight_bytes / (1e9 * speed), "text": text}


def _load(run: RunDirectory, recipe: Recipe) -> dict[str, Any]:
    """The largest number of concurrent requests, and the tokens of a timed one, if known."""
    ingested = run.result_of("ingest")
    prompt = None
    if ingested.get("exchanges"):
        prompt = ingested["prompt_tokens"] // ingested["exchanges"]
    most = max(recipe.eval.concurrency)
    return {
        "requests": most,
        "mean_prompt_tokens": prompt,
        "max_tokens": evaluation_settings(run, recipe).max_tokens,
    }


def _of_target(
    recipe: Recipe, config: dict[str, Any], memory: Memory, speculator_bytes: int
) -> dict[str, Any]:
    """Target size, the number of GPUs that its engine needs, and its KV cache."""
    size = target_size(config, recipe.serving.engine.extra_arguments.get("quantization"))
    engine = recipe.serving.engine
    degree = None
    cache_tokens = None
    if not memory.shared:
        degree = size.smallest_tensor_parallel(engine, memory.bytes)
        cache_tokens = size.cache_tokens(engine, memory.bytes, speculator_bytes)
    return {
        "parameters": size.parameters,
        "weight_bytes": size.weight_bytes,
        "kv_bytes_per_token": size.kv_bytes_per_token,
        "smallest_tensor_parallel": degree,
        "tensor_parallel": engine.tensor_parallel,
        "kv_cache_tokens": cache_tokens,
        "gpu": None if memory.shared else memory.source,
    }


def features_cost(tokens: int, recipe: Recipe, config: Mapping[str, Any]) -> dict[str, Any]:
    """Disk space for the states of `tokens` tokens."""
    spec = stored_features(recipe.speculator, config)
    token_bytes = bytes_per_token(spec.width, recipe.capture.dtype, len(spec.streams))
    text = (
        f"{bytes_text(tokens * token_bytes)} of states ({tokens:,} tokens x {token_bytes:,} bytes)"
    )
    return {
        "tokens": tokens,
        "bytes_per_token": token_bytes,
        "bytes": tokens * token_bytes,
        "text": text,
    }


def _of_kind(
    recipe: Recipe,
    config: dict[str, Any],
    source: object,
    devices: Sequence[Memory],
    sequence: tuple[int, int] | None,
) -> dict[str, Any]:
    """Returns parameters, memory and checkpoint size for training the recipe's only kind."""
    plan = dataclasses.replace(memory_plan(recipe, config, source), sequence=sequence)
    size = plan.size
    # A head is published in bf16, even if its target is quantized.
    quantization = planned_config(recipe.speculator, config).get("quantization_config")
    value_bytes = FP8_BYTES if quantization else 2
    parameters = {
        "total": size.total,
        "trained": plan.num_trained_parameters,
        "frozen": size.num_frozen_parameters(plan.trained_parameters),
        "target_ends_frozen": size.ends,
        "parts": size.parts,
    }
    tokens, anchors = plan.row
    return {
        "parameters": parameters,
        "row": {"tokens": tokens, "anchors": anchors},
        "checkpoint_bytes": plan.checkpoint_bytes(),
        "speculator_bytes": int(size.total * value_bytes),
        "memory": list(_judged(plan, recipe, devices)),
    }


def memory_plan(recipe: Recipe, config: dict[str, Any], source: object) -> MemoryPlan:
    """Returns the memory plan for training the recipe's only kind."""
    kind = trainable_kind(recipe.speculator.only_kind)
    speculator = planned_config(recipe.speculator, config)
    training = recipe.training
    warm = starts_warm(recipe.speculator, config)
    return MemoryPlan(
        drafter_size(kind, speculator, config, source),
        training.row_tokens,
        recipe.speculator.depth,
        zero_stage=training.zero_stage,
        processes=training.processes,
        compute=training.compute,
        trained_parameters=recipe.speculator.train,
        lora_rank=recipe.speculator.lora_rank,
        warm=warm,
        fitted=kind.can_fit_start(speculator) and not training.streams,
    )


def target_config(recipe: Recipe, target: Path | None) -> tuple[dict[str, Any] | None, object]:
    """Returns config.json and its path, or None and the reason.

    If a hub model is not on this machine, only its config.json is downloaded. R1's is shipped too.
    """
    if target is not None:
        return read_target_config(target), target / "config.json"
    with tempfile.TemporaryDirectory(prefix="config-") as scratch:
        try:
            fetched = recipe.target.fetch(CONFIG_FILES, Path(scratch))
            return read_target_config(fetched), f"{recipe.target.model}/config.json"
        except OutriderError as error:
            if recipe.target.model == "deepseek-ai/DeepSeek-R1":
                return read_config(SHIPPED / "r1" / "config.json"), "the shipped config.json"
            return None, str(error)


def _judged(
    plan: MemoryPlan, recipe: Recipe, devices: Sequence[Memory]
) -> Iterator[dict[str, Any]]:
    """Yields, per device, whether the recipe fits and the cheapest fitting layout."""
    for memory in devices:
        here = dataclasses.replace(plan, device="cpu" if memory.shared else "cuda")
        missing = memory.missing(here)
        phase, peak = here.peak()
        yield {
            "device": memory.source,
            "shared_by_processes": memory.shared,
            "bytes": memory.bytes,
            "usable_bytes": int(USABLE * memory.bytes),
            "zero_stage": here.zero_stage,
            "processes": here.processes,
            "phases": here.phases(),
            "peak_phase": phase,
            "peak_bytes": peak,
            "host_bytes": here.host_bytes(here.processes),
            "fits": missing <= 0,
            "short_by_bytes": max(missing, 0),
            "cheapest_layout": _cheapest(here, memory, recipe.training.rows_per_step),
        }
        # Main memory is shown first where there is no GPU; if it suffices, no GPU is assumed.
        if missing <= 0 or not memory.shared:
            return


def _cheapest(plan: MemoryPlan, memory: Memory, rows_per_step: int) -> dict[str, Any] | None:
    """Returns the layout with the fewest processes, then the lowest ZeRO stage."""
    most = len(os.sched_getaffinity(0)) if memory.shared else MOST_PROCESSES
    # A process takes the same number of rows of every step.
    for processes in range(1, most + 1):
        if rows_per_step % processes:
            continue
        for stage in (1, 2, 3) if processes > 1 else (1,):  # sharding needs two processes
            tried = dataclasses.replace(plan, processes=processes, zero_stage=stage)
            if memory.missing(tried) <= 0:
                return {"processes": processes, "zero_stage": stage, "peak_bytes": tried.peak()[1]}
    return None


def memories(gpu_bytes: int | None = None, card: Card | None = None) -> list[Memory]:
    """Returns the devices to check the plan against, in order of preference."""
    if gpu_bytes is not None:
        return [Memory(gpu_bytes, "a GPU of --gpu-memory")]
    if card is not None:
        return [Memory(card.bytes, card.name)]
    visible = gpus()
    if visible:
        smallest = min(visible, key=lambda gpu: gpu.mebibytes)
        return [Memory(smallest.mebibytes * 2**20, f"{smallest.name}, found here")]
    return [
        Memory(psutil.virtual_memory().total, "this machine's memory, no GPU", shared=True),
        Memory(ASSUMED_GPU, f"an assumed {ASSUMED_CARD} (none found; --gpu NAME sets another)"),
    ]
