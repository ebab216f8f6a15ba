"""An endpoint on this machine: its replicas and Envoy as child processes, for a trial.

    with local_endpoint(load_endpoint("nano_r1"), "runs/march/bundle", say=print) as endpoint:
        ...      # customers' requests go to endpoint.router.listen

Each replica is started with the flags of the release's bundle.json, on a Unix socket and without
vLLM's development mode, and gets its share of the cores. The first release is the target's own
speculator, with the bundle's K. All processes end with this one, also after kill -9.
"""

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.process_tree import Child
from outrider.live.controller import controlled, read_state
from outrider.live.endpoint_file import Endpoint, EndpointReplica
from outrider.live.fleet import replicas_of
from outrider.live.releases import Release, Releases, first_release
from outrider.live.router import Router
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import LIVE_FLAGS, live_environment
from outrider.serving.admin.replica import Replica, ReplicaUnreachable
from outrider.serving.bundle.bundle_places import local_bundle
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command
from outrider.serving.server import root_error

START_S = 300.0
"""Longest start of a server, in seconds."""

_STOP_S = 20.0
_FIRST_K = 3
"""Drafts per step where no bundle says how many."""

Say = Callable[[str], None]


class Children:
    """Servers as child processes, each with a log; leaving the context ends them."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}

    @property
    def processes(self) -> dict[str, subprocess.Popen[str]]:
        """By name."""
        return {name: child.process for name, child in self._children.items()}

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        # All at once: vLLM takes seconds to free its shared memory after SIGTERM.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda child: child.stop(_STOP_S), self._children.values()))

    def start(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        """Starts a server; `log` is private, and gets its output."""
        self._children[name] = Child(command, log, name, environment)

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Returns when a server is ready; an `OutriderError` with its first error otherwise."""
        self._children[name].wait_until(ready, START_S, root_error)


@contextlib.contextmanager
def local_endpoint(
    endpoint: Endpoint, bundle: str | Path | None, say: Say = lambda text: None
) -> Iterator[Endpoint]:
    """Starts replicas and router, and brings the replicas to the release in use."""
    replicas = replicas_of(endpoint)
    for name, replica in replicas.items():
        if replica.healthy():
            raise OutriderError(
                f"{name}: a server answers at {replica.data} already; deploy without --local, or"
                " end it"
            )
    release = started_release(endpoint, bundle)
    with Children() as children:
        cores = sorted(os.sched_getaffinity(0))
        for index, each in enumerate(endpoint.replicas):
            if (path := Address.parse(each.data).path) is not None:
                Path(path).unlink(missing_ok=True)
            command, environment = replica_command(endpoint, each, release)
            share = cores[index :: len(endpoint.replicas)] or cores
            threads = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, share))}  # none on a GPU
            log = endpoint.state_dir / f"{each.name}.log"
            children.start(each.name, command, log, environment | threads)
        say(f"starting {len(replicas)} replicas with release {release.name}")
        for name, replica in replicas.items():
            children.wait(name, partial(_answers, replica))
        start_router(children, endpoint)
        say(f"router: requests to {endpoint.router.listen}")
        with controlled(endpoint, say) as controller:
            controller.recover()
        yield endpoint


def start_router(children: Children, endpoint: Endpoint) -> Router:
    """Starts Envoy, and returns when it takes requests."""
    router = Router(endpoint)
    children.start("Envoy", router.prepare(), router.log_path, os.environ)
    children.wait("Envoy", router.ready)
    return router


def started_release(endpoint: Endpoint, bundle: str | Path | None) -> Release:
    """The release in use, or else the target's own speculator as a first one."""
    releases = Releases(endpoint.releases)
    if (serving := read_state(endpoint).serving) is not None:
        return releases.verified(serving)
    if bundle is None:
        return base_release(releases, TargetConfig(), _FIRST_K)
    with local_bundle(bundle) as directory:
        manifest = read_json(directory / "bundle.json")
    return base_release(
        releases,
        TargetConfig.model_validate(manifest["target"]),
        int(manifest["num_speculative_tokens"]),
        manifest["draft_sample_method"],
    )


def base_release(
    releases: Releases, target: TargetConfig, k: int, draft_sample_method: Any = "greedy"
) -> Release:
    """The target's own speculator, as a release that drafts `k` tokens per step."""
    serving = ServingConfig(
        engine=EngineConfig(max_model_len=2048, max_num_seqs=8, kv_cache_gb=0.5),
        draft_sample_method=draft_sample_method,
    )
    return first_release(releases, target.directory(), True, target, serving, k)


def replica_command(
    endpoint: Endpoint, replica: EndpointReplica, release: Release
) -> tuple[list[str], dict[str, str]]:
    """The command of one server, and its environment, without development mode."""
    command, variables = bundle_command(release.directory)
    address = Address.parse(replica.data)
    if replica.command is not None:
        command = shlex.split(replica.command)
        variables = {"PYTHON": sys.executable, "HF_HUB_OFFLINE": "1"}  # for a serve.sh
    elif address.path is not None:
        command += ["--uds", address.path, *LIVE_FLAGS]
    else:
        command += ["--host", str(address.host), "--port", str(address.port), *LIVE_FLAGS]
    inherited = {k: v for k, v in os.environ.items() if k != "VLLM_SERVER_DEV_MODE"}
    live = live_environment([endpoint.releases], replica.admin, endpoint.admin_token_file)
    return command, inherited | variables | live


def _answers(replica: Replica) -> bool:
    try:
        return replica.healthy() and bool(replica.status())
    except ReplicaUnreachable:
        return False
