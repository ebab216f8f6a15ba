"""A process tree ends with its starter, grandchildren included."""

import os
import signal
import subprocess
import sys

import pytest

from outrider.common.process_tree import ProcessTree, members, wait_until

# A child that ignores SIGTERM and starts a grandchild in another session.
CHILD = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); time.sleep(600)"
)
STARTER = f"""
import os, subprocess, sys, time
from outrider.common.process_tree import ProcessTree
with ProcessTree() as tree:
    subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=os.environ | tree.environment)
    print(tree.mark, flush=True)
    time.sleep(600)
"""


def test_leaving_the_context_ends_children_and_grandchildren() -> None:
    with ProcessTree() as tree:
        child = subprocess.Popen([sys.executable, "-c", CHILD], env=os.environ | tree.environment)
        assert wait_until(lambda: len(members(tree.mark)) == 2, 30)
    assert members(tree.mark) == []
    assert child.wait() == -signal.SIGKILL


def test_kill_9_of_the_starter_ends_them_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True
    ) as starter:
        mark = starter.stdout.readline().strip()
        assert wait_until(lambda: len(members(mark)) == 2, 30)
        starter.kill()
    assert wait_until(lambda: members(mark) == [], 10)


FORKING_STARTER = f"""
import os, subprocess, sys, time
from outrider.common.process_tree import ProcessTree
with ProcessTree() as tree:
    subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=os.environ | tree.environment)
    forked = os.fork()
    if not forked:
        time.sleep(600)
    print(tree.mark, forked, flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
print("left", flush=True)
"""


@pytest.mark.parametrize("how", ["left", "killed"])
def test_a_forked_process_that_lives_on_holds_no_guard_up(how: str) -> None:
    """Such as an engine: forked from the starter, with copies of its files."""
    command = [sys.executable, "-c", FORKING_STARTER, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        mark, forked = starter.stdout.readline().split()
        try:
            if how == "left":
                assert starter.stdout.readline() == "left\n"
            else:
                assert wait_until(lambda: len(members(mark)) == 2, 30)
                starter.kill()
            assert wait_until(lambda: members(mark) == [], 10)
        finally:
            os.kill(int(forked), signal.SIGKILL)
