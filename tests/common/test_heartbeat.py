"""A stage that prints nothing for a while says what it waits for, in its real process."""

import os
import subprocess
import sys

import pytest
from rich.console import Console

from outrider.common.heartbeat import WIDTH, Heartbeat

STAGE = """
import sys, threading
from types import SimpleNamespace
from outrider.common import heartbeat
from outrider.pipeline import runner

class Often(heartbeat.Heartbeat):
    def __init__(self, descriptor, name):
        super().__init__(descriptor, name, every_s=0.2)

runner.Heartbeat = Often
runner._show_progress_on_the_terminal(SimpleNamespace(name="evaluate", starts_engines=False))
threading.Event().wait(1)
print("starting the server eager_base", file=sys.stderr)
threading.Event().wait()
"""

COMMAND = """
import os, sys
from pathlib import Path
from outrider.common.process_tree import run_supervised
run_supervised([sys.executable, "-c", sys.argv[2]], Path(sys.argv[1]), dict(os.environ))
"""


@pytest.fixture
def silent():
    """A heartbeat whose silence never lasts long enough, and what it prints to."""
    reader, writer = os.pipe()
    with os.fdopen(reader, encoding="utf-8") as output, Heartbeat(writer, "replay", 1e9) as stream:
        yield stream, output


def test_a_silent_stage_says_what_it_began_last_until_it_ends(tmp_path):
    command = [sys.executable, "-c", COMMAND, str(tmp_path / "log"), STAGE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        while sum("since" in line for line in lines) < 2:
            lines.append(process.stderr.readline().rstrip())
            assert lines[-1], "it ended"
        process.terminate()
    begun = lines.index("starting the server eager_base")
    assert begun and {line[:12] for line in lines[:begun]} == {"… evaluate: "}
    assert all(line.endswith(" in") for line in lines[:begun])
    for line in lines[begun + 1 :]:
        assert line.endswith(' s since "starting the server eager_base"')


def test_the_last_line_with_words_is_quoted_without_colours_and_cut(silent):
    stream, output = silent
    assert stream.line() == "… replay: 0 s in"
    print("exact replay, heldout, base:", 12, "sequences", file=stream)
    Console(file=stream, force_terminal=True).rule(characters="-")
    assert stream.line().endswith('"exact replay, heldout, base: 12 sequences"')
    Console(file=stream, force_terminal=True).print("[bold red]k = 3[/] for base")
    assert stream.line().endswith('since "k = 3 for base"')
    print("word " * 100, file=stream)
    assert len(stream.line()) == WIDTH and stream.line().endswith('word…"')
    assert output.readline() == "exact replay, heldout, base: 12 sequences\n"
    assert not stream.isatty()
