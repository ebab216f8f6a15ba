"""A terminal that says what it waits for while a stage prints nothing.

    sys.stderr = Heartbeat(descriptor, "evaluate")
    print("starting the server eager_base", file=sys.stderr)
    # 30 s later: … evaluate: 42 s in, 30 s since "starting the server eager_base"

One rule for all waits: engine starts, replay, passes and checks print one line when they begin, and
none of them needs a timer. A thread of the stage's process prints, not the command's: the stage
writes to the terminal itself, so that progress bars work.
"""

import io
import os
import re
import threading
import time

EVERY_S = 30.0
"""Seconds without output until a line is printed, and between such lines."""

WIDTH = 120
"""Columns of a line at most; a longer quotation is cut."""

# Colours of rich, and what its progress bars move the cursor with.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Heartbeat(io.TextIOWrapper):
    """A line-buffered text stream with lines of its own after `every_s` seconds of silence."""

    def __init__(self, descriptor: int, name: str, every_s: float = EVERY_S) -> None:
        """`name` is what runs. Nothing is printed about silence once the stream is closed."""
        super().__init__(os.fdopen(descriptor, "wb"), encoding="utf-8", line_buffering=True)
        self._name = name
        self._every_s = every_s
        self._began_s = time.monotonic()
        self._printed_s = self._began_s
        self._said_s = self._began_s
        self._last_line = ""
        self._unfinished = ""
        threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()

    def write(self, text: str) -> int:
        """Writes text, and remembers its last line with words."""
        count = super().write(text)
        self._printed_s = time.monotonic()
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            plain = _ESCAPES.sub("", line.rpartition("\r")[2]).strip()
            # Tables have lines without words.
            if re.search(r"\w", plain):
                self._last_line = plain
                self._said_s = self._printed_s
        return count

    def line(self) -> str:
        """What is printed after a silence."""
        now = time.monotonic()
        line = f"… {self._name}: {_time_of(now - self._began_s)} in"
        if not self._last_line:
            return line
        line = f"{line}, {_time_of(now - self._said_s)} since "
        room = WIDTH - len(line) - 2
        quoted = self._last_line
        if len(quoted) > room:
            quoted = f"{quoted[: room - 1]}…"
        return f'{line}"{quoted}"'

    def _watch(self) -> None:
        while not self.closed:
            silence_s = time.monotonic() - self._printed_s
            if silence_s < self._every_s:
                time.sleep(self._every_s - silence_s)
                continue
            super().write(f"{self.line()}\n")
            self._printed_s = time.monotonic()


def _time_of(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
