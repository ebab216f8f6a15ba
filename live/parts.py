"""What the controller of an endpoint works with."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from outrider.live import judge
from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.journal import Journal
from outrider.live.metrics import LiveMetrics
from outrider.live.releases import Release, Releases
from outrider.live.router import Router
from outrider.serving.admin.replica import Replica, Watch


@dataclasses.dataclass
class Parts:
    """Journal, releases, replicas, router, judge and clock of an endpoint."""

    journal: Journal
    releases: Releases
    replicas: Mapping[str, Replica]
    """By name, as in the endpoint's file."""
    router: Router
    events: LiveMetrics
    say: Callable[[str], None] = lambda text: None
    decide: Callable[..., judge.Decision] = judge.decide
    """Stable and canary observations since the canary's first share, and the policy."""
    watch_of: Callable[[Release, CanaryPolicy], Watch | None] = judge.watch_of
    """The floor of a release's acceptance, which the replica checks after the swap."""
    clock: Any = time
    """Has `time()` and `sleep(seconds)`, as the module has."""
