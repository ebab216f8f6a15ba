"""A live endpoint, as `adapt-speculator` sees it: the controller of `deploy-speculator`.

deployer = EndpointDeployer(load_endpoint("endpoints/resume.yaml"))
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.live.adapt_state import PROMOTED
from outrider.live.control import InControl
from outrider.live.deploy import deploy_bundle, read_state, recover, replicas_of
from outrider.live.deployer import BASE, Outcome, Serving
from outrider.live.endpoint_file import Endpoint
from outrider.live.releases import Releases
from outrider.live.state import State
from outrider.serving.admin.replica import ReplicaUnreachable
from outrider.serving.bundle.bundle_digest import bundle_digest

BUSY_S = 10.0
"""Seconds between two tries while another process deploys to the endpoint."""


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

    def deploy(self, bundle: Path) -> Outcome:
        """Canary, then promotion or rollback; waits while another process deploys.

        `refused` where the controller began nothing because of the bundle. An `OutriderError`
        where the endpoint does not answer.
        """
        while True:
            try:
                return self._deploy(bundle)
            except InControl as busy:
                self.say(str(busy))
                self.wait(BUSY_S)

    def _deploy(self, bundle: Path) -> Outcome:
        # An earlier call may have been interrupted after the verdict.
        state = recover(self.endpoint, self.say)
        if state.serving is not None and self._is_in_use(bundle, state.serving):
            return Outcome(PROMOTED, self.serving())
        try:
            outcome = deploy_bundle(bundle, self.endpoint, say=self.say).outcome
        except OutriderError as error:
            if isinstance(error, ReplicaUnreachable) or self._refusals() == state.refused:
                raise
            outcome = None
        return Outcome(outcome or "refused", self.serving())

    def _is_in_use(self, bundle: Path, name: str) -> bool:
        return Releases(self.endpoint.releases).get(name).digest == bundle_digest(bundle)

    def _refusals(self) -> int:
        state: State = read_state(self.endpoint)
        return state.refused
