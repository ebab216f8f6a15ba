"""The four workloads and general traffic: sampling, planned log rows, parts, digests of prompts.

    sessions = WORKLOADS["arithmetic"].sessions(Path("corpus"))
    digest(WORKLOADS["arithmetic"], sessions)

`digests.json` fixes prompts and sampling before anything is trained on the answers. Recording other
ones is an error.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from tools.workloads import (
    arithmetic,
    customer_chat,
    document_extraction,
    general,
    resume_screening,
)
from tools.workloads.sessions import Session

DIGESTS = Path(__file__).with_name("digests.json")


@dataclasses.dataclass(frozen=True)
class Workload:
    """Sessions of a corpus folder, and how their answers are sampled."""

    sessions: Callable[[Path], list[Session]]
    temperature: float
    max_tokens: int
    keeps_history: bool = False
    """Whether a session's prompts contain its earlier turns and answers."""

    @property
    def sampling(self) -> dict[str, float]:
        return {"temperature": self.temperature, "max_tokens": self.max_tokens}


WORKLOADS = {
    "customer_chat": Workload(customer_chat.sessions, 0.7, 192, keeps_history=True),
    "document_extraction": Workload(document_extraction.sessions, 0.2, 320),
    "resume_screening": Workload(lambda _: resume_screening.sessions(), 0.6, 256),
    "arithmetic": Workload(arithmetic.sessions, 0.6, 512),
    "general": Workload(general.sessions, 0.7, 160),
}


def digest(workload: Workload, sessions: list[Session]) -> str:
    """SHA-256 of sampling and sessions."""
    plan = {
        "sampling": workload.sampling,
        "keeps_history": workload.keeps_history,
        "sessions": [dataclasses.asdict(session) for session in sessions],
    }
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def planned(name: str, corpus: Path) -> list[Session]:
    """A workload's sessions, if their digest is the committed one."""
    workload = WORKLOADS[name]
    sessions = workload.sessions(corpus)
    actual = digest(workload, sessions)
    expected = read_json(DIGESTS)[name]
    if actual != expected:
        raise OutriderError(
            f"{corpus}: the prompts of {name} have the digest {actual[:12]}, not {expected[:12]} of"
            f" {DIGESTS.name}; use the corpus and code that the digest was made with"
        )
    return sessions
