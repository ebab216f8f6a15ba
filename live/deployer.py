"""What `adapt-speculator` needs of a live endpoint: what it serves, and a way to deploy.

serving = deployer.serving()
outcome = deployer.deploy(bundle)         # returns after promotion or rollback
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.adapt_state import PROMOTED
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.bundle.bundle import MANIFEST
from outrider.speculators.base import base_of
from outrider.speculators.kinds import kind_of

BASE = "base"
"""Name of the speculator in use before the first release."""


@dataclass(frozen=True)
class Serving:
    """The speculator in use."""

    name: str
    """Of its release, or `BASE`"""
    directory: Path | None
    """None: the recipe's `speculator.base`"""
    k: int | None = None
    """Drafts per step, where the endpoint tells it"""


@dataclass(frozen=True)
class Outcome:
    """How a deployment ended."""

    outcome: str
    """`promoted`, or in one word what happened instead"""
    serving: Serving
    """The speculator in use afterwards"""

    @property
    def promoted(self) -> bool:
        """Whether the new speculator serves."""
        return self.outcome == PROMOTED


class Deployer(Protocol):
    """A live endpoint."""

    def serving(self) -> Serving:
        """The speculator in use now."""

    def deploy(self, bundle: Path) -> Outcome:
        """Brings a bundle to the endpoint: canary, then promotion or rollback.

        It may be called again with a bundle that was deployed before.
        """


@dataclass(frozen=True)
class InUse:
    """The speculator in use, and the recipe of the next step: of its kind, trained from it."""

    name: str
    directory: Path
    k: int
    """Drafts per step, as served"""
    recipe: Recipe


def in_use(recipe: Recipe, serving: Serving) -> InUse:
    """The recipe that follows the speculator in use.

    An `OutriderError` where it has no weights to train from.
    """
    target_dir = recipe.target.training_directory()
    base = recipe.speculator.base if serving.directory is None else str(serving.directory)
    if serving.directory is not None and serving.directory.resolve() == target_dir.resolve():
        base = None  # servers that were started with the target's own
    found = base_of(base, target_dir)
    if found.directory is None:
        raise OutriderError(
            f"speculator.base = {base}: {found.kind.in_words} has no weights to train on from;"
            " deploy a trained speculator first (train-speculator, deploy-speculator)"
        )
    speculator = recipe.speculator.of_kinds([kind_of(found.directory).name])
    k = serving.k or _k(found.directory, recipe)
    speculator = speculator.model_copy(update={"base": base, "depth": max(speculator.depth, k)})
    return InUse(
        serving.name,
        found.directory,
        k,
        recipe.model_copy(update={"speculator": speculator}),
    )


def _k(directory: Path, recipe: Recipe) -> int:
    """Of the bundle; else the recipe's current or fixed K, else its depth."""
    if (directory / MANIFEST).is_file():
        return int(read_json(directory / MANIFEST)["num_speculative_tokens"])
    if recipe.eval.current_k is not None:
        return recipe.eval.current_k
    return recipe.speculator.depth if recipe.eval.k == "auto" else recipe.eval.k
