"""Deployments to a live endpoint, as the commands and adapt-speculator call them.

    deployment = deploy_bundle(Path("runs/march/bundle"), load_endpoint("endpoints/resume.yaml"))
    deployment.outcome          # promoted or rolled_back; `reason` and `figures` say why

An `OutriderError` means that nothing was begun (a bad bundle, a replica that does not answer), or
that a replica refuses to go back; `--recover` is then the way on.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import says_disk_is_full
from outrider.live.control import InControl, ask, controller, controlling
from outrider.live.controller import Controller
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Journal, read_journal
from outrider.live.metrics import LiveMetrics
from outrider.live.parts import Parts
from outrider.live.releases import Releases
from outrider.live.router import Router
from outrider.live.state import Action, Deployment, State, fold
from outrider.serving.admin.replica import Replica
from outrider.serving.bundle.bundle_places import local_bundle, pinned

JOURNAL = "journal.jsonl"

_FOLLOW_S = 0.5

Say = Callable[[str], None]


@contextlib.contextmanager
def controlled(
    endpoint: Endpoint, say: Say = lambda text: None, events: LiveMetrics | None = None
) -> Iterator[Controller]:
    """The controller of an endpoint, with its lock held and its journal open."""
    with (
        controlling(endpoint.state_dir),
        _full_disks_named(endpoint),
        Journal(journal_path(endpoint)) as journal,
    ):
        parts = Parts(
            journal,
            Releases(endpoint.releases),
            replicas_of(endpoint),
            Router(endpoint),
            events or LiveMetrics(endpoint.name),
            say,
        )
        yield Controller(endpoint, parts)


def deploy_bundle(
    bundle: str | Path,
    endpoint: Endpoint,
    in_place: bool = False,
    say: Say = lambda text: None,
    events: LiveMetrics | None = None,
) -> Deployment:
    """Tests a bundle on the endpoint's canary and promotes it or rolls it back; blocks until then.

    `bundle` is a folder, or an address that `export-speculator --to` wrote. A deployment that was
    interrupted is finished first.
    """
    source = pinned(bundle)
    with controlled(endpoint, say, events) as live, local_bundle(source) as directory:
        live.recover()
        return live.deploy(directory, in_place, source)


def recover(endpoint: Endpoint, say: Say = lambda text: None) -> State:
    """Finishes what was interrupted, and brings every replica to the release in use."""
    with controlled(endpoint, say) as live:
        return live.recover()


def end_deployment(
    endpoint: Endpoint, action: Action, by: str = "operator", say: Say = lambda text: None
) -> Deployment:
    """`--promote` and `--rollback`: of the deployment in progress, else of the one in use.

    Where another process is at it, it is asked, and its end is waited for.
    """
    try:
        with controlled(endpoint, say) as live:
            if action == "promote":
                return live.promote()
            before = live.state.last
            ended = live.recover().last
            if ended is not None and ended != before and ended.went_back:
                return ended
            return live.roll_back()
    except InControl as busy:
        return _asked(endpoint, action, by, say, busy)


def read_state(endpoint: Endpoint) -> State:
    """What the journal says; needs no lock."""
    return fold(read_journal(journal_path(endpoint)))


def journal_path(endpoint: Endpoint) -> Path:
    """The endpoint's journal."""
    return endpoint.state_dir / JOURNAL


def replicas_of(endpoint: Endpoint) -> dict[str, Replica]:
    """A client for each replica, by name."""
    token = endpoint.admin_token()
    return {each.name: Replica(each.admin, each.data, token) for each in endpoint.replicas}


def _asked(endpoint: Endpoint, action: Action, by: str, say: Say, busy: InControl) -> Deployment:
    open_now = read_state(endpoint).open
    if open_now is None:
        raise busy
    ask(endpoint.state_dir, action, by)
    say(f"process {busy.pid} was asked to {action.replace('_', ' ')} deployment {open_now.id}")
    while True:
        last = read_state(endpoint).last
        if last is not None and last.id == open_now.id:
            return last
        if controller(endpoint.state_dir) is None:
            raise OutriderError(
                f"process {busy.pid} ended before the deployment did; run the command again"
            )
        time.sleep(_FOLLOW_S)


@contextlib.contextmanager
def _full_disks_named(endpoint: Endpoint) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not says_disk_is_full(error):
            raise
        raise OutriderError(
            f"{endpoint.state_dir}: no space left on the disk; free some and run"
            " `deploy-speculator --recover`"
        ) from error
