"""Rejects for the other lines of servers' text logs: one for each run of lines.

aside = Aside(file.name)
aside.add(number)           # a line without a request
yield from aside.end()      # before a line with one, and after the last line
"""

from collections.abc import Iterator

from outrider.data.exchange import Place, Reject


class Aside:
    """Counts consecutive lines without a request."""

    def __init__(self, file: str):
        self.file = file
        self.first = 0
        self.count = 0

    def add(self, number: int) -> None:
        """Counts one more line."""
        if not self.count:
            self.first = number
        self.count += 1

    def end(self) -> Iterator[Reject]:
        """Yields the reject of the run, if there is one."""
        if self.count:
            yield Reject(
                "not_a_generation",
                "lines that log no request",
                Place(self.file, self.first),
                rows=self.count,
            )
            self.count = 0
