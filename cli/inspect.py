"""`outrider inspect`: reports a log's contents, usable share and training cost."""

import sys

from outrider.cli.options import AsJson, Overrides, RecipeName
from outrider.cli.printing import print_json
from outrider.common.errors import OutriderError, UsageError


def inspect_traffic(
    recipe: RecipeName | None = None,
    *overrides: Overrides,
    first: int | None = None,
    samples: int | None = None,
    as_json: AsJson = False,
) -> int:
    """Report a log's contents, its usable share, and what lookup would deliver.

    Writes nothing. For logs without a recipe, give traffic.path=LOGS [target.model=DIR].

    Parameters
    ----------
    first
        Read only the first N rows of each file.
    samples
        Print N sequences with the trained tokens marked; the output contains customer text.
        Default: 2 on a terminal, otherwise 0.
    as_json
        Print one JSON object instead, without customer text.
    """
    _check_options(first, samples, as_json)
    # Without a recipe, the first override is in its place.
    if recipe is not None and "=" in recipe:
        overrides = (recipe, *overrides)
        recipe = None
    if recipe is None and not any("traffic.path" in word for word in overrides):
        raise UsageError(
            "nothing to inspect: give a recipe, or traffic.path=LOGS for logs without a recipe"
        )

    if recipe is None and not any("speculator.kind" in word for word in overrides):
        # Lookups suit every target; the default kind and base need an MTP layer.
        from outrider.speculators.kinds import lookup_names

        of_any_target = (f"speculator.kind={lookup_names()[0]}", "speculator.base=none")
        overrides = (*of_any_target, *overrides)

    from outrider.pipeline.paths import check_paths
    from outrider.pipeline.recipe.load import load_overrides, load_recipe

    loaded = load_recipe(recipe, list(overrides)) if recipe else load_overrides(list(overrides))
    check_paths(loaded.recipe)

    from rich.console import Console

    from outrider.common.process_tree import stopped_by_signal
    from outrider.pipeline.inspection import inspect_recipe, print_inspection

    if samples is None:
        samples = 2 if sys.stdout.isatty() and not as_json else 0
    with stopped_by_signal():
        facts, sequences = inspect_recipe(loaded.recipe, first, samples)
    if as_json:
        print_json(facts)
    else:
        console = Console()
        print_inspection(facts, console)
        for sequence in sequences:
            console.print(sequence, soft_wrap=True)
    if facts["problems"]:
        raise OutriderError("\n".join(facts["problems"]))
    return 0


def _check_options(first: int | None, samples: int | None, as_json: bool) -> None:
    for option, value, least in (("--first", first, 1), ("--samples", samples, 0)):
        if value is not None and value < least:
            raise UsageError(f"{option} {value}: give a number from {least}")
    if as_json and samples:
        raise UsageError(
            "--samples prints customer text, which --json never contains; give one of them"
        )
