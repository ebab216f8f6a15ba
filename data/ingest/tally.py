"""What the ingest counts, chunk by chunk, and what `summary.json` says of it. Sums and counts only, so that parts add up.

tally = sum((Tally.from_json(part) for part in parts), Tally())
"""

import dataclasses
from collections import Counter
from typing import Any

from outrider.data.exchange import Exchange
from outrider.data.tokenize.tokens import TokenSequence


@dataclasses.dataclass
class Tally:
    """Counts of one chunk, or of all."""

    rows: int = 0
    exchanges: int = 0
    joined: int = 0
    """Rows that a record used up beside its first: an exchange's other half, the chunks of a stream."""
    extra_choices: int = 0
    """Outcomes of a record beside its first: the other choices of one response."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_time: int = 0
    formats: Counter[str] = dataclasses.field(default_factory=Counter)
    """Rows by the format that they were read in."""
    rejects: Counter[str] = dataclasses.field(default_factory=Counter)
    fidelity: Counter[str] = dataclasses.field(default_factory=Counter)
    models: Counter[str] = dataclasses.field(default_factory=Counter)
    """Exchanges by the model's name, as logged."""
    usage: Counter[str] = dataclasses.field(default_factory=Counter)
    """Whether the completion has as many tokens as the engine counted."""
    round_trips: Counter[str] = dataclasses.field(default_factory=Counter)
    """Whether the text of exact completions, tokenized again, gives the same ids."""

    def add(self, exchange: Exchange, sequence: TokenSequence) -> None:
        """Counts one exchange that became a sequence."""
        self.exchanges += 1
        self.fidelity[sequence.fidelity] += 1
        self.models[exchange.model or ""] += 1
        if sequence.agrees_with_usage is not None:
            self.usage["equal" if sequence.agrees_with_usage else "different"] += 1
        self.prompt_tokens += sequence.completion_start
        self.completion_tokens += len(sequence.token_ids) - sequence.completion_start
        self.without_time += exchange.time is None

    def __add__(self, other: "Tally") -> "Tally":
        names = [field.name for field in dataclasses.fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def lost(self) -> int:
        """Rows that became nothing; 0, or a reader is wrong."""
        return self.rows + self.extra_choices - self.exchanges - self.rejects.total() - self.joined

    def summary(self) -> dict[str, Any]:
        """As `summary.json` has it."""
        return {
            "rows": self.rows,
            "exchanges": self.exchanges,
            "joined": self.joined,
            "extra_choices": self.extra_choices,
            "rejects": dict(self.rejects.most_common()),
            "formats": dict(self.formats),
            "fidelity": dict(self.fidelity),
            "models": {name or "not logged": count for name, count in self.models.most_common()},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "completion_tokens_against_usage": dict(self.usage),
            "round_trips": dict(self.round_trips),
            "without_time": self.without_time,
        }

    def to_json(self) -> dict[str, Any]:
        """As a part's file keeps it."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Tally":
        """What `to_json` gave."""
        return cls(
            **{
                name: Counter(held) if isinstance(held, dict) else held
                for name, held in value.items()
            }
        )
