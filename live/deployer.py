"""What `adapt-speculator` needs of a live endpoint: what it serves, and a way to deploy.

deployer = EndpointDeployer(load_endpoint("endpoints/resume.yaml"))
deployer.serving()
outcome = deployer.deploy(bundle)         # returns after promotion or rollback
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.adapt_state import PROMOTED
from outrider.live.control import InControl
from outrider.live.deploy import deploy_bundle, read_state, recover, replicas_of
from outrider.live.endpoint_file import Endpoint
from outrider.live.releases import Releases
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.admin.replica import ReplicaUnreachable
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest
from outrider.speculators.base import base_of
from outrider.speculators.kinds import kind_of

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

    def serving(self) -> Serving:
        """The release in use; before the first one, what a stable replica was started with."""
        name = read_state(self.endpoint).serving
        if name is not None:
            release = Releases(self.endpoint.releases).get(name)
            return Serving(name, release.directory, release.k)
        stable = self.endpoint.stable[0].name
        status = replicas_of(self.endpoint)[stable].status()
        return Serving(BASE, Path(status.directory), status.k)

    def deploy(self, bundle: Path) -> str:
        """`promoted` or `rolled_back`; waits while another process deploys.

        It may be called again with a bundle that was deployed before. `refused` where the
        controller began nothing because of the bundle. An `OutriderError` where the endpoint does
        not answer.
        """
        while True:
            try:
                return self._deploy(bundle)
            except InControl as busy:
                self.say(str(busy))
                self.wait(BUSY_S)

    def _deploy(self, bundle: Path) -> str:
        # An earlier call may have been interrupted after the verdict.
        state = recover(self.endpoint, self.say)
        if state.serving is not None and self._is_in_use(bundle, state.serving):
            return PROMOTED
        try:
            return str(deploy_bundle(bundle, self.endpoint, say=self.say).outcome)
        except OutriderError as error:
            if (
                isinstance(error, ReplicaUnreachable)
                or read_state(self.endpoint).refused == state.refused
            ):
                raise
            return "refused"

    def _is_in_use(self, bundle: Path, name: str) -> bool:
        return Releases(self.endpoint.releases).get(name).digest == bundle_digest(bundle)


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
