"""Draft parity before training: trainer and engine must draft the same tokens.

    check_warm_start(run, recipe, validation_ids)

Without parity, training would improve a model other than the served one, while losses look normal.
A failure raises an `OutriderError` or prints a warning (`training.parity`).
"""

import itertools
import random
from collections.abc import Sequence

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import CachedResult
from outrider.eval.config import SEED
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import served_base_of
from outrider.speculators.parity import ParityConfig, parity_failure, parity_in_words

FILE = "draft_parity.json"


def check_warm_start(run: RunDirectory, recipe: Recipe, sequence_ids: Sequence[str]) -> None:
    """Compares trainer and engine on validation prompts, once per run."""
    from outrider.eval.replay.draft_parity import engine_parity

    base = served_base_of(run, recipe)
    # Without a warm start, skip this; the evaluation compares replay with the engine's steps.
    if base.directory is None or not base.trainable or base.kind != recipe.speculator.only_kind:
        return
    directory = base.directory
    parity = ParityConfig()

    def measured() -> list[list[float]]:
        return engine_parity(
            target=recipe.target,
            engine_config=recipe.serving.engine,
            speculator_dir=directory,
            k=recipe.speculator.depth,
            prompts=_prompts(run, recipe, sequence_ids, parity),
            parity=parity,
            dtype=recipe.eval.replay_dtype,
        )

    limits = {"min_agreement", "max_difference"}
    # Limits judge the sums; they do not change what is measured, so a new limit measures nothing.
    asked = {key: value for key, value in parity._asdict().items() if key not in limits}
    sums = CachedResult(run.training / FILE, asked).run(measured)
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    why = parity_failure(sums, parity)
    if why is None:
        say(f"draft parity of trainer and engine: {parity_in_words(sums)}")
    elif recipe.training.parity == "warn":
        say(f"[yellow]warning[/] draft parity of trainer and engine: {why}")
    else:
        raise OutriderError(
            "training.parity = strict: the base speculator drafts differently in trainer and"
            f" engine, before any update: {why}. Check that target.model and speculator.base are"
            " what the endpoint serves; training.parity=warn trains anyway"
        )


def _prompts(
    run: RunDirectory, recipe: Recipe, sequence_ids: Sequence[str], parity: ParityConfig
) -> list[list[int]]:
    """Draws prompts that leave room for a completion and its drafts."""
    from outrider.data.sequences import load_sequences

    room = recipe.serving.engine.max_model_len - parity.max_tokens - recipe.speculator.depth - 1
    # Sorted first: the draw must not depend on the order of the split.
    order = sorted(sequence_ids)
    random.Random(SEED).shuffle(order)
    rows = (row for row in load_sequences(run.sequences, order) if row["completion_start"] <= room)
    prompts = [
        list(row["token_ids"][: row["completion_start"]])
        for row in itertools.islice(rows, parity.prompts)
    ]
    if not prompts:
        raise OutriderError(
            f"draft parity: no validation prompt leaves room for {parity.max_tokens} tokens; raise"
            f" serving.engine.max_model_len = {recipe.serving.engine.max_model_len}"
        )
    return prompts
