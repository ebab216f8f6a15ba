"""What an evaluation has measured already: one JSON file a step, so that an interrupted evaluation goes on where it was.

steps = Steps(out_dir / "steps", inputs)
blocks = steps.run("speed_eager", lambda: measure(...))     # measured once; read back while the inputs are the same
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import value_digest


class Steps:
    """Results of the steps of one evaluation. `inputs` is everything that the measurements depend on, as a JSON value."""

    def __init__(self, directory: Path, inputs: Any) -> None:
        self.directory, self.digest = Path(directory), value_digest(inputs)

    def done(self, name: str) -> bool:
        """Whether the step's result stands there, of the same inputs."""
        return (
            self._path(name).is_file() and read_json(self._path(name)).get("inputs") == self.digest
        )

    def get(self, name: str) -> Any:
        """The result of a step that is done."""
        return read_json(self._path(name))["result"]

    def put(self, name: str, result: Any) -> None:
        """Keeps a step's result."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(
            self._path(name), {"inputs": self.digest, "result": result}, private=True
        )  # responses are customer text

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """The step's result, made now unless it stands there."""
        if not self.done(name):
            self.put(name, work())
        return self.get(name)

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"
