"""The time that a run has left by its plan, as `outrider train` prints it.

    seconds = seconds_left(run, recipe, ["capture", "train"])     # {"capture": 180.0, ...}
    in_one_line(seconds)        # "about 7 min on this machine by the plan: capture 3 min, ..."

Stages that are left count as planned, whatever earlier ones took: prefill, training steps and
engine starts have different limits, so the error of one says little about the next. But the plan is
computed again before each stage, from the tokens that ingest and split have counted by then.
"""

from collections.abc import Iterable, Mapping

from outrider.eval.report.formatting import duration
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.serving.config import EMBEDDED_TARGETS

WIDTH = 120
"""Columns of the line at most."""


def seconds_left(run: RunDirectory, recipe: Recipe, names: Iterable[str]) -> dict[str, float]:
    """Planned seconds of stages on this machine; empty if the plan has none for it."""
    # Slow to import, and needed only in the command's process, not in those of its stages.
    from outrider.pipeline.plan.training_cost import card_here, price

    card, _ = card_here()
    # Without a GPU, a plan assumes one, except for the embedded target.
    if card is None and recipe.target.model not in EMBEDDED_TARGETS:
        return {}
    cost = price(run, recipe)
    # A log of unknown size, such as one in a store, counts as empty.
    if "missing" in cost or cost["traffic"]["log"] == 0:
        return {}
    seconds = {name: sum(cost["stages"].get(name, {}).values()) for name in names}
    return {name: value for name, value in seconds.items() if value > 0}


def in_one_line(seconds: Mapping[str, float]) -> str:
    """Total and stages in their order; the shortest stages are left out beyond `WIDTH`."""
    shown = [*seconds]
    for name in sorted(seconds, key=seconds.__getitem__):
        parts = ", ".join(f"{stage} {duration(seconds[stage])}" for stage in shown)
        more = "" if len(shown) == len(seconds) else ", ..."
        total = duration(sum(seconds.values()))
        line = f"about {total} on this machine by the plan: {parts}{more}"
        if len(line) <= WIDTH:
            break
        shown.remove(name)
    return line
