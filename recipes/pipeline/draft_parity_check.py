"""Before anything is trained: does the base speculator draft in the trainer what it drafts in the engine that will serve?

If not, every hour of training goes into a model that nobody serves, and its losses would look as good as ever.

    check_warm_start(run, recipe, validation_ids)      # an OutriderError names the usual causes; or a warning, training.parity
"""

import random
from collections.abc import Sequence

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.run_dir import RunDirectory

FILE = "parity.json"


def check_warm_start(run: RunDirectory, recipe: Recipe, sequence_ids: Sequence[str]) -> None:
    """Compares the two on prompts of the validation part; once a run, for a resumed one has passed it."""
    from outrider.eval.replay.draft_parity import complaint, engine_parity

    path, parity = run.training / FILE, recipe.eval.parity
    asked = parity.model_dump(exclude={"min_agreement", "max_difference"})
    kept = read_json(path) if path.is_file() else {}
    if kept.get("asked") == asked:
        found = kept["found"]
    else:
        base = {"base": recipe.target.directory()}
        prompts = _prompts(run, recipe, sequence_ids)
        found = engine_parity(
            recipe.target,
            recipe.serving.engine,
            base,
            recipe.speculator.depth,
            prompts,
            parity,
            recipe.eval.replay_dtype,
        )["base"]
        write_json(path, {"asked": asked, "found": found})
    say = Console(stderr=True, highlight=False, soft_wrap=True).print
    why = complaint(found, parity)
    if why is None:
        say(
            f"parity of the warm start: trainer and engine agree on {found['agreement']:.2%} of {found['steps']} x "
            f"{len(found['per_depth'])} draft tokens, {found['near_ties']:.2%} more are near ties, log-probabilities {found['difference']:.3f} nats apart"
        )
    elif recipe.training.parity == "warn":
        say(f"[yellow]warning[/] parity of the warm start: {why}")
    else:
        raise OutriderError(
            f"parity of the warm start: before any update, {why}. To train all the same: training.parity=warn"
        )


def _prompts(run: RunDirectory, recipe: Recipe, sequence_ids: Sequence[str]) -> list[list[int]]:
    """Prompts that leave room for an answer and its drafts, drawn by the evaluation's seed."""
    from outrider.data.sequences import load_sequences

    parity = recipe.eval.parity
    room = recipe.serving.engine.max_model_len - parity.max_tokens - recipe.speculator.depth - 1
    order = sorted(sequence_ids)
    random.Random(recipe.eval.seed).shuffle(order)
    prompts: list[list[int]] = []
    for row in load_sequences(run.sequences, order):
        if row["completion_start"] <= room:
            prompts.append(list(row["token_ids"][: row["completion_start"]]))
        if len(prompts) == parity.prompts:
            break
    if not prompts:
        raise OutriderError(
            f"parity of the warm start: no prompt of the validation part leaves room for eval.parity.max_tokens = {parity.max_tokens} "
            f"in serving.engine.max_model_len = {recipe.serving.engine.max_model_len}; lower the one or raise the other"
        )
    return prompts
