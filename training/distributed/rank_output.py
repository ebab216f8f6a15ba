"""Output of ranks on several machines, brought to one terminal and one log.

    with RankOutput(log_dir, processes=2, log_path=log_dir / "train.log") as output:
        output.relay(to_terminal=True)      # now and then

Each rank writes its own file on the shared disk; appends from several machines to one file can
be lost there. The files are removed at the end, when all is in the log.
"""

from pathlib import Path
from typing import BinaryIO


def rank_log(log_dir: Path, rank: int) -> Path:
    """The file that a rank writes its output to."""
    return log_dir / f"train.rank{rank}.log"


class RankOutput:
    """Copies new whole lines of the ranks' files, in the order in which they are found."""

    def __init__(self, log_dir: Path, processes: int, log_path: Path) -> None:
        self._paths = [rank_log(log_dir, rank) for rank in range(processes)]
        self._log_path = log_path
        self._rest = [b""] * processes
        self._files: list[BinaryIO] = []

    def __enter__(self) -> "RankOutput":
        for path in self._paths:
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
        self._files = [path.open("rb") for path in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        self.relay(to_terminal=False, all_of_it=True)
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)

    def relay(self, *, to_terminal: bool, all_of_it: bool = False) -> None:
        """Appends what is new to the log, and prints it; `all_of_it`: an unfinished line too."""
        with self._log_path.open("ab") as log:
            for number, file in enumerate(self._files):
                text = self._rest[number] + file.read()
                whole, end, rest = text.rpartition(b"\n")
                if all_of_it and rest:
                    whole, end, rest = text, b"\n", b""
                self._rest[number] = rest
                log.write(whole + end)
                if to_terminal and end:
                    print((whole + end).decode("utf-8", "replace"), end="", flush=True)
