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

from outrider.live.controller import BundleRefused, controlled, read_state
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of
from outrider.live.journal import Locked
from outrider.live.releases import Releases
from outrider.live.state import PROMOTED
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.bundle.bundle_digest import bundle_digest
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
    directory: Path
    """Its weights; the target's own directory where it serves the target's own layer"""
    k: int
    """Drafts per step"""


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


def base_to_watch(recipe: Recipe, serving: Serving) -> Path | None:
    """The base that the speculator in use is compared with, where it reads the same states.

    None where the base itself is in use.
    """
    base = base_of(recipe.speculator.base, recipe.target.training_directory()).directory
    if base is None or base.resolve() == serving.directory.resolve():
        return None
    return base if kind_of(base).name == kind_of(serving.directory).name else None


def recipe_from(recipe: Recipe, serving: Serving) -> Recipe:
    """The recipe that trains on from the speculator in use: of its kind, and as deep as its K."""
    is_own = serving.directory.resolve() == recipe.target.training_directory().resolve()
    speculator = recipe.speculator.of_kinds([kind_of(serving.directory).name])
    base = None if is_own else str(serving.directory)
    depth = max(speculator.depth, serving.k)
    speculator = speculator.model_copy(update={"base": base, "depth": depth})
    return recipe.model_copy(update={"speculator": speculator})
