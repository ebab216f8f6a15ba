"""Workers of an ingest: started from a caller's script, and those that end early."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import outrider
from outrider.common.errors import OutriderError
from outrider.data.config import PrivacyConfig
from outrider.data.ingest.chunks import Chunk, Work, make_parts
from tests.data.logs import pair, screenings, write_log


def rows(padding=0):
    """Exchanges of 60 sessions; `padding` bytes in each row that no sequence contains."""
    return [
        pair(
            messages,
            reasoning + "\n",
            "\n\n" + answer,
            request__metadata__session_id=f"s{index}",
            request__padding="x" * padding,
            response__created=1000 + 100 * index,
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(60))
    ]


@pytest.mark.parametrize(
    "padding",
    [pytest.param(0, id="small"), pytest.param(200_000, id="large")],
)
@pytest.mark.slow
def test_the_example_of_the_python_interface_is_a_script(nano_r1, tmp_path, padding):
    """The calls that read the log in the script's own process, as the docstring has them."""
    write_log(tmp_path / "log.jsonl", rows(padding))
    example, _, _ = outrider.__doc__.split("\n\n", 1)[1].partition("    run = ")
    code = textwrap.dedent(example)
    assert "outrider.init(" in code and "outrider.plan(" in code
    code = code.replace("logs/", "log.jsonl").replace("/models/r1", str(nano_r1))
    (tmp_path / "script.py").write_text('print("once")\n' + code)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "once\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "log.yaml").is_file()


class Ending(Work):
    """Ends the worker's process."""

    def make(self, chunk: Chunk) -> int:
        code = int(chunk.format)
        os.kill(os.getpid(), -code) if code < 0 else os._exit(code)
        return 0


@pytest.mark.parametrize(
    ("code", "message"),
    [(-signal.SIGKILL, "status -9: it was killed, .*memory"), (1, "1; its message is above")],
)
def test_only_a_killed_worker_is_said_to_lack_memory(code, message):
    work = Ending(
        target_dir=Path(),
        models=None,
        privacy=PrivacyConfig(),
        key=b"",
        parts_dir=Path(),
        file_numbers={},
    )
    chunks = [Chunk(number, str(code), []) for number in range(3)]
    with pytest.raises(OutriderError, match=message) as raised:
        list(make_parts(chunks, work, workers=2))
    assert ("memory" in str(raised.value)) == (code == -9)
