"""The commands of cli/main.py as a user types them: in this process, or (`start`) in their own.

    finished = run("train-speculator", "--recipe", "mine.yaml", cwd=folder)
    assert_one_message(finished, "mine.yaml: no such recipe")

A command in its own process costs a second or more for its imports, so most tests call it here,
with its output captured at the descriptors. Exit statuses of real processes, and that no torch is
imported, are tested once for each command.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from outrider.cli import main

COMMANDS = Path(sys.executable).parent
WIDTH = {"COLUMNS": "200"}
Finished = subprocess.CompletedProcess[str]


def start(command: str, *words: str, cwd: Path, **environment: str) -> Finished:
    """The installed command in its own process."""
    return subprocess.run(
        [COMMANDS / command, *words],
        cwd=cwd,
        env=os.environ | WIDTH | environment,
        capture_output=True,
        text=True,
        timeout=300,
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
        with (
            _captured(1, "stdout") as stdout,
            _captured(2, "stderr") as stderr,
            pytest.raises(SystemExit) as ended,
        ):
            function()
    status = ended.value.code or 0  # None is success
    return subprocess.CompletedProcess(argv, status, stdout[0], stderr[0])


def assert_one_message(finished: Finished, *parts: str, status: int = 1) -> None:
    """A mistake of the user's is one message on stderr, no traceback, and an exit status."""
    assert finished.returncode == status, finished.stderr
    assert "Traceback" not in finished.stderr + finished.stdout
    assert finished.stdout == ""
    for part in parts:
        assert part in finished.stderr


@contextmanager
def _captured(descriptor: int, name: str) -> Iterator[list[str]]:
    """Sends a descriptor and its stream in `sys` to a list, which is filled after the context."""
    texts: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as file:
        saved = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)
        stream = os.fdopen(os.dup(descriptor), "w", encoding="utf-8", buffering=1)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, name, stream)
                yield texts
        finally:
            stream.close()
            os.dup2(saved, descriptor)
            os.close(saved)
            file.seek(0)
            texts.append(file.read())
