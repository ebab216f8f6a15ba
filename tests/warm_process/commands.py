"""Commands of the test processes that are forked from the warm process."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver, util
from pathlib import Path
from typing import Any

import psutil
from execnet.gateway_io import popen_bootstrapline

from outrider.serving.vllm_hooks.process_start import FORK
from tests.warm_process.process import ADDRESS, read

STARTER = "OUTRIDER_TEST_PROCESS"
"""Environment variable: the id of the test process for which a command runs."""
MODULES = (
    "outrider.serving.vllm_command",
    "outrider.serving.load_generator",
    "outrider.pipeline.stage_process",
    "tests.data.features.stand_in_capture",
)


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
        status = read(self._connection, 4)
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
        (pid,) = struct.unpack("i", read(connection, 4))
    except (OSError, struct.error) as error:
        log = Path(os.environ[ADDRESS]).with_name("log").read_text(errors="replace")
        raise RuntimeError(f"the warm process has ended; its log ends:\n{log[-2000:]}") from error
    return pid, connection
