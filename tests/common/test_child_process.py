"""Children: results, errors, signals, and that their memory ends with them."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from outrider.common.child_process import ChildError, in_child
from outrider.common.errors import OutriderError
from outrider.common.process_tree import signal_handlers, wait_until

SECRET = "Ada Lovelace, born 1815"


def fail(error: BaseException) -> None:
    raise error


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(note: Path) -> None:
    note.write_text(str(os.getpid()))
    time.sleep(600)


def test_another_error_has_the_childs_frames_and_its_message_apart() -> None:
    with pytest.raises(
        ChildError, match=r"(?s)test_child_process.py.*in fail.*ValueError$"
    ) as raised:
        in_child(fail, ValueError(SECRET))
    assert SECRET not in str(raised.value)
    assert isinstance(raised.value.__cause__, ValueError) and SECRET in str(raised.value.__cause__)


def test_a_killed_child_is_an_error_that_names_the_signal() -> None:
    with pytest.raises(OutriderError, match=r"process of kill ended with exit status -9.*memory"):
        in_child(kill)


def test_ctrl_c_ends_the_child(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def interrupt() -> None:
        assert wait_until(lambda: note.exists() and note.read_text(), 60)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    # A background process of a shell ignores SIGINT; stage processes set this handler too.
    with signal_handlers(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        thread.start()
        in_child(sleep, note)
    thread.join()
    assert not psutil.pid_exists(int(note.read_text()))
