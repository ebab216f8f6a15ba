"""Results of an evaluation's measurements, one JSON file each, so that it resumes where it stopped.

steps = Steps(out_dir / "steps", inputs)
blocks = steps.run("speed_eager", lambda: measure(...))     # measured once for the same inputs
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from outrider.common.fingerprint import Kept, value_digest


class Steps:
    """Results of the steps of one evaluation.

    `inputs` is everything that the measurements depend on, as a JSON value.
    """

    def __init__(self, directory: Path, inputs: Any) -> None:
        self.directory, self.digest = Path(directory), value_digest(inputs)

    def done(self, name: str) -> bool:
        """Whether there is a result of the step for these inputs."""
        return self._kept(name).done()

    def get(self, name: str) -> Any:
        """The result of a step that is done."""
        return self._kept(name).get()

    def put(self, name: str, result: Any) -> None:
        """Stores the result of a step."""
        self._kept(name).put(result)

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of a step, computed by `work` unless it is done."""
        return self._kept(name).run(work)

    def _kept(self, name: str) -> Kept:
        # Responses are customer text, so the files are private.
        return Kept(self.directory / f"{name}.json", self.digest, private=True)
