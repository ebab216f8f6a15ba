"""Peak memory of a run's processes while it runs, by stage and process.

    with Peaks() as peaks:
        peaks.stage = "capture"
        ...
    peaks.by_stage["train"]["training process"].resident

Predictions mean VmHWM, the largest resident memory: in training, embedding and head are pages of
the mapped checkpoint. Own memory (RssAnon) is recorded, too; the kernel can drop the rest.
"""

import dataclasses
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

EVERY_S = 0.05

ROLES = {
    "outrider.training.distributed.worker": "training process",
    "outrider.pipeline.stage_process": "stage process",
    "VLLM::EngineCore": "engine",
    "outrider.serving.vllm_command": "server",
}
"""Part of a command line -> what the process is."""


@dataclasses.dataclass
class Peak:
    """Largest memory of a process, in bytes."""

    anonymous: int = 0
    resident: int = 0

    def include(self, status: str) -> None:
        """Takes the text of /proc/PID/status into account."""
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        for field, name in (("RssAnon", "anonymous"), ("VmHWM", "resident")):
            kilobytes = int(fields.get(field, "0 kB").split()[0])
            setattr(self, name, max(getattr(self, name), 1024 * kilobytes))


class Peaks(threading.Thread):
    """Watches the descendants of this process until the context ends."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.stage = ""
        self.by_stage: dict[str, dict[str, Peak]] = {}
        self._ended = threading.Event()
        self._roles: dict[int, str] = {}

    def __enter__(self) -> "Peaks":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.sample(psutil.Process().children(recursive=True))

    def sample(self, processes: Iterable[psutil.Process]) -> None:
        """Takes the processes' memory into account."""
        for process in processes:
            try:
                role = self._role(process)
                status = Path(f"/proc/{process.pid}/status").read_text()
            except (psutil.Error, FileNotFoundError, ProcessLookupError):
                continue
            self.by_stage.setdefault(self.stage, {}).setdefault(role, Peak()).include(status)

    def _role(self, process: psutil.Process) -> str:
        # vLLM gives its processes a title a moment after their start.
        known = self._roles.get(process.pid)
        if known is None or known == "other":
            command = " ".join(process.cmdline())
            known = next((role for part, role in ROLES.items() if part in command), "other")
            self._roles[process.pid] = known
        return known
