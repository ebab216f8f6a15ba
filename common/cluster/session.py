"""A session on a private or an existing Ray cluster.

    with open_cluster(ClusterConfig(address="local"), cpus=2) as session:
        ray.get(...)            # Ray is connected in this process

A private cluster listens on 127.0.0.1 only, has no dashboard, and spills no objects to disk. Its
folder of sockets and logs is in /dev/shm if that is writable. Its processes and folder are removed
with the session, even if this process is killed (common/process_tree.py).

Every node must run the same versions of outrider and Python. The check compares the source files,
because two checkouts may have the same version number. Ray is imported inside functions, because it
is optional.
"""

import contextlib
import logging
import os
import platform
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.cluster.config import ClusterConfig
from outrider.common.errors import OutriderError
from outrider.common.fingerprint import file_digest, value_digest
from outrider.common.process_tree import ProcessTree, changed_environment

_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    # At Ray's default niceness of 15, any other work starves engines in actors.
    "RAY_worker_niceness": "0",
    # 0 keeps CUDA devices visible to tasks without GPUs.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Clusters started by `ray.init` require a token, so other users of the machine cannot connect.
    # If none is set, Ray writes one to the home folder. All sessions of a process use the same
    # token, because Ray's library keeps the first one it reads.
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    # 0 keeps Ray on the loopback device, as on Windows and macOS. Otherwise its processes listen on
    # the machine's network address. Ray reads this variable on import.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""Environment of a private cluster."""
_SYSTEM = {
    "automatic_object_spilling_enabled": False,
    # Ray detects a dead process immediately by its socket; these settings detect lost machines.
    "health_check_period_ms": 3000,
    "health_check_failure_threshold": 5,
}
"""Ray's internal settings for a private cluster."""


class ClusterSession(NamedTuple):
    """A connection of this process to a Ray cluster."""

    address: str
    """HOST:PORT of the head node."""
    folder: Path | None
    """Private folder of a local cluster; None for an existing one."""

    def in_flight_bytes(self, config: ClusterConfig) -> int:
        """Maximum bytes in flight between producers and consumer (`cluster.in_flight_gb`).

        Raises:
            OutriderError: the limit exceeds 80 % of the smallest object store, so one slow consumer
                could fill the store.
        """
        import ray

        living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        store = int(min(resources.get("object_store_memory", 0) for resources in living))
        if config.in_flight_gb is None:
            return store // 2
        limit = int(config.in_flight_gb * 1e9)
        if limit > 0.8 * store:
            raise OutriderError(
                f"cluster.in_flight_gb = {config.in_flight_gb:g}: the smallest object store of the"
                f" cluster has {store / 1e9:.2f} GB and a fifth must stay free; lower it to"
                f" {0.8 * store / 1e9:.2f}, or give Ray a larger store (`ray start"
                " --object-store-memory`; more memory for address: local)"
            )
        return limit


_open: list[ClusterSession] = []
"""The session of this process, if one is open."""


@contextlib.contextmanager
def open_cluster(config: ClusterConfig, cpus: int | None = None) -> Iterator[ClusterSession]:
    """Connects to the cluster at `config.address`; `local` starts a private one.

    `cpus` is the number of cores of a private cluster, by default all. Call this from the main
    thread, because Ray treats the end of the calling thread as the end of the process. If a
    session is already open, yields that one.

    Raises:
        OutriderError: there is no address, Ray is not installed, the cluster does not answer, or
            its nodes run different versions.
    """
    if _open:
        yield _open[-1]
        return
    if config.address is None:
        raise OutriderError("cluster.address is null: set it to local, auto or HOST:PORT")
    try:
        import ray
    except ImportError as error:
        raise OutriderError(
            "cluster.address is set and Ray is not installed; run `pip install -e '.[cluster]'` in"
            " Outrider's checkout, or leave out cluster.address to run on this machine alone"
        ) from error

    with contextlib.ExitStack() as stack:
        folder: Path | None = None
        options: dict[str, Any] = {"address": config.address}
        if config.address == "local":
            folder = stack.enter_context(_private_folder())
            options |= {
                "num_cpus": cpus,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_system_config": _SYSTEM,
                "_temp_dir": str(folder),
            }
            stack.enter_context(_on_loopback())
        session = ClusterSession(connect(options), folder)
        _open.append(session)
        try:
            check_nodes()
            yield session
        finally:
            _open.pop()
            ray.shutdown()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Keeps an already imported Ray on the loopback device (see `_SETTINGS`)."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def connect(options: dict[str, Any]) -> str:
    """Connects this process, keeping its signal handlers; returns the head's address."""
    import ray

    in_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if in_main else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray also raises plain exceptions
        ray.shutdown()
        first = (str(error).splitlines() or [""])[0]
        raise OutriderError(
            f"cluster.address = {options['address']}: {type(error).__name__}: {first}; check it"
            " with `ray status`, and that this machine is a node of the cluster"
        ) from error
    finally:
        for number, handler in handlers.items():  # Ray replaces SIGTERM's
            signal.signal(number, handler)
    return ray.get_runtime_context().gcs_address


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """A private folder and process tree that do not outlive this process."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    # Short, because the path of a Unix socket in it may have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="outrider-", dir=in_memory))
    with (
        ProcessTree(folder=folder) as tree,
        # Ray sets RAY_AUTH_MODE when it starts a cluster, so it is restored too.
        changed_environment(_SETTINGS | tree.environment, ["RAY_AUTH_MODE"]),
    ):
        yield folder


def node_versions() -> str:
    """Versions that must be equal on all nodes, with a source digest."""
    root = Path(__file__).resolve().parents[2]
    rooms = ("common", "speculators", "serving", "data", "training", "eval", "pipeline", "live")
    paths = [path for room in (*rooms, "recipes") for path in (root / room).rglob("*.py")]
    digest = value_digest({str(path.relative_to(root)): file_digest(path) for path in paths})[:8]
    return f"outrider {metadata.version('outrider')} ({digest}), Python {platform.python_version()}"


def check_nodes() -> None:
    """Compares the versions of every live node with those of this process.

    Raises:
        OutriderError: nodes differ; the message names them and their versions.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ours = node_versions()
    ask = ray.remote(num_cpus=0, max_retries=0)(node_versions)
    asked = {}
    for node in ray.nodes():
        if node["Alive"]:
            only_there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"{node['NodeManagerHostname']} (node {node['NodeID'][:8]})"
            asked[name] = ask.options(scheduling_strategy=only_there).remote()
    # One limit for all nodes together: with one for each, ten stuck nodes would take 20 minutes.
    ray.wait([*asked.values()], num_returns=len(asked), timeout=120.0)
    wrong = []
    for name, reference in asked.items():
        try:
            versions = ray.get(reference, timeout=0)
        except (ray.exceptions.NodeDiedError, ray.exceptions.TaskUnschedulableError):
            continue  # the node is dead, since a task without cores fits any live node
        except ray.exceptions.RayError as error:
            versions = f"{type(error).__name__} {str(error).strip()}".splitlines()[-1]
        if versions != ours:
            wrong.append(f"{name}: {versions}")
    if wrong:
        raise OutriderError(
            f"nodes of the cluster differ from this one ({ours}): {'; '.join(wrong)};"
            " install the same outrider there and start Ray again on those nodes"
        )
