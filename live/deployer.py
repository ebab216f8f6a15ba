"""What `adapt-speculator` needs of a live endpoint: what it serves, and a way to deploy.

deployer = EndpointDeployer(load_endpoint("endpoints/resume.yaml"))
deployer.serving()
outcome = deployer.deploy(bundle)         # returns after promotion or rollback
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.controller import BundleRefused, controlled, read_state
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of
from outrider.live.journal import Locked
from outrider.live.releases import Releases
from outrider.live.state import PROMOTED
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest
from outrider.speculators.base import base_of
from outrider.speculators.kinds import kind_of

if TYPE_CHECKING:
    from outrider.live.metrics import LiveMetrics

BUSY_S = 10.0
"""Seconds between two tries while another process deploys to the endpoint."""

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


@dataclass
class EndpointDeployer:
    """Reads the endpoint's journal and its replicas; deploys through its controller."""

    endpoint: Endpoint
    say: Callable[[str], None] = lambda text: None
    wait: Callable[[float], None] = time.sleep
    metrics: "LiveMetrics | None" = None
    """Kept up to date."""

    def serving(self) -> Serving:
        """The release in use; before the first one, what a stable replica was started with."""
        name = read_state(self.endpoint).serving
        if name is not None:
            release = Releases(self.endpoint.releases).get(name)
            return Serving(name, release.directory, release.k)
        status = replicas_of(self.endpoint)[self.endpoint.stable[0].name].status()
        return Serving(BASE, Path(status.directory), status.k)

    def deploy(self, bundle: Path) -> str:
        """`promoted` or `rolled_back`; waits while another process deploys.

        It may be called again with a bundle that was deployed before. `refused` where the
        controller began nothing because of the bundle. An `OutriderError` where the endpoint does
        not answer.
        """
        while True:
            try:
                with controlled(self.endpoint, self.say, self.metrics) as controller:
                    # An earlier call may have been interrupted after the verdict.
                    serving = controller.recover().serving
                    if serving and controller.releases.get(serving).digest == bundle_digest(bundle):
                        return PROMOTED
                    return str(controller.deploy(bundle).outcome)
            except BundleRefused:
                return "refused"
            except Locked as busy:
                self.say(str(busy))
                self.wait(BUSY_S)


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
    k = serving.k or _k(found.directory, recipe)
    speculator = recipe.speculator.of_kinds([kind_of(found.directory).name])
    speculator = speculator.model_copy(update={"base": base, "depth": max(speculator.depth, k)})
    recipe = recipe.model_copy(update={"speculator": speculator})
    return InUse(serving.name, found.directory, k, recipe)


def _k(directory: Path, recipe: Recipe) -> int:
    """Of the bundle; else the recipe's current or fixed K, else its depth."""
    if (directory / MANIFEST).is_file():
        return int(read_json(directory / MANIFEST)["num_speculative_tokens"])
    if recipe.eval.current_k is not None:
        return recipe.eval.current_k
    return recipe.speculator.depth if recipe.eval.k == "auto" else recipe.eval.k
