"""A process tree ends with its starter, grandchildren included."""

import os
import signal
import subprocess
import sys

import pytest

from outrider.common.process_tree import members, wait_until

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
    forked = os.fork()
    if not forked:
        time.sleep(600)
    print(tree.mark, forked, flush=True)
    if sys.argv[1] == "killed":
        time.sleep(600)
print("left", flush=True)
"""


@pytest.mark.parametrize("how", ["left", "killed"])
def test_a_tree_ends_with_its_context_and_its_starter(how: str) -> None:
    """A process that the starter forked lives on, such as an engine, and holds no guard up."""
    command = [sys.executable, "-c", STARTER, how]
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
