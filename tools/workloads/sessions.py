"""A session of a workload: its user, and the messages of each of its requests.

    Session("ada", (Turn((Message("user", "What is 3 + 4?"),)),))

The target's answers are unknown when a session is written, so a prompt holds only what others
write. Where a workload keeps its history, the recorder puts the earlier turns, with the target's
answers, before a turn's messages.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Message:
    role: Literal["system", "user"]
    content: str


@dataclass(frozen=True)
class Turn:
    """A request: its new messages, and the format of its answer."""

    messages: tuple[Message, ...]
    response_format: dict[str, Any] | None = None


@dataclass(frozen=True)
class Session:
    """Requests of one user, in order."""

    user: str
    turns: tuple[Turn, ...]


def until(sessions: Iterable[Session], responses: int) -> list[Session]:
    """The first sessions that have at least `responses` turns together."""
    chosen: list[Session] = []
    turns = 0
    for session in sessions:
        if turns >= responses:
            break
        chosen.append(session)
        turns += len(session.turns)
    return chosen
