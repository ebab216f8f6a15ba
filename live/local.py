"""An endpoint on this machine: its replicas and Envoy as child processes, for a trial.

    with local_endpoint(load_endpoint("nano_r1"), "runs/march/bundle", say=print) as endpoint:
        ...      # customers' requests go to endpoint.router.listen

Each replica is started with the flags of the release's bundle.json, on a Unix socket and without
vLLM's development mode, and gets its share of the cores. The first release is the target's own
speculator, with the bundle's K. All processes end with this one, also after kill -9.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

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
from outrider.serving.bundle.bundle_digest import MANIFEST
from outrider.serving.bundle.bundle_places import local_bundle
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command
from outrider.serving.server import root_error

START_S = 300.0
"""Longest start of a server, in seconds."""

_STOP_S = 20.0
_FIRST_K = 3
"""Drafts per step where no bundle says how many."""

Say = Callable[[str], None]


@contextlib.contextmanager
def servers() -> Iterator[dict[str, Child]]:
    """Servers as child processes, by name; leaving the context ends them."""
    started: dict[str, Child] = {}
    try:
        yield started
    finally:
        # All at once: vLLM takes seconds to free its shared memory after SIGTERM.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda child: child.stop(_STOP_S), started.values()))


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
    with servers() as started:
        cores = sorted(os.sched_getaffinity(0))
        for index, each in enumerate(endpoint.replicas):
            command, environment = replica_command(endpoint, each, release)
            share = cores[index :: len(endpoint.replicas)] or cores
            threads = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, share))}  # none on a GPU
            log = endpoint.state_dir / f"{each.name}.log"
            started[each.name] = Child(command, log, each.name, environment | threads)
        say(f"starting {len(replicas)} replicas with release {release.name}")
        for name, replica in replicas.items():
            started[name].wait_until(partial(_answers, replica), START_S, root_error)
        start_router(started, endpoint)
        say(f"router: requests to {endpoint.router.listen}")
        with controlled(endpoint, say) as controller:
            controller.recover()
        yield endpoint


def start_router(started: dict[str, Child], endpoint: Endpoint) -> Router:
    """Starts Envoy, and returns when it takes requests."""
    router = Router(endpoint)
    started["Envoy"] = Child(router.prepare(), router.log_path, "Envoy", os.environ)
    started["Envoy"].wait_until(router.ready, START_S, root_error)
    return router


def started_release(endpoint: Endpoint, bundle: str | Path | None) -> Release:
    """The release in use, or else the target's own speculator as a first one, with the bundle's K.

    Its target is the bundle's, or the embedded one.
    """
    releases = Releases(endpoint.releases)
    if (serving := read_state(endpoint).serving) is not None:
        return releases.verified(serving)
    target, k, method = TargetConfig(), _FIRST_K, "greedy"
    if bundle is not None:
        with local_bundle(bundle) as directory:
            manifest = read_json(directory / MANIFEST)
        target = TargetConfig.model_validate(manifest["target"])
        k, method = manifest["num_speculative_tokens"], manifest["draft_sample_method"]
    engine = EngineConfig(max_model_len=2048, max_num_seqs=8, kv_cache_gb=0.5)
    return first_release(releases, target.directory(), True, target, engine, k, method)


def replica_command(
    endpoint: Endpoint, replica: EndpointReplica, release: Release
) -> tuple[list[str], dict[str, str]]:
    """The command of one server, and its environment, without development mode."""
    command, variables = bundle_command(release.directory)
    address = Address.parse(replica.data)
    if address.path is not None:
        Path(address.path).unlink(missing_ok=True)
        command += ["--uds", address.path]
    else:
        command += ["--host", str(address.host), "--port", str(address.port)]
    inherited = {k: v for k, v in os.environ.items() if k != "VLLM_SERVER_DEV_MODE"}
    live = live_environment([endpoint.releases], replica.admin, endpoint.admin_token_file)
    return [*command, *LIVE_FLAGS], inherited | variables | live


def _answers(replica: Replica) -> bool:
    try:
        return replica.healthy() and bool(replica.status())
    except ReplicaUnreachable:
        return False
