"""Lengths and learning rate that follow from the target, where the recipe leaves them out.

    recipe = with_target_defaults(recipe, read_json(target / "config.json"))

A value that the recipe or the command line sets always wins.
"""

from collections.abc import Mapping
from typing import Any

from outrider.pipeline.recipe.recipe import Recipe
from outrider.speculators.kinds import DEFAULT_KIND

MAX_MODEL_LEN = 32_768
"""Largest default of `serving.engine.max_model_len`. R1 has 163,840 positions; few logs need them,
and the engine must have room for one request of this length in its KV cache."""

TUNED_WIDTH = 192
WARM_RATE, SCRATCH_RATE = 1e-3, 2e-3
"""The learning rates that were tuned on nano R1, and its hidden size."""


def learning_rate(tuned: float, hidden_size: int) -> float:
    """A learning rate tuned on nano R1, for a layer of another width; one significant digit.

    Adam's best rate for matrices falls as 1 / width (muP, Yang et al. 2022). 1e-3 becomes 3e-5 at
    R1's width of 7168. A new head starts at 2e-3, which becomes 5e-5.
    """
    return float(f"{tuned * TUNED_WIDTH / hidden_size:.0e}")


def left_out(recipe: Recipe) -> bool:
    """Whether a key that the target decides has no value in the recipe."""
    training = recipe.training.model_fields_set
    return (
        recipe.speculator.kind != DEFAULT_KIND
        or not {"learning_rate", "row_tokens"} <= training
        or "max_model_len" not in recipe.serving.engine.model_fields_set
    )


def with_target_defaults(recipe: Recipe, target_config: Mapping[str, Any]) -> Recipe:
    """The recipe with every value that its target decides."""
    training, engine = recipe.training, recipe.serving.engine
    width = target_config["hidden_size"]
    length = min(target_config.get("max_position_embeddings", MAX_MODEL_LEN), MAX_MODEL_LEN)
    engine = _filled(engine, max_model_len=length)
    training = _filled(
        training,
        learning_rate=learning_rate(WARM_RATE, width),
        row_tokens=engine.max_model_len,
    )
    scratch = _filled(training.scratch, learning_rate=learning_rate(SCRATCH_RATE, width))
    training = training.model_copy(update={"scratch": scratch})
    serving = recipe.serving.model_copy(update={"engine": engine})
    return recipe.model_copy(update={"training": training, "serving": serving})


def _filled(section: Any, **defaults: Any) -> Any:
    """A copy of the section with those defaults that it does not set."""
    missing = {key: value for key, value in defaults.items() if key not in section.model_fields_set}
    return section.model_copy(update=missing)
