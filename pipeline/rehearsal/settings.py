"""The rehearsal's settings on top of a recipe: little traffic, short measurements.

    words = rehearsal_words(recipe, gpus=8)        # overrides; target.model and the user's follow

What is trained, depth, loss, ZeRO stage and dtypes stay the recipe's. On a CPU one process trains
and serves in bf16. With GPUs the engine is compiled and tensor-parallel over them, and each has a
rank of the training.
"""

from outrider.pipeline.recipe.recipe import Recipe

SETTINGS = {
    "target.revision": "null",
    "target.quantization": "null",
    "traffic.path": "nano_r1/resume_screening",
    "split.max_train_sequences": 6,
    "split.max_validation_sequences": 2,
    "split.max_heldout_sequences": 3,
    # Random weights did not write these logs: every sequence is off-policy.
    "capture.min_on_policy": "null",
    "capture.self_check_sequences": 1,
    "capture.shard_megabytes": 16,
    "capture.batch_tokens": 2048,
    "capture.tokens_per_s": "null",
    "speculator.parity.prompts": 2,
    "speculator.parity.max_tokens": 6,
    "speculator.parity.anchors": 8,
    "training.epochs": 1,
    "training.row_tokens": 512,
    "training.rows_per_step": 2,
    "training.processes": 1,
    "training.evaluate_every": 100,
    "training.checkpoint_every": 100,
    "training.keep_checkpoints": 1,
    "training.parity": "warn",
    "training.tokens_per_s": "null",
    "training.wandb_project": "null",
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
    "eval.verification_max_tokens": 8,
    "eval.replay_sequences": 2,
    "eval.task": "null",
    # Random drafts are accepted by chance: a handful of steps decides nothing.
    "export.tolerance": 0.9,
}


MOST_GPUS = 8
"""One node."""


def node_settings(gpus: int) -> dict[str, object]:
    """What differs on a machine with GPUs: all of them serve and train, as R1's recipes do."""
    # Heads divide by powers of two.
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
    """Overrides that make a rehearsal of `recipe` on a machine with this many GPUs."""
    settings = SETTINGS | (node_settings(gpus) if gpus else {})
    return [f"name={recipe.name}_rehearsal", *(f"{key}={value}" for key, value in settings.items())]
