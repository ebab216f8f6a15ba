"""Processes that take the time which others leave."""

import contextlib
import os
from pathlib import Path

from outrider.common.process_tree import wait_until

_LOWEST = 19
"""Niceness."""


def take_idle_time(pid: int) -> None:
    """Gives the leader of a new session, and all that it starts, the lowest priority.

    Linux places a thread that wakes on a core that runs only idle-class processes as on a free one,
    and preempts them at once. With niceness 19 it may wait behind another busy thread instead.
    Where each session has its share of the cores (sched_autogroup), the class counts among its own
    processes only, so the session gets the lowest weight as well. Without that, an idle-class
    process took 0.57 of a core from a busy process of another session.
    """
    if not hasattr(os, "SCHED_IDLE"):
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)
        return
    os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    if wait_until(lambda: os.getsid(pid) == pid, 10):
        _set_session_niceness(pid, _LOWEST)


def take_usual_time(pid: int) -> None:
    """Undoes `take_idle_time` where the user may: on busy cores a process hardly runs."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))
        _set_session_niceness(pid, 0)


def _set_session_niceness(pid: int, niceness: int) -> None:
    with contextlib.suppress(OSError):  # a kernel without autogroups
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")
