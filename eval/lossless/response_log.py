"""The responses of one pass, stored as they arrive, so that a failure repeats only what is missing.

    log = ResponseLog(folder / "greedy_custom.jsonl", digest)
    log.known()                      # {index of the prompt: response}, from before the failure
    log.append(index, response)      # one line; from any thread

The first line is the digest of everything that the responses depend on. A file with another digest
starts again; a last line without an end, which a killed process leaves, is removed. Responses are
customer text, so only the owner may read the file.
"""

import json
import os
import threading
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from outrider.eval.results.parts import Part
from outrider.serving.client import Completion, SpeculationCounters


class Response(Part):
    """One answer to a prompt."""

    token_ids: list[int]
    counters: SpeculationCounters
    """What vLLM counted for it."""


class ResponseLog:
    """An append-only file of responses by prompt."""

    def __init__(self, path: Path, digest: str) -> None:
        self._path, self._digest, self._lock = Path(path), digest, threading.Lock()

    def known(self) -> dict[int, Response]:
        """The stored responses."""
        text = self._path.read_text() if self._path.is_file() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        if lines[:1] != [self._head()]:
            lines = [self._head()]
        if text != "\n".join([*lines, ""]):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
            self._write("\n".join(lines))
        return dict(_LINE.validate_json(line) for line in lines[1:])

    def append(self, index: int, completion: Completion) -> None:
        """Stores the response to the prompt `index`."""
        kept = [index, {"token_ids": completion.token_ids, "counters": asdict(completion.counters)}]
        with self._lock:
            self._write(json.dumps(kept))

    def _head(self) -> str:
        return json.dumps({"digest": self._digest})

    def _write(self, line: str) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a") as file:
            file.write(line + "\n")


_LINE = TypeAdapter(tuple[int, Response])
