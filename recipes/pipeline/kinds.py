"""The kinds of drafter that a run trains: `speculator.kind: auto` becomes the target's kinds.

    recipe = with_kinds(recipe)       # speculator.kind is a name or a list of names

Which kinds a target supports follows from its config.json. Of a hub model that is not on this
machine, only that file is downloaded.
"""

import tempfile
from pathlib import Path

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.pipeline.preflight import local_target
from outrider.speculators.base import supported_kinds
from outrider.speculators.config import AUTO
from outrider.speculators.kinds import DEFAULT_KIND


def with_kinds(recipe: Recipe, target_dir: Path | None = None) -> Recipe:
    """The recipe with `auto` replaced; prints which kinds it stands for.

    `target_dir` is a directory with the target's config.json, where it is known.
    """
    if recipe.speculator.kind != AUTO:
        return recipe
    if found := target_dir or local_target(recipe):
        return _replaced(recipe, found)
    with tempfile.TemporaryDirectory(prefix="config-") as scratch:
        try:
            return _replaced(recipe, recipe.target.fetch(("config.json",), Path(scratch)))
        except OutriderError as error:
            raise OutriderError(
                f"speculator.kind = {AUTO}: which kinds the target supports is not known ({error});"
                f" name them, such as speculator.kind={DEFAULT_KIND}"
            ) from None


def _replaced(recipe: Recipe, target_dir: Path) -> Recipe:
    names, others = supported_kinds(recipe.speculator.base, target_dir)
    if not names:
        reasons = "; ".join(f"{name}: {why}" for name, why in others.items())
        raise OutriderError(
            f"speculator.kind = {AUTO}: {recipe.target.model} supports no kind that trains"
            f" ({reasons}); use another target.model"
        )
    text = f"speculator.kind = {AUTO}: {', '.join(names)}"
    text += "".join(f"; not {name}: {why}" for name, why in others.items())
    Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
    return recipe.of_kinds(names)
