"""Faults that `make live` causes while the endpoint serves its users.

with slow_clients(endpoint, count=20) as seconds_borne:
    killed_with_its_verdict(bundle, endpoint)       # the controller
    with restarted_replica(endpoint, endpoint.stable[0], other_release):
        controller.recover()
"""

import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from outrider.live.controller import Controller, open_controller
from outrider.live.endpoint_file import Endpoint, EndpointReplica
from outrider.live.local import start_replica, wait_for_replica
from outrider.live.releases import Release
from outrider.live.state import DeploymentVerdict
from outrider.serving.admin.address import Address

BODY_BYTES = 1_000_000
"""What a slow client promises to send, a byte a second."""


def killed_with_its_verdict(bundle: Path, endpoint: Endpoint) -> bool:
    """Deploys in a process that is killed after its verdict, before the journal has it.

    Returns False if the process ended in another way.
    """
    # A fresh interpreter: a fork would inherit the threads' locks of the users' requests.
    process = multiprocessing.get_context("spawn").Process(target=_deploy, args=(bundle, endpoint))
    process.start()
    process.join()
    return process.exitcode == -signal.SIGKILL


def _deploy(bundle: Path, endpoint: Endpoint) -> None:
    def die(verdict: DeploymentVerdict) -> None:
        if verdict.action != "wait":
            os.kill(os.getpid(), signal.SIGKILL)

    with open_controller(endpoint) as owner:
        controller = Controller(endpoint, owner.journal, on_verdict=die)
        controller.recover()
        controller.deploy(bundle)


@contextlib.contextmanager
def restarted_replica(
    endpoint: Endpoint, replica: EndpointReplica, release: Release
) -> Iterator[None]:
    """Kills a replica's server and starts another in its place, with the command of `release`."""
    for process in _server_processes(replica):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child = start_replica(endpoint, replica, release)
    try:
        wait_for_replica(child, replica)
        yield
    finally:
        child.stop()


def _server_processes(replica: EndpointReplica) -> list[psutil.Process]:
    """The server that listens at the replica's socket, and the processes that it started."""
    path = Address.parse(replica.data).path
    for server in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if path in server.cmdline():
                return [server, *server.children(recursive=True)]
    return []


@contextlib.contextmanager
def slow_clients(endpoint: Endpoint, count: int) -> Iterator[list[float]]:
    """Clients that send the body of a request a byte a second, until the context ends.

    Yields a growing list: for each client that the router ended, the seconds that it had lasted.
    """
    seconds_borne: list[float] = []
    stopped = threading.Event()

    def send_slowly() -> None:
        began = time.monotonic()
        with contextlib.closing(Address.parse(endpoint.router.listen).connect(60)) as connection:
            connection.putrequest("POST", "/v1/chat/completions")
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(BODY_BYTES))
            connection.endheaders()
            try:
                # Something to read: an answer to what is not complete, or the end of it.
                while not select.select([connection.sock], [], [], 1.0)[0]:
                    if stopped.is_set():
                        return
                    connection.send(b" ")
            except OSError:  # the router has closed the connection
                pass
        seconds_borne.append(time.monotonic() - began)

    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(send_slowly)
        try:
            yield seconds_borne
        finally:
            stopped.set()
