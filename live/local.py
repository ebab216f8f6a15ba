"""Runs an endpoint and its users on this machine, for a trial.

    with local_endpoint(load_endpoint("nano_r1"), "runs/march/bundle", say=print) as endpoint:
        with generate_load(endpoint, read_prompts("nano_r1/resume_screening"), users=4) as outcomes:
            ...      # customers' requests go to endpoint.router.listen
    len(outcomes), [outcome for outcome in outcomes if outcome]

Each replica is started with the flags of the release's bundle.json, on a Unix socket and without
vLLM's development mode, and gets its share of the cores. The first release is the target's own
speculator, with the bundle's K. All processes end when this one does, even after kill -9.

Users stream chats one after another. A request fails unless it gets status 200 and a complete
stream.
"""

import contextlib
import gzip
import http.client
import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.common.process_tree import Child
from outrider.live.controller import Say, open_controller
from outrider.live.endpoint_file import SHIPPED_ENDPOINTS, Endpoint, EndpointReplica
from outrider.live.fleet import replicas_of
from outrider.live.releases import Release, Releases, first_release
from outrider.live.router import Router
from outrider.live.state import read_state
from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import LIVE_FLAGS, live_environment
from outrider.serving.bundle.bundle_digest import MANIFEST
from outrider.serving.bundle.bundle_places import local_bundle
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.serve_flags import bundle_command, read_serve_flags
from outrider.serving.server import root_error
from outrider.speculators.lookup_history import HISTORY_FILE

START_S = 300.0
"""Maximum time that a server may take to start, in seconds."""

SHIPPED_TRAFFIC = SHIPPED_ENDPOINTS.parent / "nano_r1" / "traffic"
"""Folder of the logs that come with the package."""

REQUESTS_PER_SESSION = 2
MAX_TOKENS = 160

_STOP_S = 20.0
_TIMEOUT_S = 120.0
_MOST_PROMPTS = 400


@contextlib.contextmanager
def local_endpoint(
    endpoint: Endpoint, bundle: str | Path | None, say: Say = lambda text: None
) -> Iterator[Endpoint]:
    """Starts replicas and router; makes all replicas serve the release in use."""
    for replica in endpoint.replicas:
        if Address.parse(replica.data).healthy():
            raise OutriderError(
                f"{replica.name}: a server answers at {replica.data} already; deploy without"
                " --local, or stop it"
            )
    clients = replicas_of(endpoint)  # creates the private state_dir
    release = started_release(endpoint, bundle)
    with contextlib.ExitStack() as stack:
        started: list[tuple[Child, EndpointReplica]] = []
        target = TargetConfig.model_validate(release.manifest["target"])
        served = "@".join(filter(None, [target.model, target.revision]))
        say(f"starting {len(endpoint.replicas)} replicas of {served} with release {release.name}")
        for replica in endpoint.replicas:
            child = start_replica(endpoint, replica, release)
            stack.callback(child.stop, _STOP_S)
            started.append((child, replica))
        # All of them are started first, because loading takes most of the time.
        for child, replica in started:
            wait_for_replica(child, replica)
            clients[replica.name].status()  # raises if it cannot swap its speculator
        stack.enter_context(running_router(endpoint))
        say(f"router: requests to {endpoint.router.listen}")
        with open_controller(endpoint, say) as controller:
            controller.recover()
        yield endpoint


def start_replica(endpoint: Endpoint, replica: EndpointReplica, release: Release) -> Child:
    """Starts a replica's server with the release's flags, on the replica's share of the cores."""
    command, environment = replica_command(endpoint, replica, release)
    cores = sorted(os.sched_getaffinity(0))
    replica_cores = cores[endpoint.replicas.index(replica) :: len(endpoint.replicas)] or cores
    # Without it, every vLLM on a CPU binds its threads to the same cores. Unused on GPUs.
    environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, replica_cores))
    child = Child(command, endpoint.state_dir / f"{replica.name}.log", replica.name, environment)
    # A replica that starts again while the others serve: its OpenMP runs on each allowed core in
    # turn to learn of it, and waited for minutes for that of a busy replica.
    with contextlib.suppress(ProcessLookupError):  # it has ended; the wait for it says why
        os.sched_setaffinity(child.process.pid, replica_cores)
    return child


def wait_for_replica(child: Child, replica: EndpointReplica) -> None:
    """Waits until the server answers; raises an `OutriderError` if it ends or takes too long."""
    child.wait_until(Address.parse(replica.data).healthy, START_S, root_error)


@contextlib.contextmanager
def running_router(endpoint: Endpoint) -> Iterator[Router]:
    """Runs Envoy until the context ends."""
    router = Router(endpoint)
    child = Child(router.prepare(), router.log_path, "Envoy", os.environ)
    try:
        child.wait_until(router.ready, START_S, root_error)
        yield router
    finally:
        child.stop(_STOP_S)


def started_release(endpoint: Endpoint, bundle: str | Path | None) -> Release:
    """The release in use, else one created from the target's own speculator.

    The new release has the bundle's target and K; without a bundle, `nano_r1` and K = 3. A lookup's
    bundle is started without its history.
    """
    releases = Releases(endpoint.releases)
    serving = read_state(endpoint).serving
    if serving is not None:
        return releases.verified(serving)
    target = TargetConfig()
    k = 3
    method = "greedy"
    if bundle is not None:
        with local_bundle(bundle) as directory:
            read_serve_flags(directory, str(directory))  # checks what is read below
            manifest = read_json(directory / MANIFEST)
            if HISTORY_FILE in manifest["files"]:
                # Until it is deployed, a lookup drafts from the request alone.
                return releases.add_without(directory, keys=None)[0]
        target = TargetConfig.model_validate(manifest["target"])
        k = manifest["num_speculative_tokens"]
        method = manifest["draft_sample_method"]
    # A small share of the GPU, since all replicas of a local endpoint start on the same one.
    engine = EngineConfig(
        max_model_len=2048, max_num_seqs=8, kv_cache_gb=0.5, gpu_memory_utilization=0.2
    )
    return first_release(
        releases=releases,
        directory=target.directory(),
        k=k,
        target=target,
        engine=engine,
        sample_method=method,
    )


def replica_command(
    endpoint: Endpoint, replica: EndpointReplica, release: Release
) -> tuple[list[str], dict[str, str]]:
    """Returns a server's command and its environment, without development mode."""
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


def read_prompts(log: str) -> list[dict[str, object]]:
    """Reads chats from JSON lines with `request.messages`, or from shipped traffic.

    The newest come first, because the speculator was trained on older ones.
    """
    path = Path(log).expanduser()
    if not path.exists():
        path = SHIPPED_TRAFFIC / f"{path.name}.jsonl.gz"
    if not path.is_file():
        raise OutriderError(f"--load {log}: no such file, and no such shipped traffic")
    bodies = []
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                request = json.loads(line)["request"]
                body = {key: request[key] for key in ("messages", "temperature", "top_p")}
                bodies.append(body | {"max_tokens": MAX_TOKENS, "stream": True})
    if not bodies:
        raise OutriderError(f"--load {log}: no line has a `request` with `messages`")
    return bodies[::-1][:_MOST_PROMPTS]


@contextlib.contextmanager
def generate_load(
    endpoint: Endpoint, bodies: Sequence[Mapping[str, object]], users: int = 4
) -> Iterator[list[str]]:
    """Sends requests from one thread per user until the context ends.

    `bodies` are request bodies for /v1/chat/completions. Yields a growing list with an entry for
    each finished request: the error, without any response text, or an empty string on success.
    """
    outcomes: list[str] = []
    numbers = itertools.count()
    ended = threading.Event()

    def use() -> None:
        while not ended.is_set():
            number = next(numbers)
            body = bodies[number % len(bodies)]
            outcomes.append(_request(endpoint, body, f"user-{number // REQUESTS_PER_SESSION}"))

    with ThreadPoolExecutor(users) as pool:
        for _ in range(users):
            pool.submit(use)
        try:
            yield outcomes
        finally:
            ended.set()


def _request(endpoint: Endpoint, body: Mapping[str, object], session: str) -> str:
    """Sends a request; returns the error, or an empty string on success."""
    headers = {
        "Content-Type": "application/json",
        endpoint.router.sticky_header: session,
        "Authorization": f"Bearer {os.environ.get('VLLM_API_KEY', '')}",  # the replicas' key
    }
    address = Address.parse(endpoint.router.listen)
    try:
        with contextlib.closing(address.connect(_TIMEOUT_S)) as connection:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            events = response.read().splitlines()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    if response.status != http.client.OK:
        return f"status {response.status}"
    if any(event.startswith(b'data: {"error"') for event in events):
        return "an error in the stream"
    return "" if b"data: [DONE]" in events else "broke off"
