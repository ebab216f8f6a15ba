"""The process that imports and forks.

A request is its length, JSON and descriptors on a connection of the socket `ADDRESS`. The answer is
the child's id and, when it has ended, its exit status.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import itertools
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.serving.vllm_hooks.process_start import FORK
from tests.training.forked_ranks import PRELOADED

ADDRESS = "OUTRIDER_TEST_WARM_PROCESS"
"""Environment variable: the socket of the process that forks."""
IMPORTED = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.openai.api_server",
    "vllm.benchmarks.serve",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.deepseek_mtp",
    "vllm.model_executor.models.llama_eagle3",
    "outrider.serving.bundle.bundle",
    "outrider.pipeline.stages.registry",
    "outrider.eval.evaluate",
    # What test modules import.
    "altair",
    "datasets",
    "openai",
    "playwright.sync_api",
    "presidio_analyzer.recognizer_registry",
    "ray",
    "scipy.stats",
    "transformers.models.auto.auto_factory",
    *PRELOADED,
)
SAFE_THREADS = ("jemalloc_bg_thd",)
"""Threads that a fork starts again by itself: pyarrow's allocator."""
_ROOM = 64 * 1024
"""Bytes of the environment that /proc shows of a forked command."""
_TITLE = 256
"""Bytes of the command line that a process title may take."""


class WarmProcess:
    """The process that imports and forks; it ends with its starter."""

    def __init__(self, imported: Sequence[str] = IMPORTED) -> None:
        self._imported = imported
        self._folder = tempfile.TemporaryDirectory(prefix="outrider-warm-")
        self._address = str(Path(self._folder.name) / "socket")

    def start(self) -> dict[str, str]:
        """The environment variable by which test processes find it. It imports meanwhile."""
        environment = {name: text for name, text in os.environ.items() if name != ADDRESS}
        environment |= {
            "ROOM": "x" * _ROOM,
            FORK: "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_LOGGING_STREAM": "ext://sys.__stderr__",
            "OPENBLAS_NUM_THREADS": "1",
        }
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self._address)
        listener.listen(64)
        log = Path(self._folder.name) / "log"
        with listener, log.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    __name__,
                    str(listener.fileno()),
                    *self._imported,
                    "-" * _TITLE,
                ],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        self.pid = self._process.pid
        return {ADDRESS: self._address}

    def stop(self) -> None:
        """Ends it; what it has forked runs on."""
        self._process.communicate()  # closes its input
        self._folder.cleanup()


def read(connection: socket.socket, size: int) -> bytes:
    """`size` bytes, or none if the other side has ended."""
    read = b""
    while len(read) < size:
        part = connection.recv(size - len(read))
        if not part:
            return b""
        read += part
    return read


def _serve(listener: socket.socket) -> None:
    """Forks a child for every request until the input ends; each gets its exit status."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    woken.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, woken, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        if woken in ready:
            woken.recv(4096)
        if listener in ready:
            connection, _ = listener.accept()
            head, descriptors, _, _ = socket.recv_fds(connection, 4, 16)
            request = json.loads(read(connection, *struct.unpack("i", head)))
            pid = os.fork()
            if pid == 0:
                _become(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children[pid] = connection
            connection.sendall(struct.pack("i", pid))
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                # A starter that was killed reads no status.
                with children.pop(pid) as connection, contextlib.suppress(BrokenPipeError):
                    connection.sendall(struct.pack("i", status))


def _become(request: dict[str, Any], received: list[int]) -> None:
    """In the child: runs the request's module and ends with its exit code."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _place(received, request["descriptors"])
        # In any case: Linux gives each session its share of the cores (sched_autogroup). Next to
        # one of many processes on both cores, others got 3 % of a core for minutes.
        os.setsid()
        os.sched_setaffinity(0, request["cores"])
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _show_environment(request["environment"])
        if hub := sys.modules.get("huggingface_hub.constants"):
            hub.HF_HUB_OFFLINE = os.environ.get("HF_HUB_OFFLINE") == "1"
        sys.argv[:] = ["-c", *request["words"]]
        sys.path[0] = request["folder"]
        if "code" in request:
            exec(request["code"], {"__name__": "__main__"})
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _place(received: list[int], places: list[int]) -> None:
    """Moves descriptors to their places and closes all others."""
    above = max([*received, *places]) + 1
    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    for copy, place in zip(copies, places, strict=True):
        os.dup2(copy, place)
    limits = [-1, *sorted(places), os.sysconf("SC_OPEN_MAX")]
    for before, after in itertools.pairwise(limits):
        if before + 1 < after:  # an empty range closes all
            os.closerange(before + 1, after)


def _show_environment(environment: dict[str, str]) -> None:
    """Writes the environment where /proc shows it, by which processes are found."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    text = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    ctypes.memmove(start, text[: end - start].ljust(end - start, b"\0"), end - start)


def main(listening: str, *imported: str) -> None:
    """Imports, then forks until its starter ends."""
    listener = socket.socket(fileno=int(listening))
    for name in imported:
        importlib.import_module(name)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    if others := [name for name in threads[1:] if name not in SAFE_THREADS]:
        raise RuntimeError(f"an import has started threads, which no fork has: {others}")
    gc.collect()
    gc.freeze()
    _serve(listener)
    os._exit(0)  # without what libraries print at their end


if __name__ == "__main__":
    main(*sys.argv[1:-1])
