"""What training a recipe takes, from config.json alone: parameters, memory by part, the cheapest layout that fits, disk, hours.

    price(run, recipe, gpu_bytes=None)      # one object, made for JSON; price_page.py prints it

Memory is training/sizing/memory.py's, for the largest row that the ingested traffic gives; before the ingest, for one sequence that fills a
row. It is judged on the GPUs that are here or that `--gpu-memory` names. Where there is none, on this machine's memory; and where
that does not do, on GPUs of an assumed size.
"""

import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.dry_run.plan import capture_cost, traffic_tokens, training_cost
from outrider.recipes.pipeline.preflight import has_weights, local_target
from outrider.recipes.pipeline.run_dir import RunDirectory
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.protocol import DrafterSize, RowShape
from outrider.training.packing import make_samples, plan_epoch
from outrider.training.sizing.memory import MemoryPlan

ASSUMED_GPU = 141e9
"""An H200's bytes, where nothing is known."""

USABLE = 0.95
"""Of a device's memory: allocators fragment, and others use some."""

MOST_PROCESSES = 64
"""Where the search for a layout ends."""

FP8_BYTES = 1 + 4 / 128**2
"""Of a weight in FP8 blocks with their scales."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """What training may use: one GPU's memory, or with `shared` a machine's, which all processes share."""

    bytes: int
    source: str
    shared: bool = False

    def needed(self, plan: MemoryPlan) -> int:
        """Of it, by this plan."""
        return plan.host_bytes(plan.processes) if self.shared else plan.peak()[1]

    def fits(self, plan: MemoryPlan) -> bool:
        """With room to spare."""
        return self.needed(plan) <= USABLE * self.bytes


def price(run: RunDirectory, recipe: Recipe, gpu_bytes: int | None = None) -> dict[str, Any]:
    """Everything as one object; `gpu_bytes` is what the command line says of a GPU's memory."""
    target = local_target(recipe)
    config, source = _config(recipe, target)
    if config is None:
        return {
            "target": {"model": recipe.target.model, "config": None, "weights_here": False},
            "missing": source,
        }
    kind = trainable_kind(recipe.speculator.kind)
    size = kind.size(config, source)
    tokens, counted = traffic_tokens(run, recipe)
    row, assumed = _largest_row(run, recipe, size)
    plan = MemoryPlan(
        size,
        row,
        recipe.training.row_tokens,
        recipe.speculator.depth,
        zero_stage=recipe.training.zero_stage,
        processes=recipe.training.processes,
        rows_each=recipe.training.rows_per_step // recipe.training.processes,
        compute=recipe.training.compute,
        trained_parameters=recipe.speculator.train,
        lora_rank=recipe.speculator.lora_rank,
        frozen_value_bytes=FP8_BYTES if config.get("quantization_config") else 2,
    )
    capture = capture_cost(tokens, recipe, config)
    training = training_cost(tokens, recipe)
    return {
        "target": {
            "model": recipe.target.model,
            "config": str(source),
            "weights_here": target is not None and has_weights(target),
        },
        "parameters": {
            "total": size.total,
            "trained": plan.trained,
            "frozen": size.frozen(plan.trained_parameters),
            "target_ends_frozen": size.ends,
            "parts": size.parts,
        },
        "features": {
            "dtype": recipe.capture.dtype,
            "bytes_per_token": capture.bytes_per_token,
            "tokens": tokens,
            "tokens_counted": counted,
            "bytes": capture.bytes,
        },
        "capture": {"tokens_per_s": capture.tokens_per_s, "seconds": capture.seconds},
        "training": dataclasses.asdict(training) | {"seconds": training.seconds},
        "row": dataclasses.asdict(row)
        | {"row_tokens": recipe.training.row_tokens, "assumed": assumed},
        "memory": list(_judged(plan, recipe, gpu_bytes)),
    }


def _config(recipe: Recipe, target: Path | None) -> tuple[dict[str, Any] | None, object]:
    """config.json and where it is from; of a hub's model that is not here, that file alone is fetched. None, and why."""
    if target is not None:
        return read_json(target / "config.json"), target / "config.json"
    with tempfile.TemporaryDirectory(prefix="config-") as scratch:
        try:
            fetched = recipe.target.fetch(("config.json",), Path(scratch))
            return read_json(fetched / "config.json"), f"{recipe.target.model}/config.json"
        except OutriderError as error:
            return None, str(error)


def _largest_row(run: RunDirectory, recipe: Recipe, size: DrafterSize) -> tuple[RowShape, bool]:
    """The row of an epoch that keeps most for backward, and whether it was made up."""
    row_tokens = recipe.training.row_tokens
    if run.read_record("ingest") is None or not run.sequences.exists():
        return RowShape.full(row_tokens), True
    import pyarrow.compute as pc

    from outrider.data.sequences import load_sequences

    table = load_sequences(run.sequences).data
    lengths = pc.list_value_length(table.column("token_ids")).to_pylist()
    ids, starts = (table.column(name).to_pylist() for name in ("sequence_id", "completion_start"))
    samples, _ = make_samples(zip(ids, lengths, starts, strict=True), row_tokens)
    rows = [
        RowShape.of_sequences((samples[index].length, samples[index].targets(0)) for index in row)
        for step in plan_epoch(
            samples, row_tokens, recipe.training.rows_per_step, recipe.training.seed, 0
        )
        for row in step
    ]
    if not rows:
        return RowShape.full(row_tokens), True

    def saved_bytes(row: RowShape) -> int:
        return size.activations(row, recipe.speculator.depth, 2, "cpu", "all", 0).saved_bytes()

    return max(rows, key=saved_bytes), False


def _judged(plan: MemoryPlan, recipe: Recipe, gpu_bytes: int | None) -> Iterator[dict[str, Any]]:
    """The recipe's layout on the memory at hand, and the cheapest that fits."""
    for memory in memories(gpu_bytes):
        here = dataclasses.replace(plan, device="cpu" if memory.shared else "cuda")
        fits, needed = memory.fits(here), memory.needed(here)
        yield {
            "device": memory.source,
            "shared_by_processes": memory.shared,
            "bytes": memory.bytes,
            "usable_bytes": int(USABLE * memory.bytes),
            "zero_stage": here.zero_stage,
            "processes": here.processes,
            "phases": here.phases(),
            "peak_phase": here.peak()[0],
            "peak_bytes": here.peak()[1],
            "host_bytes": here.host_bytes(here.processes),
            "fits": fits,
            "short_by_bytes": 0 if fits else needed - int(USABLE * memory.bytes),
            "cheapest_layout": _cheapest(here, memory, recipe.training.rows_per_step),
            "largest_row_tokens": None if fits else _largest_that_fits(here, memory),
        }
        if fits or not memory.shared:
            return


def _cheapest(plan: MemoryPlan, memory: Memory, rows_per_step: int) -> dict[str, Any] | None:
    """Fewest processes, then the lowest ZeRO stage. One process gains nothing by sharding."""
    most = len(os.sched_getaffinity(0)) if memory.shared else MOST_PROCESSES
    for processes in (n for n in range(1, min(most, rows_per_step) + 1) if rows_per_step % n == 0):
        for stage in (1, 2, 3) if processes > 1 else (1,):
            tried = dataclasses.replace(
                plan, processes=processes, zero_stage=stage, rows_each=rows_per_step // processes
            )
            if memory.fits(tried):
                return {"processes": processes, "zero_stage": stage, "peak_bytes": tried.peak()[1]}
    return None


def _largest_that_fits(plan: MemoryPlan, memory: Memory) -> int | None:
    """Tokens of the largest full row, in steps of 256, that this layout has room for; None: not even 256."""
    for tokens in range(plan.row_tokens // 256 * 256, 0, -256):
        if memory.fits(dataclasses.replace(plan, row=RowShape.full(tokens), row_tokens=tokens)):
            return tokens
    return None


def memories(gpu_bytes: int | None = None) -> list[Memory]:
    """What to judge on, the nearest first."""
    if gpu_bytes is not None:
        return [Memory(gpu_bytes, "a GPU as --gpu-memory has it")]
    if found := _smallest_gpu():
        return [found]
    host = Memory(psutil.virtual_memory().total, "this machine's memory, no GPU", shared=True)
    return [
        host,
        Memory(int(ASSUMED_GPU), "a GPU, assumed (none here; --gpu-memory GB names another)"),
    ]


def _smallest_gpu() -> Memory | None:
    if not shutil.which("nvidia-smi"):
        return None
    query = ["nvidia-smi", "--query-gpu=memory.total,name", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    found = (
        [line.split(", ", 1) for line in answer.stdout.strip().splitlines()]
        if answer.returncode == 0
        else []
    )
    if not found:
        return None
    mebibytes, name = min(found, key=lambda gpu: int(gpu[0]))
    return Memory(int(mebibytes) * 2**20, f"{name}, found here")
