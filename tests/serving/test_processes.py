"""A family ends with its starter, however that ends, and takes grandchildren along."""

import os
import signal
import subprocess
import sys

from outrider.serving.processes import Family, members, wait_until

# A child that ignores SIGTERM and starts a grandchild in a session of its own.
CHILD = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
)
STARTER = f"""
import os, subprocess, sys, time
from outrider.serving.processes import Family
with Family() as family:
    subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=os.environ | family.environment)
    print(family.mark, flush=True)
    time.sleep(600)
"""


def test_leaving_the_context_ends_children_and_grandchildren() -> None:
    with Family() as family:
        child = subprocess.Popen([sys.executable, "-c", CHILD], env=os.environ | family.environment)
        assert wait_until(lambda: len(members(family.mark)) == 2, 30)
    assert members(family.mark) == []
    assert child.wait() == -signal.SIGKILL


def test_kill_minus_nine_of_the_starter_ends_them_too() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True
    ) as starter:
        mark = starter.stdout.readline().strip()
        assert wait_until(lambda: len(members(mark)) == 2, 30)
        starter.kill()
    assert wait_until(lambda: members(mark) == [], 10)
