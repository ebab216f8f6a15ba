"""The commands of cli/main.py as a user types them: in this process, or (`start`) in their own.

    finished = run("train-speculator", "--recipe", "mine.yaml", cwd=folder)
    assert_one_message(finished, "mine.yaml: no such recipe")

A command in its own process costs a second or more for its imports, so most tests call it here,
with its output captured at the descriptors. Exit statuses of real processes, and that no torch is
imported, are tested once for each command.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import FDCapture, MultiCapture

from outrider.cli import main

COMMANDS = Path(sys.executable).parent
WIDTH = {"COLUMNS": "200"}
Finished = subprocess.CompletedProcess[str]


def start(
    command: str, *words: str, cwd: Path, limit_s: float = 300, **environment: str
) -> Finished:
    """The installed command in its own process."""
    return subprocess.run(
        [COMMANDS / command, *words],
        cwd=cwd,
        env=os.environ | WIDTH | environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def run(command: str, *words: str, cwd: Path, **environment: str) -> Finished:
    """The function behind the command, in this process."""
    function = main.main if command == "outrider" else getattr(main, command.replace("-", "_"))
    argv = [str(COMMANDS / command), *words]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", argv)
        for name, value in (WIDTH | environment).items():
            patch.setenv(name, value)
        capture = MultiCapture(in_=None, out=FDCapture(1), err=FDCapture(2))
        capture.start_capturing()
        try:
            with pytest.raises(SystemExit) as ended:
                function()
            stdout, stderr = capture.readouterr()
        finally:
            capture.stop_capturing()
    status = ended.value.code or 0  # None is success
    return subprocess.CompletedProcess(argv, status, stdout, stderr)


def json_line(finished: Finished) -> Any:
    """The last line of a command that succeeded."""
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def assert_one_message(finished: Finished, *parts: str, status: int = 1) -> None:
    """A mistake of the user's is one message on stderr, no traceback, and an exit status."""
    assert finished.returncode == status, finished.stderr
    assert "Traceback" not in finished.stderr + finished.stdout
    assert finished.stdout == ""
    for part in parts:
        assert part in finished.stderr
