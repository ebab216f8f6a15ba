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
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.process_tree import ProcessTree
from outrider.live.deploy import read_state, recover, replicas_of
from outrider.live.endpoint_file import Endpoint, EndpointReplica
from outrider.live.releases import Release, Releases, first_release
from outrider.live.router import Router
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import LIVE_FLAGS, live_environment
from outrider.serving.admin.replica import ReplicaUnreachable
from outrider.serving.bundle.bundle_places import local_bundle
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command

START_S = 300.0
"""Longest start of the replicas, in seconds."""

_STOP_S = 20.0
_FIRST_K = 3
"""Drafts per step where no bundle says how many."""

Say = Callable[[str], None]


@contextlib.contextmanager
def local_endpoint(
    endpoint: Endpoint, bundle: str | Path | None, say: Say = lambda text: None
) -> Iterator[Endpoint]:
    """Starts replicas and router, and brings the replicas to the release in use."""
    _check_nobody_is_there(endpoint)
    release = started_release(endpoint, bundle)
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(ProcessTree())
        shares = core_shares(len(endpoint.replicas))
        processes = {}
        for each, cores in zip(endpoint.replicas, shares, strict=True):
            log = stack.enter_context(_log(endpoint, each).open("ab"))
            command, environment = replica_command(endpoint, each, release)
            threads = {"VLLM_CPU_OMP_THREADS_BIND": cores}  # no effect on a GPU
            processes[each.name] = subprocess.Popen(
                command,
                env=environment | threads | tree.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        stack.callback(_stop, list(processes.values()))
        say(f"starting {len(processes)} replicas with release {release.name}")
        _wait(endpoint, processes)
        stack.enter_context(Router(endpoint))
        say(f"router: requests to {endpoint.router.listen}")
        recover(endpoint, say)
        yield endpoint


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


def core_shares(replicas: int) -> list[str]:
    """Cores of each replica as vLLM lists them: disjoint where there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [cores[index::replicas] for index in range(replicas)]
    return [",".join(map(str, share or cores)) for share in shares]


def _check_nobody_is_there(endpoint: Endpoint) -> None:
    for name, replica in replicas_of(endpoint).items():
        if replica.healthy():
            raise OutriderError(
                f"{name}: a server answers at {replica.data} already; deploy without --local, or"
                " end it"
            )
    for each in endpoint.replicas:
        if (path := Address.parse(each.data).path) is not None:
            Path(path).unlink(missing_ok=True)


def _log(endpoint: Endpoint, replica: EndpointReplica) -> Path:
    path = endpoint.state_dir / f"{replica.name}.log"
    path.touch(mode=0o600)
    return path


def _wait(endpoint: Endpoint, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    """Returns when every replica answers; an `OutriderError` with the end of a log otherwise."""
    deadline = time.monotonic() + START_S
    waiting = replicas_of(endpoint)
    logs = {each.name: _log(endpoint, each) for each in endpoint.replicas}
    while waiting:
        for name, replica in list(waiting.items()):
            if (code := processes[name].poll()) is not None:
                raise OutriderError(f"{name} ended with code {code}; {_end(logs[name])}")
            if time.monotonic() > deadline:
                raise OutriderError(f"{name} did not answer in time; {_end(logs[name])}")
            with contextlib.suppress(ReplicaUnreachable):
                if replica.healthy():
                    replica.status()
                    del waiting[name]
        time.sleep(0.25)


def _end(log: Path, lines: int = 20) -> str:
    end = "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return f"{log} ends:\n{end}"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM to all, so that vLLM frees its shared memory; the tree's guard ends the rest."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))
