"""What readers of servers' text logs share: one reject for each run of lines that are no request.

aside = Aside(file.name)
aside.add(number)           # a line that is nothing
yield from aside.end()      # before a line that is something, and after the last
"""

from collections.abc import Iterator

from outrider.data.exchange import Place, Reject


class Aside:
    """Counts lines that are no request until one comes that is."""

    def __init__(self, file: str):
        self.file = file
        self.first = 0
        self.count = 0

    def add(self, number: int) -> None:
        """One more line."""
        if not self.count:
            self.first = number
        self.count += 1

    def end(self) -> Iterator[Reject]:
        """The reject of the run, if there is one."""
        if self.count:
            yield Reject(
                "not_a_generation",
                "lines that log no request",
                Place(self.file, self.first),
                rows=self.count,
            )
            self.count = 0
