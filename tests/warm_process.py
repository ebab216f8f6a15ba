"""Python commands forked from one process that has imported vLLM and DeepSpeed.

    os.environ |= WarmProcess().start()      # once, in the process that controls the tests
    install()                                # in each test process; then, unchanged:
    subprocess.Popen([sys.executable, "-m", "outrider.serving.vllm_command", ...])

A fresh interpreter spends 10 s of a core on the imports of a server, 5 to 10 s on those of a load
generator or of a stage. All test processes share one process that has them already, and commands of
`MODULES` are forked from it: with the descriptors, environment, session, affinity and exit code
that `subprocess` would give them. So are the test processes, and multiprocessing's fork servers, of
which training ranks and children are forked. Commands whose environment asks for spawned engines
(OUTRIDER_FORK_ENGINES=0) and all others start as ever, so each has a test of the real start.
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
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import psutil
from execnet.gateway_io import popen_bootstrapline

from outrider.serving.vllm_hooks.process_start import FORK
from tests.training.forked_ranks import PRELOADED

ADDRESS = "OUTRIDER_TEST_WARM_PROCESS"
"""Environment variable: the socket of the process that forks."""
STARTER = "OUTRIDER_TEST_PROCESS"
"""Environment variable: the id of the test process for which a command runs."""
MODULES = (
    "outrider.serving.vllm_command",
    "outrider.serving.load_generator",
    "outrider.recipes.pipeline.stage_process",
    "tests.data.features.stand_in_capture",
)
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
    "outrider.serving.bundle",
    "outrider.recipes.pipeline.stages.registry",
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


def install() -> None:
    """Forks this process's commands of `MODULES` from now on, if a warm process is there."""
    os.environ[STARTER] = str(os.getpid())
    if ADDRESS in os.environ:
        subprocess.Popen = ForkedPopen  # type: ignore[misc]
        forkserver._forkserver.__class__ = ForkedForkServer
        forkserver.ensure_running = forkserver._forkserver.ensure_running


def forked_program(args: object, env: Mapping[str, str] | None) -> dict[str, Any] | None:
    """The module or the code of a command that is forked from the warm process; else None."""
    environment = os.environ if env is None else env
    if isinstance(args, str) or not isinstance(args, Sequence) or environment.get(FORK) != "1":
        return None
    python, *words = map(str, args)
    words = [word for word in words if word not in ("-u", "-B")]
    if python != sys.executable or len(words) < 2:
        return None
    flag, program, *rest = words
    if flag == "-m" and program in MODULES:
        return {"module": program, "words": rest}
    if flag == "-c" and program == popen_bootstrapline:
        return {"code": program, "words": rest}
    return None


def forked() -> list[psutil.Process]:
    """The living processes of this process's commands, forked ones included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(STARTER) == str(os.getpid()):
                found.append(process)
    return found


class ForkedPopen(subprocess.Popen):
    """`subprocess.Popen`, with commands of `MODULES` forked from the warm process."""

    _connection: socket.socket | None = None

    def _execute_child(  # type: ignore[override]
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: Any,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: Any,
        start_new_session: bool,
        process_group: int,
    ) -> None:
        pipes = p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        program = forked_program(args, env)
        if shell or preexec_fn or executable or program is None:
            return super()._execute_child(  # type: ignore[misc]
                *(args, executable, preexec_fn, close_fds, pass_fds, cwd, env),
                *(startupinfo, creationflags, shell, *pipes, restore_signals),
                *(gid, gids, uid, umask, start_new_session, process_group),
            )
        standard = [p2cread, c2pwrite, errwrite]
        descriptors = [own if own != -1 else usual for usual, own in enumerate(standard)]
        self.pid, connection = _fork(
            program
            | {
                "environment": dict(os.environ if env is None else env),
                "folder": str(cwd or Path.cwd()),
                "session": bool(start_new_session),
                "group": process_group,
            },
            descriptors,
            sorted(pass_fds),
        )
        self._connection, self._child_created = connection, True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._connection is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        patience = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._connection], [], [], patience)[0]:
            return 0, 0
        status = _read(self._connection, 4)
        self._connection.close()
        return self.pid, struct.unpack("i", status)[0] if status else signal.SIGKILL

    def _internal_poll(self, _deadstate: int | None = None, **kept: Any) -> int | None:
        if self._connection is None:
            return super()._internal_poll(_deadstate, **kept)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


class ForkedForkServer(forkserver.ForkServer):
    """Multiprocessing's fork server, itself forked from the warm process."""

    def ensure_running(self) -> None:
        if self._forkserver_pid is not None:  # which is no child of this process
            return
        spawn = util.spawnv_passfds
        util.spawnv_passfds = _forked_server
        try:
            super().ensure_running()
        finally:
            util.spawnv_passfds = spawn


def _forked_server(path: str, words: list[str], descriptors: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`, for `python -c CODE`."""
    pid, connection = _fork({"code": words[-1]}, [0, 1, 2], sorted(descriptors))
    _KEPT.append(connection)
    return pid


_KEPT: list[socket.socket] = []


def _fork(
    request: dict[str, Any], standard: list[int], others: list[int]
) -> tuple[int, socket.socket]:
    """The id of a forked process, and the connection on which its exit status comes.

    What `request` leaves out is as in this process.
    """
    own = {
        "words": [],
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "session": False,
        "group": -1,
        "cores": sorted(os.sched_getaffinity(0)),
        "descriptors": [0, 1, 2, *others],
    }
    request = own | request
    text = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ[ADDRESS])
        socket.send_fds(connection, [struct.pack("i", len(text))], [*standard, *others])
        connection.sendall(text)
        (pid,) = struct.unpack("i", _read(connection, 4))
    except (OSError, struct.error) as error:
        log = Path(os.environ[ADDRESS]).with_name("log").read_text(errors="replace")
        raise RuntimeError(f"the warm process has ended; its log ends:\n{log[-2000:]}") from error
    return pid, connection


def _read(connection: socket.socket, size: int) -> bytes:
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
            request = json.loads(_read(connection, *struct.unpack("i", head)))
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
        if request["session"]:
            os.setsid()
        if request["group"] >= 0:
            os.setpgid(0, request["group"])
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
