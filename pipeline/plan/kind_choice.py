"""What the choice of the kind runs, before anything is trained.

    choice = choice_of_kind(recipe, target_config)
    choice.starts, choice.turns, choice.replays      # 4, 12, 3

The turns and the servers are those of the run (eval/kind_turns.py, eval/bench/servers.py). Two
things are not known yet: base and a trained kind of its name are assumed to have one shape, and all
numbers of drafts to be worth timing. So a run has at most as many turns.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from outrider.eval.bench.servers import Servers
from outrider.eval.kind_turns import REFERENCES, draft_numbers, kind_turns
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.speculator import Speculator
from outrider.speculators.base import base_kind


class KindChoiceCounts(NamedTuple):
    """Counts of one choice among several kinds."""

    starts: int
    """Engine starts."""
    turns: int
    """Kinds and numbers of drafts whose steps are timed."""
    replays: int
    """Speculators with weights, whose drafts on the validation part are replayed."""


@dataclasses.dataclass(frozen=True)
class PlannedSpeculator(Speculator):
    """A speculator that is not trained yet, and has the shape of others of its kind."""

    def swaps_with(self, replacement: Speculator) -> bool:
        """True if one engine can serve both in turn, by swapping the drafter's weights."""
        return self.trainable and replacement.kind == self.kind


def choice_of_kind(recipe: Recipe, target_config: Mapping[str, Any]) -> KindChoiceCounts:
    """Counts what a run of the recipe, which lists several kinds, starts, times and replays."""
    speculators = _planned(recipe, target_config)
    engine = recipe.serving.engine
    drafts = {
        kind: draft_numbers(speculator, recipe.eval, recipe.speculator.depth)
        for kind, speculator in speculators.items()
    }
    # As if every draft were accepted: then each further one is worth timing.
    lengths = {kind: [*range(2, max(numbers) + 2)] for kind, numbers in drafts.items()}
    turns = kind_turns(speculators, lengths, drafts, engine).turns
    # One at a time, each server is a group; side by side, each starts once too.
    servers = Servers(
        target=recipe.target,
        serving=recipe.serving,
        speculators=speculators,
        numbers=drafts,
        log_dir=Path(),
        side_by_side=False,
    )
    return KindChoiceCounts(
        starts=len(servers.groups(turns)),
        turns=len(turns),
        replays=sum(speculator.trainable for speculator in speculators.values()),
    )


def _planned(recipe: Recipe, target_config: Mapping[str, Any]) -> dict[str, Speculator]:
    """The speculators of a choice: the candidates and REFERENCES."""
    base, none = REFERENCES
    in_use = base_kind(recipe.speculator.base, target_config)
    kinds = {kind: kind for kind in recipe.speculator.candidates}
    kinds[base] = none if in_use is None else in_use.name
    kinds[none] = none
    return {name: PlannedSpeculator(kind) for name, kind in kinds.items()}
