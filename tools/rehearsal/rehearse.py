"""Rehearses an R1 recipe at R1's widths on a small random target.

    python -m tools.rehearsal.rehearse r1/resume_screening [section.key=value ...] [--runs DIR]

It shows that every stage runs at real widths, and that memory and disk are what `--dry-run`
predicts. Verdict, acceptance and speed are meaningless with random weights; the export is forced.

Widths are R1's: hidden 7168, 128 heads, latent rank 512, vocabulary 129,280, experts of 2048. One
dense layer, one MoE layer and the MTP layer remain. Trained weights, depth, loss, ZeRO stage and
dtypes are the recipe's. On a CPU, one process trains and serves in bf16. With GPUs, the engine is
compiled and tensor-parallel over all of them, and training has one rank per GPU.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

import outrider
from outrider.cli.printing import print_json
from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.eval.report.formatting import bytes_text
from outrider.pipeline.plan.training_cost import memories, memory_plan, price
from outrider.pipeline.preflight import check_recipe, local_target
from outrider.pipeline.recipe.load import LoadedRecipe, load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.registry import STAGES
from outrider.speculators.config import AUTO
from outrider.speculators.kinds import DEFAULT_KIND
from tools.rehearsal.target import random_target

TOLERANCE = 0.1
"""Largest accepted relative difference between a prediction and the measurement."""

RETURN_FREED_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""By default glibc keeps freed memory, which would count towards the peak."""


def rehearsal(recipe: str, overrides: Sequence[str], console: Console) -> LoadedRecipe:
    """Returns the recipe's rehearsal; writes the random target unless cached."""
    import torch

    gpus = torch.cuda.device_count()
    original = load_recipe(recipe).recipe
    words = [*rehearsal_words(original, gpus), *overrides]
    # Any local target works until the number of experts is known.
    planned = load_recipe(recipe, [*words, "target.model=nano_r1"]).recipe
    if not isinstance(planned.speculator.kind, str) or planned.speculator.kind == AUTO:
        raise OutriderError(
            f"rehearsal: speculator.kind = {planned.speculator.kind}, but a rehearsal trains one"
            f" kind; name it, such as speculator.kind={DEFAULT_KIND}, and rehearse each"
        )
    target = local_target(original)
    available = memories()[0].bytes if gpus else psutil.virtual_memory().available
    config = read_json(target / "config.json" if target else R1_CONFIG)
    config, experts = cut_to_fit(config, planned, available, gpus)
    console.print(
        f"rehearsal: {experts} experts on {gpus or 'no'} GPUs, {available / 1e9:.1f} GB of memory"
        " available",
        highlight=False,
    )
    directory = random_target(config)
    loaded = load_recipe(recipe, [*words, f"target.model={directory}"])
    check_recipe(loaded.recipe)
    return loaded


def rehearse(
    loaded: LoadedRecipe, run: RunDirectory, stages: Sequence[str], console: Console
) -> dict[str, Any]:
    """Runs the stages, compares memory and disk, and writes rehearsal.json."""
    began = time.monotonic()
    os.environ.update(RETURN_FREED_MEMORY)
    opened = outrider.Run(loaded, run)
    with opened.attempt():
        opened.run_stages(list(stages), {"force": True})
    trained = run.result_of("split")["train"]
    # One sequence fills a row of the rehearsal.
    length, anchors = (
        trained[key] // trained["sequences"] for key in ("tokens", "completion_tokens")
    )
    rows = compared(price(run, loaded.recipe, sequence=(length, anchors)), run)
    table = Table(title="rehearsal: --dry-run against measured", title_justify="left")
    for column in ("", "predicted", "measured", "difference", "within 10 %"):
        table.add_column(column, justify="right" if column else "left")
    for name, row in rows.items():
        cells = bytes_text(row["predicted"]), bytes_text(row["measured"]), f"{row['off']:+.1%}"
        table.add_row(name, *cells, "yes" if row["holds"] else "NO")
    console.print(table)
    seconds = time.monotonic() - began
    result = {
        "recipe": loaded.recipe.name,
        "run_dir": str(run.root),
        "seconds": round(seconds),
        "verdict": run.result_of("evaluate").get("verdict"),
        "compared": rows,
        "holds": all(row["holds"] for row in rows.values()),
    }
    write_json(Path(run.root) / "rehearsal.json", result)
    return result


def compared(priced: dict[str, Any], run: RunDirectory) -> dict[str, dict[str, Any]]:
    """Predicted and measured bytes of training memory, states, checkpoint and speculator.

    Memory is measured as the process's VmHWM on a CPU, and as torch's allocated peak on a GPU.
    """
    checkpoint = max((run.training / "checkpoints").glob("step-*"))
    trained = read_json(run.training / "result.json")
    memory = priced["memory"][0]
    phases = {
        phase: sum(size for part, size in parts.items() if part != "cuda_context_assumed")
        for phase, parts in memory["phases"].items()
    }
    # The measured start includes the closed-form fit.
    start = max(phases["start"], phases.get("fit", 0))
    pairs = {
        "memory of the training process": (max(phases.values()), trained["peak_bytes"]),
        "its start": (start, trained["start_peak_bytes"]),
        "states on disk": (priced["features"]["bytes"], _folder_bytes(run.features, "shard-*")),
        "a training checkpoint": (priced["checkpoint_bytes"], _folder_bytes(checkpoint)),
        "the speculator": (priced["speculator_bytes"], _folder_bytes(run.speculator)),
    }
    rows = {}
    for name, (predicted, measured) in pairs.items():
        off = predicted / measured - 1
        rows[name] = {
            "predicted": predicted,
            "measured": measured,
            "off": round(off, 4),
            "holds": abs(off) <= TOLERANCE,
        }
    return rows


def _folder_bytes(folder: Path, pattern: str = "*") -> int:
    return sum(path.stat().st_size for path in folder.rglob(pattern) if path.is_file())


R1_CONFIG = SHIPPED / "r1" / "config.json"
"""R1's published config.json."""

EXPERTS = (8, 4, 2)
"""Numbers of routed experts on a CPU, tried in this order."""

EXPERTS_ON_GPUS = (256, 64, 16)

USABLE_SHARE = 0.8
"""Share of the available memory that the largest process may take."""


def cut_config(config: Mapping[str, Any], experts: int, fp8: bool) -> dict[str, Any]:
    """Cuts `config` to a dense and a MoE layer of `experts` experts.

    Groups have two experts. Without `fp8`, weights are bf16: vLLM supports FP8 blocks only on GPUs
    and on CPUs with AMX.
    """
    groups = max(1, experts // 2)
    groups_per_token = max(1, groups // 2)
    cut = dict(config) | {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": experts,
        "n_group": groups,
        "topk_group": groups_per_token,
        "num_experts_per_tok": min(config["num_experts_per_tok"], 2 * groups_per_token),
        "torch_dtype": "bfloat16",
    }
    if not fp8:
        cut.pop("quantization_config", None)
    return cut


def cut_to_fit(
    config: Mapping[str, Any], recipe: Recipe, available_bytes: int, gpus: int = 0
) -> tuple[dict[str, Any], int]:
    """Returns the config with the most experts that fits, and their number.

    `recipe` is the rehearsal's. `available_bytes` is the memory of one GPU, or of the machine if it
    has none.
    """
    for experts in EXPERTS_ON_GPUS if gpus else EXPERTS:
        small = cut_config(config, experts, fp8=gpus > 0)
        plan = memory_plan(recipe, small, "config.json")
        # Training needs more memory than an engine of the same target.
        plan = dataclasses.replace(plan, device="cuda" if gpus else "cpu")
        needed = plan.peak()[1]
        if needed <= USABLE_SHARE * available_bytes:
            return small, experts
    raise OutriderError(
        f"rehearsal: with {experts} experts, training takes {needed / 1e9:.1f} GB (mostly"
        f" embedding and head of 129,280 tokens); {available_bytes / 1e9:.1f} GB of memory are"
        " available, of which 80 % are used; free memory or use a larger machine"
    )


SETTINGS = {
    "target.revision": "null",
    "traffic.path": "nano_r1/resume_screening",
    "split.max_train_sequences": 6,
    "split.max_validation_sequences": 2,
    "split.max_heldout_sequences": 3,
    # Every sequence is off-policy for random weights.
    "capture.min_on_policy": "null",
    "capture.batch_tokens": 2048,
    "training.epochs": 1,
    "training.row_tokens": 512,
    "training.rows_per_step": 2,
    "training.processes": 1,
    "training.evaluate_every": 100,
    "training.checkpoint_every": 100,
    "training.parity": "warn",
    "serving.engine.mode": "eager",
    "serving.engine.tensor_parallel": 1,
    "serving.engine.max_model_len": 1024,
    "serving.engine.max_num_seqs": 2,
    "serving.engine.max_num_batched_tokens": 512,
    "serving.engine.kv_cache_gb": 1,
    # Timing steps for every k would take minutes and show nothing.
    "eval.k": 2,
    "eval.engine_modes": "[eager]",
    "eval.side_by_side": "false",
    "eval.measure": "full",
    "eval.concurrency": "[1]",
    "eval.requests": 1,
    "eval.repeats": 2,
    "eval.max_tokens": 6,
    "eval.verification_requests": 2,
    "eval.capacity_minutes": 0,
    "eval.verification_max_tokens": 8,
    "eval.replay_sequences": 2,
    "eval.task": "null",
    # Random drafts are accepted by chance, so a few steps prove nothing.
    "export.tolerance": 0.9,
}


MOST_GPUS = 8
"""GPUs of one node."""


def node_settings(gpus: int) -> dict[str, object]:
    """Settings for a machine with GPUs, all of which serve and train."""
    # A power of two, which divides the number of heads.
    used = 1 << (min(gpus, MOST_GPUS).bit_length() - 1)
    return {
        "split.max_train_sequences": 6 * used,
        "split.max_validation_sequences": 2 * used,
        "training.rows_per_step": used,
        "training.processes": used,
        "serving.engine.mode": "compiled",
        "serving.engine.tensor_parallel": used,
        "serving.engine.kv_cache_gb": "null",
        "eval.engine_modes": "[compiled]",
    }


def rehearsal_words(recipe: Recipe, gpus: int = 0) -> list[str]:
    """Overrides that turn `recipe` into a rehearsal on this many GPUs."""
    settings = SETTINGS | (node_settings(gpus) if gpus else {})
    return [f"name={recipe.name}_rehearsal", *(f"{key}={value}" for key, value in settings.items())]


def main() -> int:
    """Runs the command; returns 0 if the predictions hold, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    args = parser.parse_args()
    console = Console(stderr=True)
    try:
        loaded = rehearsal(args.recipe, args.overrides, console)
        run = RunDirectory.of(loaded.recipe, args.runs)
        result = rehearse(loaded, run, list(STAGES), console)
    except OutriderError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return error.exit_code
    print_json(result)
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
